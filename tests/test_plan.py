"""The plan is the union of the methods' grids without repetitions, and the budget counts all that could be picked."""

import dataclasses
import json

import pytest

from ldaf_bench.data.datasets import DATASETS, load, summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import FitSpec, Method
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.network import NetworkConfig
from ldaf_bench.plan import make_plan
from ldaf_bench.sections import Spec
from ldaf_bench.suite import Suite, num_integrations_at_most
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.verify.price import recount
from tests.places import SMALL

BASE = {
    "suite": "base",
    "data": {"dataset": "digits"},
    "networks": {"backbone": "tinynet", "recipe": "tiny"},
    "methods": {"ldaf": {"num_nodes": 5}},
    "certificates": {"bound": "kl"},
}


def plan(ldaf=None, methods=None, **sections):
    """The base with changes: of the section `ldaf`, of the other methods, of other sections."""
    content = json.loads(json.dumps(BASE))
    for key, value in sections.items():
        content[key] = {**content.get(key, {}), **value}
    content["methods"] = {"ldaf": {**content["methods"]["ldaf"], **(ldaf or {})}, **(methods or {})}
    return make_plan(Suite.model_validate(content), summarize("digits"))


def names_of(made):
    return [posterior.identity for posterior in made.posteriors], [one.identity for one in made.integrations]


def price(made, classifier="posterior"):
    (found,) = {(budget.num_events, budget.num_integrations) for budget in made.budgets(classifier)}
    return found


class ScaleSpec(Spec):
    scale: float = 0.1
    """σ of the weights."""


@pytest.fixture
def last_layer(monkeypatch):
    """A throw-away second method with a linear head, and with posteriors that only draws can integrate."""

    def never(*_):
        raise AssertionError("Planning computes nothing.")

    method = Method(
        name="last_layer",
        head=LinearHead,
        digest=never,
        logits=never,
        prior=never,
        problem=never,
        restore=never,
        offers=frozenset({"draws"}),
        prior_axes=ScaleSpec,
        fit_axes=FitSpec,
    )
    monkeypatch.setitem(METHODS, "last_layer", method)
    return method


def test_the_grid_has_every_combination_once():
    made = plan(
        ldaf={"flow": ["daf", "sflow"], "covariance": ["code", "constant"], "fit_points": [64, 128]},
        networks={"seed": [0, 1, 2]},
        risks={"integrator": ["mc", "bonferroni"], "num_points": [256, 512]},
        certificates={"bound": ["kl", "test_set"]},
    )
    assert len(made.networks) == len(made.digests) == 6
    assert len(made.posteriors) == 6 * 4
    # bonferroni has no points
    assert len(made.integrations) == 24 * 3
    # every network has a mean classifier
    assert len(made.means) == 6
    names = [one.identity for one in (*made.networks, *made.posteriors, *made.integrations)]
    names += [digest.mean for digest in made.means]
    assert len(set(names)) == len(names)


def test_methods_grids_are_added_and_not_multiplied(last_layer):
    axes = {"flow": ["daf", "sflow"], "covariance": ["code", "constant"]}
    own = {"last_layer": {"scale": [0.1, 0.2, 0.3]}}
    alone = plan(ldaf=axes, risks={"integrator": ["mc", "forward_mc"], "num_points": 64})
    both = plan(ldaf=axes, methods=own, risks={"integrator": ["mc", "forward_mc"], "num_points": 64})
    assert len(alone.posteriors) == 4
    assert len(both.posteriors) == 4 + 3
    # ldaf offers what both integrators need, the other method what one of them needs
    assert len(both.integrations) == 4 * 2 + 3
    assert {p.digest.method: p.axes.keys() for p in both.posteriors}["last_layer"] == {"scale", "objective"}
    for one, two in zip(names_of(alone), names_of(both), strict=True):
        assert set(one) < set(two)


def test_methods_with_the_same_head_share_the_network(last_layer):
    made = plan(
        methods={"deterministic": {}, "last_layer": {}},
        networks={"seed": [0, 1]},
        risks={"integrator": "forward_mc"},
        certificates={"bound": ["kl", "test_set"]},
    )
    heads = [network.config.head.kind for network in made.networks]
    assert sorted(heads) == ["flow", "flow", "linear", "linear"]
    shared = {}
    for digest in made.digests:
        shared.setdefault(digest.network, []).append(digest.method)
    assert sorted(shared.values()) == [["deterministic", "last_layer"]] * 2 + [["ldaf"]] * 2
    # Each method has a mean classifier of its own: its digest says which.
    assert len({digest.mean for digest in made.means}) == len(made.means) == 6


