"""What `verify` counts by code of its own is what the plan counts, for every suite that ships and for odd ones."""

from pathlib import Path

import pytest

from ldaf_bench.data.datasets import summarize
from ldaf_bench.plan import make_plan
from ldaf_bench.suite import Suite, read_suite
from ldaf_bench.verify.price import budget_of, recount
from tests.places import SMALL

ODD = {
    **SMALL,
    "networks": {**SMALL["networks"], "seed": [0, 1]},
    "methods": {
        "ldaf": {
            **SMALL["methods"]["ldaf"],
            "flow": ["daf", "sflow"],
            "tolerance": [None, 0.01],
            "scale": [0.1, 0.2],
            "rise": [0.01, 0.02],
            "fit_points": [64, 128],
        },
        "deterministic": {},
    },
    "risks": {"integrator": ["mc", "bonferroni", "one_draw"], "num_points": [16, 64]},
}
SUITES = [*(read_suite(path) for path in sorted(Path("suites").glob("*.yaml"))), Suite.model_validate(ODD)]


@pytest.mark.parametrize("report", ["all", "best"])
@pytest.mark.parametrize("suite", SUITES, ids=lambda suite: suite.suite)
def test_the_price_is_the_plans(suite, report):
    suite = suite.model_copy(update={"certificates": suite.certificates.model_copy(update={"report": report})})
    plan = make_plan(suite, summarize(suite.data.dataset))
    content = plan.describe()
    price = recount(content["suite"])
    paid = content["budget"]["paid"]
    if report == "best":
        assert paid["mean"]["num_events"] == price.mean_events
        assert paid["stochastic"] == {
            "num_events": price.stochastic_events,
            "num_integrations": max(1, price.integrations),
        }
    kinds = {("mean", None)} if plan.means else set()
    kinds |= {(planned.posterior.classifier, planned.integrator) for planned in plan.integrations}
    for classifier, integrator in kinds:
        for bound in plan.bounds(classifier, integrator):
            budgets = plan.budgets(classifier, integrator, bound.takes)
            for epsilon, budget in zip(suite.certificates.epsilon, budgets, strict=True):
                row = {"classifier": classifier, "integrator": integrator, "epsilon": epsilon, "bound": bound.name}
                assert budget_of(row, content["suite"], price) == budget


def test_the_odd_suite_has_what_can_be_miscounted():
    price = recount(Suite.model_validate(ODD).model_dump(mode="json"))
    # 2 flows × 2 seeds × 2 tolerances × (code at 2 scales, scaled at 2 rises) = 32 priors, each with the events of kl,
    # of catoni at 2 guesses, of catoni_grid, split_kl, chernoff and test_set, and with one event of betting for each of
    # the integrations of the unfitted prior: mc with 2 numbers of points, bonferroni and one_draw
    assert price.stochastic_events == 32 * (7 + 4)
    # 32 priors × (2 fits and the prior itself) × mc with 2 numbers of points, for the risk and for the excess
    assert price.integrations == 32 * 3 * 2 * 2
    # 2 flows and a linear head × 2 seeds, with the event of chernoff and test_set, and that of betting
    assert price.mean_events == 6 * 2
