"""The bounds' provable order, monotonicity and inverses; and of every entry, whether its words are true."""

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.bounds import (
    BETAS,
    BOUNDS,
    Classifier,
    best_beta,
    best_lambda,
    binary_kl,
    catoni_at,
    catoni_value,
    complexity,
    kl_inverse,
    kl_inverse_of,
    lambda_value,
    log_xi,
)

risks = st.floats(0, 1)
divergences = st.floats(0, 100)
counts = st.integers(1, 100_000)
levels = st.floats(1e-6, 0.5)
every_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=list(BOUNDS))
ON_RISK = [bound for bound in BOUNDS.values() if bound.takes == "risk"]
on_risk = pytest.mark.parametrize("bound", ON_RISK, ids=lambda bound: bound.name)
"""Bounds on the mean risk. The others have tests of their own below and in test_betting.py."""


def value(bound, risk, kl, m, epsilon):
    """The bound, for arguments that it may be given."""
    risk = round(risk * m) / m if bound.counts else risk
    return float(bound(risk, kl if "posterior" in bound.about else 0.0, m, epsilon))


def taken(bound, risk, m):
    """What the bound takes, for data that all have this risk; the mean classifier never errs."""
    return {"risk": risk, "values": torch.full((m,), risk), "excess": torch.tensor([0.0, risk, 0.0])}[bound.takes]


@given(risks, divergences, counts, levels)
def test_proved_order(risk, kl, m, epsilon):
    v = {bound.name: value(bound, risk, kl, m, epsilon) for bound in ON_RISK}
    slack = 1 + 1e-9
    assert v["catoni"] >= float(kl_inverse(risk, (kl + math.log(1 / epsilon)) / m)) / slack
    assert v["catoni_grid"] >= float(kl_inverse(risk, (kl + math.log(len(BETAS) / epsilon)) / m)) / slack
    assert v["kl_exact"] <= v["kl"] * slack
    assert v["kl"] <= v["quad"] * slack
    assert v["kl"] <= v["classic"] * slack
    assert v["quad"] == pytest.approx(v["lambda"], rel=1e-9)
    # The former counts errors.
    assert v["test_set"] <= float(BOUNDS["chernoff"](round(risk * m) / m, 0.0, m, epsilon)) * slack


@given(risks, divergences, counts, levels)
def test_lambda_star_minimizes_the_lambda_bound(risk, kl, m, epsilon):
    c = complexity(kl, m, epsilon)
    grid = torch.linspace(1e-4, 2 - 1e-4, 2001, dtype=torch.float64)
    best = lambda_value(risk, c, best_lambda(risk, c))
    assert (lambda_value(torch.full_like(grid, risk), c.expand_as(grid), grid) >= best * (1 - 1e-12)).all()
    assert 0 < best_lambda(risk, c) <= 1


@every_bound
def test_every_bound_says_what_it_is_about_and_on_which_event_it_rests(bound):
    assert BOUNDS[bound.name] is bound
    assert bound.about
    assert bound.about <= set(get_args(Classifier))
    assert "posterior" not in bound.about or "prior" in bound.about, "A prior is one of its own posteriors."
    assert bound.event


@on_risk
@given(risk=risks, other=risks, kl=divergences, more=divergences, m=counts, epsilon=levels)
def test_monotone_in_every_argument_and_above_the_risk(bound, risk, other, kl, more, m, epsilon):
    low, high = sorted((risk, other))
    base = value(bound, low, kl, m, epsilon)
    slack = 1e-9 * (1 + base)
    assert value(bound, high, kl, m, epsilon) >= base - slack
    assert value(bound, low, kl + more, m, epsilon) >= base - slack
    # A guess fixes β for one m and one ε only: another β may be the better one.
    assert bound.at is not None or value(bound, low, kl, m, epsilon / 2) >= base - slack
    if not bound.counts:  # a finer m rounds errors differently
        assert base >= low - slack
        if m >= 8 and bound.at is None:
            assert value(bound, low, kl, 4 * m, epsilon) <= base + slack