def test_what_an_axis_does_not_concern_is_planned_once():
    made = plan(
        ldaf={
            "flow": ["daf", "sflow"],
            "objective": ["cross_entropy", "unfitted"],
            "fit_points": [64, 128],
            "covariance": ["code", "scaled"],
            "scale": [0.1, 0.2],
        },
        methods={"deterministic": {}},
        certificates={"bound": ["kl", "test_set"]},
    )
    assert [network.config.head.kind for network in made.networks] == ["flow", "flow", "linear"]
    # fitted with either number of points, or not fitted at all; `scaled` finds its own scale
    assert len(made.posteriors) == 2 * 3 * 3
    unfitted = next(p for p in made.posteriors if p.classifier == "prior")
    assert unfitted.axes["fit_points"] is None
    assert [p.axes["scale"] for p in made.posteriors if p.axes["covariance"] == "scaled"] == [None] * 6


def test_unfitted_posteriors_are_about_the_prior_and_get_the_bounds_on_a_fixed_distribution_too():
    made = plan(
        ldaf={"objective": ["cross_entropy", "unfitted"]},
        certificates={"bound": ["kl", "catoni", "chernoff", "test_set"]},
    )
    assert [posterior.classifier for posterior in made.posteriors] == ["posterior", "prior"]

    def bounds(kind, integrator=None):
        return [bound.name for bound in made.bounds(kind, integrator)]

    assert bounds("posterior", "mc") == ["kl", "catoni"]
    assert bounds("prior", "mc") == ["kl", "catoni", "chernoff"]
    assert bounds("mean") == ["chernoff", "test_set"]
    # Bounds that count errors need a 0 or 1 for every datum: one draw each.
    assert bounds("prior", "one_draw") == ["test_set"]
    assert bounds("posterior", "one_draw") == []


def test_what_no_bound_is_about_is_not_integrated():
    made = plan(ldaf={"objective": ["cross_entropy", "unfitted"]}, certificates={"bound": "chernoff"})
    assert {integration.posterior.classifier for integration in made.integrations} == {"prior"}
    assert plan().means == ()
    assert plan(certificates={"bound": "test_set"}).integrations == ()


def test_every_integrator_is_planned_for_the_methods_that_offer_what_it_needs(last_layer):
    made = plan(
        ldaf={"objective": ["cross_entropy", "unfitted"]},
        methods={"last_layer": {}},
        risks={"integrator": list(INTEGRATORS), "num_points": 64},
        certificates={"bound": list(BOUNDS)},
    )
    for method in ("ldaf", "last_layer"):
        planned = {one.integrator for one in made.integrations if one.posterior.digest.method == method}
        assert planned == {name for name, entry in INTEGRATORS.items() if entry.needs in METHODS[method].offers}


def test_nothing_is_paid_where_nothing_is_picked():
    made = plan(networks={"seed": [0, 1, 2]}, certificates={"report": "all"})
    assert price(made) == price(made, "mean") == (1, 1)


@pytest.mark.parametrize(
    ("bounds", "events"), [(["kl"], 1), (["kl", "quad", "classic", "kl_exact", "lambda"], 1), (["kl", "catoni"], 2)]
)
def test_the_best_pays_for_every_prior_and_every_integration_that_could_be_picked(bounds, events):
    made = plan(
        ldaf={
            "flow": ["daf", "sflow"], "covariance": ["code", "constant"], "scale": [0.1, 0.2], "fit_points": [64, 128]
        },
        networks={"seed": [0, 1, 2]},
        risks={"integrator": ["mc", "bonferroni", "qmc"], "num_points": [256, 512]},
        certificates={"bound": bounds, "report": "best"},
    )  # fmt: skip
    # 6 networks with 4 covariances each; numbers of points of the fit are free to the bound, but integrated separately
    assert price(made) == (24 * events, 48 * 2)


def test_an_event_of_its_own_raises_the_price_and_an_event_that_is_there_does_not(monkeypatch):
    asked = {"networks": {"seed": [0, 1, 2]}, "certificates": {"report": "best", "bound": ["kl", "new"]}}
    for event, events in ((BOUNDS["kl"].event, 1), ("an event of its own", 2)):
        monkeypatch.setitem(BOUNDS, "new", dataclasses.replace(BOUNDS["kl"], name="new", event=event))
        assert price(plan(**asked)) == (3 * events, 3)


