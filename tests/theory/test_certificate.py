"""What a certificate charges, and what it refuses."""

from typing import get_args

import pytest
import torch

from ldaf_bench.theory.bounds import BOUNDS, Classifier
from ldaf_bench.theory.certificate import Budget, certify, risk_to_certify
from ldaf_bench.theory.integrate import INTEGRATORS, Integration, integrate
from tests.cases import few_points_for, gaussian, logits_problem, with_draws

prior = gaussian(9, seed=1)
posterior = gaussian(9, seed=2)
data = with_draws(logits_problem(200, 4, seed=1))
KL = posterior.kl_from(prior)
CLASSIFIERS = get_args(Classifier)
every_integrator = pytest.mark.parametrize("integrator", INTEGRATORS.values(), ids=list(INTEGRATORS))
on_risk = pytest.mark.parametrize(
    "bound", [bound for bound in BOUNDS.values() if bound.takes == "risk"], ids=lambda bound: bound.name
)
stochastic = pytest.mark.parametrize(
    "bound",
    [bound for bound in BOUNDS.values() if "posterior" in bound.about and bound.takes == "risk"],
    ids=lambda bound: bound.name,
)


def integrated(entry, problem=data):
    return integrate(entry.name, problem, num_points=few_points_for(entry))


@stochastic
@every_integrator
def test_certificate_is_the_bound_at_the_guaranteed_risk(bound, integrator):
    budget = Budget(0.05, 0.01)
    integration = integrated(integrator)
    risk = risk_to_certify(integrator, integration, budget.delta_each)
    used = integrator.upper(integration, 0.01) if integrator.certifies else float(integration.value)
    assert risk == used
    certificate = certify(bound, "posterior", risk, KL, 200, budget)
    assert float(certificate) == min(1.0, float(bound(used, KL, 200, 0.05)))


@on_risk
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_bound_is_used_for_what_it_is_about_and_for_nothing_else(bound, classifier):
    budget = Budget(0.05, 0.01, num_events=3)
    if classifier in bound.about:
        value = certify(bound, classifier, 0.1, 0.0, 200, budget)
        assert float(value) == min(1.0, float(bound(0.1, 0.0, 200, 0.05 / 3)))
    else:
        with pytest.raises(ValueError, match=f"bound must be one about a {classifier}, but is '{bound.name}'"):
            certify(bound, classifier, 0.1, 0.0, 200, budget)


@on_risk
def test_certificates_of_many_are_those_of_each(bound):
    risk = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64)
    kl = torch.tensor([0.0, 1.0, 20.0, 1e4], dtype=torch.float64) if "posterior" in bound.about else 0 * risk
    (kind, *_), budget = sorted(bound.about), Budget(0.05, 0.01)
    each = [float(certify(bound, kind, float(r), float(k), 100, budget)) for r, k in zip(risk, kl, strict=True)]
    assert certify(bound, kind, risk, kl, 100, budget).tolist() == each


@stochastic
def test_integration_error_is_charged(bound):
    """The same share of errors is worth more if it comes from more draws."""
    mc, budget = INTEGRATORS["mc"], Budget(0.05, 0.01)
    share = torch.full((200,), 0.1, dtype=torch.float64)
    few, many = (
        float(certify(bound, "posterior", risk_to_certify(mc, Integration(share, draws), 0.01), KL, 200, budget))
        for draws in (torch.full((200,), 2), torch.full((200,), 2000))
    )
    assert few > many + 0.005


@stochastic
def test_choice_is_paid_in_both_currencies(bound):
    alone, chosen = Budget(0.05, 0.01), Budget(0.05, 0.01, num_events=40, num_integrations=30)
    assert (chosen.epsilon_each, chosen.delta_each) == (0.05 / 40, 0.01 / 30)
    assert alone.total == chosen.total == 0.05 + 0.01
    mc = INTEGRATORS["mc"]
    integration = integrated(mc)
    unpaid, paid = (risk_to_certify(mc, integration, budget.delta_each) for budget in (alone, chosen))
    assert paid > unpaid
    certificate = certify(bound, "posterior", paid, 0.0, 200, chosen)
    assert float(certificate) == min(1.0, float(bound(paid, 0.0, 200, 0.05 / 40)))
    assert certificate > certify(bound, "posterior", paid, 0.0, 200, alone)
    assert certificate > certify(bound, "posterior", unpaid, 0.0, 200, chosen)


@stochastic
def test_vacuous_bounds_are_one(bound):
    assert float(certify(bound, "posterior", 1.0, 1e3, 2, Budget(0.05, 0.01))) == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Budget(0.0, 0.1), "epsilon must be in the open interval"),
        (lambda: Budget(0.1, 1.0), "delta must be in"),
        (lambda: Budget(0.1, -0.1), "delta must be in"),
        (lambda: Budget(0.1, float("nan")), "delta must be in"),
        (lambda: Budget(0.6, 0.6), r"epsilon \+ delta must be below 1"),
        (lambda: Budget(0.1, 0.1, 0), "num_events must be an integer of at least 1"),
        (lambda: Budget(0.1, 0.1, 1, 0), "num_integrations must be an integer of at least 1"),
        (lambda: certify(BOUNDS["chernoff"], "prior", 0.1, 1.0, 100, Budget(0.1, 0.1)), "kl must be 0"),
    ],
)
def test_what_cannot_be_certified_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_float32_risks_still_give_float64_certificates():
    bonferroni, budget = INTEGRATORS["bonferroni"], Budget(0.05, 0.01)
    half = logits_problem(200, 4, seed=1, dtype=torch.float32)
    one, two = (
        certify(
            BOUNDS["kl"], "posterior", risk_to_certify(bonferroni, integrated(bonferroni, p), 0.01), 0.0, 200, budget
        )
        for p in (data, half)
    )
    assert two.dtype == torch.float64
    assert float(one) == pytest.approx(float(two), abs=1e-5)
