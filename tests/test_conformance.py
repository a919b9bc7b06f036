"""Every bound applies exactly where its words fit: BOUNDS × METHODS × INTEGRATORS × classifiers."""

import dataclasses
from typing import get_args

import pytest
import torch
import yaml
from pydantic import ValidationError

from ldaf_bench.data.datasets import summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import UNFITTED
from ldaf_bench.plan import make_plan
from ldaf_bench.run import main
from ldaf_bench.suite import Suite
from ldaf_bench.theory.bounds import BOUNDS, Classifier
from ldaf_bench.theory.certificate import Budget, certify, evidence, fits, spends_delta
from ldaf_bench.theory.integrate import INTEGRATORS, integrate
from tests.cases import few_points_for, logits_problem, rng, with_draws

PAC_BAYES = {(kind, risk) for kind in ("posterior", "prior") for risk in ("risk", "shared draws")}
WHERE = {
    **dict.fromkeys(("kl_exact", "kl", "quad", "lambda", "classic", "catoni", "catoni_grid"), PAC_BAYES),
    "split_kl": PAC_BAYES,  # and a mean classifier beside it
    "chernoff": {("prior", "risk"), ("prior", "shared draws"), ("mean", "errors")},
    "test_set": {("prior", "one draw"), ("mean", "errors")},
    # Values of draws that all data share are not independent.
    "betting": {("prior", "risk"), ("prior", "one draw"), ("mean", "errors")},
}
"""For each bound, which classifier it is about and what it may rest on."""
NEEDS_A_MEAN = {"split_kl"}
NO_MEAN = "ldaf without a mean classifier"
KINDS = get_args(Classifier)


def rests_on(integrator):
    if integrator is None:
        return "errors"
    entry = INTEGRATORS[integrator]
    return "one draw" if entry.counts else "shared draws" if entry.needs == "shared" else "risk"


def applies(bound, kind, integrator, has_mean):
    """The table above, in words of its own."""
    return (kind, rests_on(integrator)) in WHERE[bound] and (has_mean or bound not in NEEDS_A_MEAN)


def cases():
    yield from ((kind, name) for kind in ("posterior", "prior") for name in INTEGRATORS)
    yield "mean", None


def test_every_bound_is_in_the_table():
    assert WHERE.keys() == BOUNDS.keys()
    assert {kind for where in WHERE.values() for kind, _ in where} == set(KINDS)


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("has_mean", [True, False])
def test_a_bound_fits_where_the_table_says(bound, has_mean):
    for kind, integrator in cases():
        entry = None if integrator is None else INTEGRATORS[integrator]
        assert fits(BOUNDS[bound], kind, entry, has_mean) == applies(bound, kind, integrator, has_mean)


PROBLEM = with_draws(logits_problem(60, 4, seed=3))
FOUND = {name: integrate(name, PROBLEM, num_points=few_points_for(entry)) for name, entry in INTEGRATORS.items()}
MISTAKES = torch.rand(60, generator=rng(4)) < 0.2


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=list(BOUNDS))
@pytest.mark.parametrize(("kind", "integrator"), list(cases()))
def test_a_bound_that_fits_certifies_and_increases_with_its_price(bound, kind, integrator):
    if not applies(bound.name, kind, integrator, True):
        return
    entry = None if integrator is None else INTEGRATORS[integrator]
    values = MISTAKES.double() if integrator is None else FOUND[integrator].per_datum
    found = type(FOUND["mc"])(values, torch.zeros(60, dtype=torch.int64)) if integrator is None else FOUND[integrator]
    delta = 0.01 if spends_delta(bound.takes, entry) else 0.0
    taken = evidence(bound, entry, [found], MISTAKES, delta)
    alone, chosen = (float(certify(bound, kind, taken, 0.0, 60, Budget(0.1, delta, k))) for k in (1, 10))
    assert float(values.mean()) - 0.03 < alone <= chosen <= 1.0
    many = certify(bound, kind, torch.stack([taken, taken]), torch.zeros(2).double(), 60, Budget(0.1, delta))
    assert many.tolist() == [alone, alone]
    if bound.mixes:  # of seeds that are all alike: the draws count more often, the values not
        mixture = evidence(bound, entry, [found, found], MISTAKES, delta)
        assert mixture.shape == taken.shape
        assert float(certify(bound, kind, mixture, 0.0, 60, Budget(0.1, delta))) <= alone + 1e-12


def suite_of(method, bound, integrator, objectives):
    content = {"objective": objectives} if objectives else {}
    return {
        "suite": "one",
        "data": {"dataset": "digits"},
        "networks": {"backbone": "tinynet", "recipe": "tiny"},
        "methods": {method: content},
        "risks": {"integrator": integrator, "num_points": 64},
        "certificates": {"bound": bound, "report": "best"},
    }


def entry_of(method):
    return dataclasses.replace(METHODS["ldaf"], name=method, logits=None) if method == NO_MEAN else METHODS[method]


@pytest.mark.parametrize("method", [*METHODS, NO_MEAN])
def test_a_suite_uses_every_bound_where_it_applies_and_is_refused_where_it_applies_nowhere(
    method, monkeypatch, tmp_path, capsys
):
    entry, path = entry_of(method), tmp_path / "suite.yaml"
    monkeypatch.setitem(METHODS, method, entry)
    has_mean = entry.logits is not None
    objectives = [None]
    if entry.prior is not None:
        fitted = next(iter(entry.axes().objective))
        objectives = [[UNFITTED], [fitted]] if fitted != UNFITTED else [[UNFITTED]]
    refused = {}
    for bound in BOUNDS:
        for integrator, integrated in INTEGRATORS.items():
            for some in objectives:
                kinds = {("mean", None)} if has_mean else set()
                if some is not None and integrated.needs in entry.offers:
                    kinds.add(("prior" if some == [UNFITTED] else "posterior", integrator))
                used = {kind for kind, how in kinds if applies(bound, kind, how, has_mean)}
                if some is not None and integrated.needs not in entry.offers:
                    used = set()  # an integrator that fits no method is refused, whatever the bound
                content = suite_of(method, bound, integrator, some)
                try:
                    plan = make_plan(Suite.model_validate(content), summarize("digits"))
                except ValidationError:
                    assert not used, (bound, integrator, some)
                    refused.setdefault(bound, content)
                    continue
                assert used, (bound, integrator, some)
                found = {one.posterior.classifier for one in plan.integrations if plan.bounds_of(one)}
                assert found | ({"mean"} if plan.means else set()) == used
    assert refused
    for content in refused.values():
        path.write_text(yaml.safe_dump(content))
        assert main([str(path), "--dry-run", "--store", str(tmp_path / "store")]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "certificates.bound: " in said or "needs" in said