def test_a_fixed_distribution_pays_for_its_own_events_beside_those_of_the_posteriors():
    asked = {"bound": ["kl", "chernoff"], "report": "best"}
    fitted = plan(certificates=asked)
    both = plan(ldaf={"objective": ["cross_entropy", "unfitted"]}, certificates=asked)
    # The prior is one of its own posteriors for `kl`, but the other bound's event may fail on its own.
    assert price(fitted) == (1, 1)
    assert price(both) == (2, 2)


def test_the_price_counts_the_priors_of_all_methods(last_layer):
    made = plan(
        methods={"last_layer": {"scale": [0.1, 0.2, 0.3]}},
        risks={"integrator": ["mc", "forward_mc"], "num_points": 64},
        certificates={"report": "best"},
    )
    assert price(made) == (1 + 3, 2 + 3)


def test_the_best_mean_classifier_pays_for_every_network_once_for_both_bounds():
    made = plan(
        methods={"deterministic": {}},
        networks={"seed": [0, 1, 2, 3]},
        certificates={"bound": ["test_set", "chernoff"], "report": "best"},
    )
    assert price(made, "mean") == (8, 1)


def test_the_mean_classifier_is_certified_once_however_its_digest_is_computed():
    made = plan(ldaf={"tolerance": [None, 0.01, 0.1]}, certificates={"bound": ["kl", "test_set"], "report": "best"})
    assert (len(made.digests), len(made.means)) == (3, 1)
    assert price(made, "mean") == (1, 1)
    assert price(made) == (3, 3)