@on_risk
def test_values_of_many_are_those_of_each(bound):
    risk = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    kl = torch.tensor([0.0, 0.5, 2.0, 30.0], dtype=torch.float64) if "posterior" in bound.about else 0 * risk
    each = [float(bound(float(r), float(k), 40, 0.05)) for r, k in zip(risk, kl, strict=True)]
    assert bound(risk, kl, 40, 0.05).tolist() == each
    assert bound(risk, kl, 40, 0.05).dtype == torch.float64


@on_risk
@pytest.mark.parametrize(("m", "epsilon"), [(1, 0.3), (20, 0.05), (300, 0.001)])
def test_no_bound_is_better_than_the_best_one_on_a_fixed_classifier(bound, m, epsilon):
    """Clopper and Pearson's is the smallest upper limit there is that does not fall with the errors."""
    errors = np.arange(m + 1)
    smallest = np.where(errors < m, scipy.stats.beta.ppf(1 - epsilon, errors + 1, np.maximum(m - errors, 1)), 1.0)
    found = bound(torch.from_numpy(errors / m), torch.zeros(m + 1), m, epsilon).clamp(max=1.0)
    assert (found.numpy() >= smallest * (1 - 1e-9)).all()


EVENTS = sorted({bound.event for bound in ON_RISK})


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("m", [15, 150])
def test_bounds_of_one_event_fail_together_no_more_often_than_epsilon(event, m):
    """For a fixed classifier, exactly: the errors are binomial."""
    epsilon, errors = 0.1, np.arange(m + 1)
    sharing = [bound for bound in ON_RISK if bound.event == event]
    values = [bound(torch.from_numpy(errors / m), torch.zeros(m + 1), m, epsilon).numpy() for bound in sharing]
    for risk in np.linspace(0.01, 0.99, 50):
        fails = np.min(values, axis=0) < risk
        assert scipy.stats.binom.pmf(errors, m, risk)[fails].sum() <= epsilon + 1e-12


def test_bounds_of_different_proofs_are_different_events():
    events = {name: bound.event for name, bound in BOUNDS.items()}
    events["catoni at another guess"] = catoni_at(0.0500000000001).event
    apart = ("kl", "catoni", "catoni at another guess", "catoni_grid", "test_set", "betting", "split_kl")
    for one, other in itertools.combinations(apart, 2):
        assert events[one] != events[other]


@given(st.floats(1e-9, 1 - 1e-9), st.floats(0, 1))
def test_the_inverse_undoes_the_divergence(r, share):
    p = min(r + share * (1 - r), 1 - 1e-9)
    # Where kl is flat, its value fixes p only up to √(rounding of the value).
    assert float(kl_inverse(r, binary_kl(r, max(r, p)))) == pytest.approx(max(r, p), rel=1e-7, abs=2e-8)


@given(risks, st.floats(1e-12, 5))
def test_inverse_returns_the_outer_end_of_its_bracket(r, c):
    upper = float(kl_inverse(r, c))
    assert upper >= r
    assert upper == 1.0 or float(binary_kl(r, upper)) >= c
    inside = r + (upper - r) * (1 - 1e-6)
    assert float(binary_kl(r, inside)) <= c * (1 + 1e-9) + 1e-15


def test_inverse_is_vectorized():
    r, c = torch.rand(50).double(), torch.rand(50).double() / 10
    single = torch.stack([kl_inverse(float(a), float(b)) for a, b in zip(r, c, strict=True)])
    assert torch.equal(kl_inverse(r, c), single)
    assert kl_inverse(r[:, None], c).shape == (50, 50)


@pytest.mark.parametrize("m", [1, 2, 8, 100, 3000])
def test_xi_equals_its_sum_and_is_below_two_roots(m):
    k = np.arange(m + 1)
    truth = np.sum(scipy.stats.binom.pmf(k, m, k / m))
    assert math.exp(log_xi(m)) == pytest.approx(truth, rel=1e-7)
    assert math.exp(log_xi(m)) >= truth
    assert math.exp(log_xi(m)) <= 2 * math.sqrt(m) * (1 + 1e-7)


def test_xi_at_ten_thousand_is_126():
    assert math.exp(log_xi(10_000)) == pytest.approx(126, abs=0.5)


@given(st.integers(0, 300), st.integers(1, 300), levels)
def test_clopper_pearson_has_the_level_it_says(k, m, epsilon):
    k = min(k, m)
    p = float(BOUNDS["test_set"](k / m, 0.0, m, epsilon))
    if k == m:
        assert p == 1.0
    else:
        assert scipy.stats.binom.cdf(k, m, p) == pytest.approx(epsilon, rel=1e-6)


