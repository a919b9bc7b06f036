"""What a certificate charges, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from ldaf_bench.theory.bounds import BOUNDS, FIXED_CLASSIFIER, bound
from ldaf_bench.theory.certificate import Budget, certify
from ldaf_bench.theory.gaussian import kl_divergence
from ldaf_bench.theory.integrate import CERTIFYING, INTEGRATORS, integrate
from tests.cases import gaussian, logits_problem

prior = gaussian(9, seed=1)
posterior = gaussian(9, seed=2)


def of(gauss, m=200, seed=1, **change):
    """A problem that is said to come from a Gaussian."""
    return replace(logits_problem(m, 4, seed, **change), gaussian=gauss)


data = of(prior)
KL = float(kl_divergence(posterior, prior))
stochastic = sorted(set(BOUNDS) - FIXED_CLASSIFIER)


@pytest.mark.parametrize("name", stochastic)
@pytest.mark.parametrize("integrator", sorted(set(INTEGRATORS) - {"forward_mc"}))
def test_certificate_is_the_bound_at_the_guaranteed_risk(name, integrator):
    budget = Budget(0.05, 0.01)
    risk = integrate(integrator, of(posterior), num_points=128, delta=budget.delta_each)
    certificate = certify(name, risk, prior, budget)
    used = risk.upper if integrator in CERTIFYING else float(risk.value)
    assert certificate.value == min(1.0, float(bound(name, used, KL, 200, 0.05)))
    assert certificate.certified == (integrator in CERTIFYING)
    assert certificate.num_data == 200
    assert certificate.kl == KL
    assert certificate.delta == risk.delta


def test_m_is_the_number_of_integrated_data_and_no_argument():
    budget = Budget(0.05, 0.01)
    half = of(prior, 100)
    assert certify("kl", integrate("bonferroni", half), prior, budget).num_data == 100
    with pytest.raises(TypeError):
        certify("kl", integrate("bonferroni", half), prior, budget, num_data=60_000)


def test_integration_error_is_charged():
    budget = Budget(0.05, 0.01)
    few, many = (integrate("mc", data, num_points=q, delta=0.01) for q in (2, 2000))
    shift = few._replace(value=many.value, per_datum=many.per_datum)
    assert certify("kl", shift, prior, budget).value > certify("kl", many, prior, budget).value + 0.01


@pytest.mark.parametrize("name", stochastic)
def test_choice_among_priors_is_paid_in_both_currencies(name):
    alone, chosen = Budget(0.05, 0.01), Budget(0.05, 0.01, num_choices=40)
    unpaid = integrate("mc", data, num_points=128, delta=alone.delta_each)
    with pytest.raises(ValueError, match=r"risk must be integrated at delta ≤ 0.00025, but is at 0.01"):
        certify(name, unpaid, prior, chosen)
    paid = integrate("mc", data, num_points=128, delta=chosen.delta_each)
    assert paid.upper > unpaid.upper
    certificate = certify(name, paid, prior, chosen)
    assert certificate.value == min(1.0, float(bound(name, paid.upper, 0.0, 200, 0.05 / 40)))
    assert certificate.value > certify(name, unpaid, prior, alone).value


def test_vacuous_bounds_are_one():
    few = of(posterior, 2, seed=3)
    assert certify("classic", integrate("bonferroni", few), prior, Budget(0.05, 0.01)).value == 1.0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: certify("kl", integrate("bonferroni", of(None)), prior, Budget(0.1, 0.1)),
            "risk must be that of a known posterior",
        ),
        (lambda: Budget(0.0, 0.1), "epsilon must be in the open interval"),
        (lambda: Budget(0.1, 1.0), "delta must be in the open interval"),
        (lambda: Budget(0.6, 0.6), r"epsilon \+ delta must be below 1"),
        (lambda: Budget(0.1, 0.1, 0), "num_choices must be an integer of at least 1"),
        (
            lambda: certify("nope", integrate("bonferroni", data), prior, Budget(0.1, 0.1)),
            "bound must be one of",
        ),
        (lambda: certify("test_set", integrate("bonferroni", data), prior, Budget(0.1, 0.1)), "for stochastic"),
        (
            lambda: certify("kl", integrate("qmc", data, "cross_entropy"), prior, Budget(0.1, 0.1)),
            "risk must be of the 0-1 loss",
        ),
    ],
)
def test_what_cannot_be_certified_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_float32_risks_still_give_float64_certificates():
    half = of(prior, dtype=torch.float32)
    one, two = (certify("kl", integrate("bonferroni", p), prior, Budget(0.05, 0.01)).value for p in (data, half))
    assert one == pytest.approx(two, abs=1e-5)