@pytest.mark.parametrize("report", ["all", "best"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_delta_is_spent_by_what_is_left_to_chance_and_given_to_the_bound_by_what_is_not(integrator, report):
    entry = INTEGRATORS[integrator]
    asked = {"bound": list(BOUNDS), "epsilon": 0.03, "delta": 0.02, "report": report}
    fitting = {**asked, "bound": [name for name in BOUNDS if BOUNDS[name].counts]} if entry.counts else asked
    risks = {"integrator": integrator, "num_points": 64}
    alone = plan(ldaf={"objective": "unfitted"}, risks=risks, certificates=fitting)
    (budget,) = alone.budgets("prior", integrator)
    if not entry.certifies:  # an estimate promises nothing
        assert (budget.epsilon, budget.delta) == (0.03, 0.0)
    else:
        assert (budget.epsilon, budget.delta) == ((0.03, 0.02) if entry.costs_delta else (0.05, 0.0))
        assert budget.total == pytest.approx(0.05)
    # Beside something that spends δ′, a choice between the two may spend no more than both together.
    both = {"integrator": list(dict.fromkeys(["mc", integrator])), "num_points": 64}
    (beside,) = plan(ldaf={"objective": "unfitted"}, risks=both, certificates=asked).budgets("prior", integrator)
    if entry.certifies and report == "best" and not entry.costs_delta:
        assert (beside.epsilon, beside.delta) == (0.03, 0.0)
    else:
        assert (beside.epsilon, beside.delta) == (budget.epsilon, budget.delta)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_a_bound_on_values_spends_no_delta_and_gets_it_for_its_bound(integrator):
    asked = {"bound": ["betting", "split_kl"], "epsilon": 0.03, "delta": 0.02}
    objectives = {"objective": ["cross_entropy", "unfitted"]}
    both = {"integrator": list(dict.fromkeys(["mc", integrator])), "num_points": 64}
    made = plan(ldaf=objectives, risks=both, certificates=asked)
    (budget,) = made.budgets("prior", integrator, "values")
    assert (budget.epsilon, budget.delta) == ((0.05, 0.0) if INTEGRATORS[integrator].certifies else (0.03, 0.0))
    # Alone, it leaves nothing to chance that δ′ would have to cover, so a choice costs no δ′ either.
    alone = plan(ldaf=objectives, certificates={**asked, "bound": "betting", "report": "best"})
    assert [(one.epsilon, one.delta, one.num_integrations) for one in alone.budgets("prior", "mc", "values")] == [
        (0.05, 0.0, 1)
    ]


def test_every_guess_is_an_event_of_its_own_and_a_guess_that_no_bound_uses_costs_nothing():
    for bounds, guesses, events in (
        (["kl"], [0.01, 0.02, 0.03], 1),
        (["catoni"], [0.01], 1),
        (["catoni"], [0.01, 0.02, 0.03], 3),
        (["kl", "catoni", "catoni_grid"], [0.01, 0.010000000001], 4),
    ):
        made = plan(networks={"seed": [0, 1]}, certificates={"bound": bounds, "guess": guesses, "report": "best"})
        assert price(made) == (2 * events, 2)
        found = [bound.guess for bound in made.bounds("posterior", "mc") if bound.guess is not None]
        assert found == (guesses if "catoni" in bounds else [])


def test_a_bound_on_values_has_an_event_for_each_integration_and_a_bound_on_the_risk_one_for_all():
    risks = {"integrator": ["mc", "bonferroni", "one_draw", "qmc"], "num_points": [64, 128]}
    for bound, events in (("chernoff", 1), ("betting", 2 + 1 + 1), ("split_kl", 1)):
        made = plan(ldaf={"objective": "unfitted"}, risks=risks, certificates={"bound": bound, "report": "best"})
        assert price(made, "prior")[0] == events


@pytest.mark.parametrize(
    ("bounds", "guarantees"),
    [(["kl"], 1), (["kl", "classic"], 1), (["split_kl"], 1), (["kl", "split_kl"], 2), (["betting", "split_kl"], 1)],
)
def test_the_ends_of_a_risk_and_of_its_excess_are_two_guarantees_of_one_integration(bounds, guarantees):
    """They are computed from the same draws, but either may fail without the other."""
    risks = {"integrator": ["mc", "bonferroni"], "num_points": [64, 128]}
    made = plan(ldaf={"objective": "unfitted"}, risks=risks, certificates={"bound": bounds, "report": "best"})
    assert price(made, "prior")[1] == 2 * guarantees


def test_what_certifies_nothing_is_never_picked_and_costs_nothing():
    made = plan(
        ldaf={"scale": [0.1, 0.2]}, risks={"integrator": "qmc", "num_points": 64}, certificates={"report": "best"}
    )
    assert price(made) == (1, 1)


def test_a_count_of_errors_is_an_event_beside_the_gibbs_risk_of_the_same_prior():
    asked = {"bound": ["chernoff", "test_set"], "report": "best"}
    prior = {"ldaf": {"objective": "unfitted"}, "certificates": asked}
    for integrators, events in ((["mc"], 1), (["one_draw"], 1), (["mc", "one_draw"], 2)):
        assert price(plan(risks={"integrator": integrators}, **prior), "prior")[0] == events


def test_every_epsilon_is_a_statement_of_its_own():
    made = plan(networks={"seed": [0, 1]}, certificates={"epsilon": [0.01, 0.05], "report": "best"})
    assert [budget.epsilon_each for budget in made.budgets("posterior")] == [0.005, 0.025]


def test_widening_a_suite_keeps_the_names_of_what_was_there():
    small = plan(networks={"seed": [0]})
    large = plan(ldaf={"covariance": ["code", "paper"]}, networks={"seed": [0, 1]}, methods={"deterministic": {}})
    assert {network.identity for network in small.networks} < {network.identity for network in large.networks}
    for one, two in zip(names_of(small), names_of(large), strict=True):
        assert set(one) < set(two)


@pytest.mark.parametrize(
    "change",
    [{"bound": list(BOUNDS)}, {"epsilon": [0.001, 0.2]}, {"delta": 0.2}, {"report": "best"}],
    ids=lambda change: next(iter(change)),
)
def test_bounds_confidence_and_selection_cost_no_integration_but_make_another_plan(change):
    before, after = plan(), plan(certificates=change)
    assert names_of(after) == names_of(before)
    assert after.identity != before.identity


def test_whatever_changes_a_posterior_changes_its_name():
    changes = [
        {}, {"tolerance": 0.01}, {"covariance": "paper"}, {"scale": 0.2}, {"objective": "unfitted"}, {"fit_points": 64},
        {"optimizer": "sgd"}, {"learning_rate": 0.5}, {"fit_epochs": 2}, {"max_alternations": 3}, {"fit_batch": 10},
        {"fit_epsilon": 0.2}, {"flow": "sflow"}, {"horizon": 2.0}, {"num_nodes": 6}, {"covariance": "scaled"},
        {"covariance": "scaled", "rise": 0.1}, {"mean": "fitted"}, {"objective": "zero_one"},
        {"objective": "zero_one", "zero_one_points": 32}, {"unit": "logits"},
    ]  # fmt: skip
    assert {name for change in changes for name in change} == set(METHODS["ldaf"].axes.model_fields) - {"also"}
    plans = [plan(ldaf=change) for change in changes]
    plans += [plan(networks={"seed": 1}), plan(data={"split_seed": 1}), plan(data={"certificate": 0.3})]
    assert len({made.posteriors[0].identity for made in plans}) == len(plans)
    assert len({made.integrations[0].identity for made in plans}) == len(plans)


def test_the_prior_of_a_posterior_does_not_depend_on_the_fit():
    made = plan(ldaf={"fit_points": [64, 128], "objective": ["cross_entropy", "unfitted"], "scale": [0.1, 0.2]})
    priors = {}
    for posterior in made.posteriors:
        priors.setdefault(posterior.prior_identity, []).append(posterior)
    assert [len(posteriors) for posteriors in priors.values()] == [3, 3]


def test_a_plan_made_without_the_data_names_the_same_networks():
    dataset = load("digits")
    for network in plan(data={"certificate": [0.2, 0.4]}).networks:
        assert network.splits.hash("prior") == network.config.splits(dataset).hash("prior")
    assert dataset.summary == summarize("digits")


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.shape])
def test_summaries_of_known_data_fit_their_splits(name):
    summary = summarize(name)
    config = NetworkConfig(
        dataset=name, split={"certificate": 0.2}, backbone="tinynet", head=LinearHead(), recipe="tiny"
    )
    splits = config.splits(summary)
    assert sum(len(getattr(splits, part)) for part in ("prior", "certificate", "test")) == len(summary)