GUESSES = st.floats(1e-9, 1 - 1e-9)


@given(GUESSES, counts, levels)
def test_beta_minimizes_catonis_bound_at_the_guess_and_a_divergence_of_one_half(guess, m, epsilon):
    """There the bound is kl⁻¹ itself, and no other β is better."""
    least = float(kl_inverse(guess, (0.5 + math.log(1 / epsilon)) / m))
    found = float(catoni_at(guess)(guess, 0.5, m, epsilon))
    beta = best_beta(guess, m, epsilon)
    if 1e-6 < beta < 50:
        assert found == pytest.approx(least, rel=1e-6)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert float(catoni_value(guess, 0.5, m, epsilon, beta * factor)) >= least * (1 - 1e-9)


@given(risks, GUESSES, counts, levels)
def test_whatever_the_guess_catoni_is_not_below_chernoff(risk, guess, m, epsilon):
    """At KL = 0 no β can be better than the best one, which needs to be known beforehand."""
    assert float(catoni_at(guess)(risk, 0.0, m, epsilon)) >= float(BOUNDS["chernoff"](risk, 0.0, m, epsilon)) * (
        1 - 1e-9
    )


def test_catoni_at_a_guess_has_the_published_values():
    """MATH.md, in percent at m = 10⁴, r = 7 %, KL = 1, ε = 0.01."""
    asked = 0.07, 1.0, 10_000, 0.01
    found = {factor: round(100 * float(catoni_at(0.07 * factor)(*asked)), 2) for factor in (1, 0.5, 2, 3)}
    assert found == {1: 7.89, 0.5: 7.92, 2: 7.94, 3: 8.00}
    assert [round(100 * float(BOUNDS[name](*asked)), 2) for name in ("catoni_grid", "kl_exact")] == [8.16, 8.23]


@every_bound
def test_only_a_bound_that_rests_on_a_guess_takes_one(bound):
    assert (bound.guess is None) == (bound.at is None)
    each = bound.each([0.1, 0.2])
    if bound.at is None:
        assert each == (bound,)
    else:
        assert [(one.name, one.guess) for one in each] == [(bound.name, 0.1), (bound.name, 0.2)]
        assert bound.at(bound.guess) == bound
        for wrong in (0.0, 1.0, float("nan")):
            with pytest.raises(ValueError, match="guess must be in the open interval"):
                bound.at(wrong)(0.1, 0.0, 100, 0.05)


SPLIT_KL = BOUNDS["split_kl"]


@given(st.integers(0, 200), st.floats(0, 1), st.floats(0, 1), divergences, st.integers(200, 5000), levels)
def test_split_kl_is_above_the_risk_and_grows_with_what_is_lost(errors, worse, better, kl, m, epsilon):
    """R̂(Q) = R̂(h̄) + e⁺ − e⁻ with e⁺ ≤ 1 − R̂(h̄) and e⁻ ≤ R̂(h̄)."""
    errors = errors / m
    worse, better = worse * (1 - errors), better * errors

    def at(*excess, kl=kl, epsilon=epsilon):
        return float(SPLIT_KL(torch.tensor(excess, dtype=torch.float64), kl, m, epsilon))

    base = at(errors, worse, better)
    slack = 1e-9
    assert base >= errors + worse - better - slack
    assert at(errors, worse / 2, better) <= base + slack
    assert at(errors, worse, better / 2) >= base - slack
    assert at(errors, worse, better, kl=kl + 1) >= base - slack
    assert at(errors, worse, better, epsilon=epsilon / 2) >= base - slack
    # Nothing is better than to know R(h̄) and to be told that nothing is lost.
    assert base >= float(TEST_SET(errors, 0.0, m, epsilon / 3)) - better - slack