def test_a_plan_is_described_by_json_that_makes_it_again():
    made = plan(methods={"deterministic": {}}, certificates={"bound": ["kl", "test_set"], "report": "best"})
    described = made.describe()
    assert json.loads(json.dumps(described)) == described
    again = make_plan(Suite.model_validate(described["suite"]), summarize("digits"))
    assert again.describe() == described
    assert again.identity == made.identity


def test_convergence_is_shown_for_the_first_posterior_of_each_network_of_the_first_seed():
    made = plan(
        ldaf={"flow": ["daf", "sflow"], "covariance": ["code", "paper"]},
        networks={"seed": [0, 1]},
        convergence={"num_points": 16},
    )
    shown = [posterior for posterior in made.posteriors if made.convergence_of(posterior)]
    assert [(p.seed, p.axes["covariance"]) for p in shown] == [(0, "code")] * 2
    assert len({made.convergence_of(p) for p in shown}) == 2
    assert plan().convergence_of(plan().posteriors[0]) is None


def test_an_axis_that_is_added_later_keeps_the_names_of_posteriors():
    one = plan(ldaf={"covariance": "code"}).posteriors[0]

    class NewPrior(type(one.prior)):
        sparkle: float = 0.5

    class NewFit(type(one.fit)):
        glitter: int = 3

    newer = dataclasses.replace(one, prior=NewPrior(**one.prior.model_dump()), fit=NewFit(**one.fit.model_dump()))
    assert (newer.identity, newer.prior_identity) == (one.identity, one.prior_identity)
    other = dataclasses.replace(newer, prior=NewPrior(**one.prior.model_dump(), sparkle=0.7))
    assert other.prior_identity != one.prior_identity
    assert other.identity != one.identity


def test_further_grids_are_planned_beside_the_first_and_inherit_its_axes():
    """`also` of a method: what a row does not name it has from the first grid; what both have is planned once."""
    first = {"flow": ["daf", "sflow"], "num_nodes": 4, "covariance": ["code", "scaled"], "fit_points": 64}
    rows = [{"flow": "daf", "covariance": "code", "optimizer": "sgd"}, {"flow": "daf", "covariance": "code"}]

    def plan(**more):
        return make_plan(Suite.model_validate({**SMALL, "methods": {"ldaf": {**first, **more}}}), summarize("digits"))

    alone, both = plan(), plan(also=rows)
    added = [one for one in both.posteriors if one not in alone.posteriors]
    assert set(alone.posteriors) < set(both.posteriors)
    assert len(added) == 1
    assert added[0].fit.optimizer == "sgd"
    assert added[0].fit.fit_points == 64
    assert [one.identity for one in both.networks] == [one.identity for one in alone.networks]
    assert num_integrations_at_most(both.suite) == num_integrations_at_most(alone.suite) * 3 / 2
    # What plan.json has is the same suite again; without further grids it says nothing about them.
    assert make_plan(Suite.model_validate(both.describe()["suite"]), summarize("digits")).identity == both.identity
    assert "also" not in alone.describe()["suite"]["methods"]["ldaf"]
    price, paid = recount(both.describe()["suite"]), both.describe()["budget"]["paid"]
    assert (price.stochastic_events, price.integrations) == (
        paid["stochastic"]["num_events"], paid["stochastic"]["num_integrations"],
    )  # fmt: skip