def test_split_kl_pays_for_its_three_inequalities():
    """Each at ε/3: what is left of it if the other two say nothing."""
    m, epsilon, kl = 500, 0.06, 2.0
    none = float(BOUNDS["kl_exact"](0.0, kl, m, epsilon / 3))
    found = float(SPLIT_KL(torch.tensor([0.1, 0.0, 0.0]).double(), kl, m, epsilon))
    assert found == pytest.approx(float(TEST_SET(0.1, 0.0, m, epsilon / 3)) + none)
    found = float(SPLIT_KL(torch.tensor([0.1, 0.04, 0.0]).double(), kl, m, epsilon)) - found
    assert found == pytest.approx(float(BOUNDS["kl_exact"](0.04, kl, m, epsilon / 3)) - none)
    # From below: kl(e⁻‖p) is all that there is to spend, at a p below e⁻.
    base = float(SPLIT_KL(torch.tensor([0.1, 0.0, 0.09]).double(), kl, m, epsilon))
    p = float(TEST_SET(0.1, 0.0, m, epsilon / 3)) + none - base
    assert 0 < p < 0.09
    assert float(binary_kl(0.09, p)) == pytest.approx((kl + log_xi(m) - math.log(epsilon / 3)) / m, rel=1e-6)


KL = BOUNDS["kl"]
TEST_SET = BOUNDS["test_set"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: KL(0.1, 1.0, 0, 0.05), "num_data must be an integer of at least 1, but is 0"),
        (lambda: KL(0.1, 1.0, 10.5, 0.05), "num_data must be an integer"),
        (lambda: KL(1.2, 1.0, 100, 0.05), "r must be in"),
        (lambda: KL(float("nan"), 1.0, 100, 0.05), "r must be in"),
        (lambda: KL(0.1, -1.0, 100, 0.05), "kl must be in"),
        (lambda: lambda_value(0.1, 0.1, 2.0), r"lambda must be in the open interval \(0, 2\)"),
        (lambda: lambda_value(0.1, 0.1, 0.0), "lambda must be in"),
        (lambda: TEST_SET(0.123, 0.0, 100, 0.05), "risk must be a number of errors over m"),
        (lambda: kl_inverse(0.1, -0.1), "complexity must be in"),
        (lambda: SPLIT_KL(torch.tensor([0.1, 0.2]), 0.0, 100, 0.05), "excess must be three numbers"),
        (lambda: BOUNDS["betting"](torch.zeros(99), 0.0, 100, 0.05), "values must be one for each of 100 data"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@every_bound
@pytest.mark.parametrize("risk", [-0.1, 1.1, float("nan")])
def test_what_is_no_risk_is_refused(bound, risk):
    with pytest.raises(ValueError, match="must be"):
        bound(taken(bound, risk, 100), 0.0, 100, 0.05)


@every_bound
def test_a_divergence_is_refused_by_bounds_that_hold_for_no_posterior(bound):
    if "posterior" in bound.about:
        assert float(bound(taken(bound, 0.1, 100), 5.0, 100, 0.05)) > float(bound(taken(bound, 0.1, 100), 0, 100, 0.05))
    else:
        with pytest.raises(ValueError, match="kl must be 0 for a bound on one fixed classifier"):
            bound(taken(bound, 0.1, 100), 1.0, 100, 0.05)


@every_bound
@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_confidence_outside_the_open_interval_is_refused(bound, epsilon):
    with pytest.raises(ValueError, match=r"epsilon must be in the open interval \(0, 1\)"):
        bound(taken(bound, 0.1, 100), 0.0, 100, epsilon)


@every_bound
def test_no_points_are_refused(bound):
    with pytest.raises(ValueError, match="num_data must be an integer of at least 1"):
        bound(taken(bound, 0.1, 100), 0.0, 0, 0.05)


@given(st.floats(0, 1), st.floats(0, 5))
def test_the_inverse_of_plain_numbers_is_that_of_tensors_and_never_inside(r, c):
    found = kl_inverse_of(r, c)
    assert found == pytest.approx(float(kl_inverse(r, c)), abs=1e-12)
    assert found == 1.0 or float(binary_kl(r, found)) >= c * (1 - 1e-9)


@pytest.mark.parametrize(("r", "c"), [(-0.1, 1.0), (1.1, 1.0), (0.5, -1.0), (math.nan, 1.0), (0.5, math.nan)])
def test_the_inverse_of_plain_numbers_refuses_what_is_no_risk(r, c):
    with pytest.raises(ValueError, match="r and complexity must be"):
        kl_inverse_of(r, c)
