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
    BOUNDS,
    CATONI_GRID,
    Classifier,
    best_lambda,
    binary_kl,
    complexity,
    kl_inverse,
    lambda_value,
    log_xi,
)

risks = st.floats(0, 1)
divergences = st.floats(0, 100)
counts = st.integers(1, 100_000)
levels = st.floats(1e-6, 0.5)
every_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=list(BOUNDS))


def value(bound, risk, kl, m, epsilon):
    """The bound, for arguments that it may be given."""
    risk = round(risk * m) / m if bound.counts else risk
    return float(bound(risk, kl if "posterior" in bound.about else 0.0, m, epsilon))


@given(risks, divergences, counts, levels)
def test_proved_order(risk, kl, m, epsilon):
    v = {name: value(bound, risk, kl, m, epsilon) for name, bound in BOUNDS.items()}
    slack = 1 + 1e-9
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


@every_bound
@given(risk=risks, other=risks, kl=divergences, more=divergences, m=counts, epsilon=levels)
def test_monotone_in_every_argument_and_above_the_risk(bound, risk, other, kl, more, m, epsilon):
    low, high = sorted((risk, other))
    base = value(bound, low, kl, m, epsilon)
    slack = 1e-9 * (1 + base)
    assert value(bound, high, kl, m, epsilon) >= base - slack
    assert value(bound, low, kl + more, m, epsilon) >= base - slack
    assert value(bound, low, kl, m, epsilon / 2) >= base - slack
    if not bound.counts:  # a finer m rounds errors differently
        assert base >= low - slack
        if m >= 8:
            assert value(bound, low, kl, 4 * m, epsilon) <= base + slack


@every_bound
def test_values_of_many_are_those_of_each(bound):
    risk = torch.tensor([0.0, 0.25, 0.5, 1.0], dtype=torch.float64)
    kl = torch.tensor([0.0, 0.5, 2.0, 30.0], dtype=torch.float64) if "posterior" in bound.about else 0 * risk
    each = [float(bound(float(r), float(k), 40, 0.05)) for r, k in zip(risk, kl, strict=True)]
    assert bound(risk, kl, 40, 0.05).tolist() == each
    assert bound(risk, kl, 40, 0.05).dtype == torch.float64


@every_bound
@pytest.mark.parametrize(("m", "epsilon"), [(1, 0.3), (20, 0.05), (300, 0.001)])
def test_no_bound_is_better_than_the_best_one_on_a_fixed_classifier(bound, m, epsilon):
    """Clopper and Pearson's is the smallest upper limit there is that does not fall with the errors."""
    errors = np.arange(m + 1)
    smallest = np.where(errors < m, scipy.stats.beta.ppf(1 - epsilon, errors + 1, np.maximum(m - errors, 1)), 1.0)
    found = bound(torch.from_numpy(errors / m), torch.zeros(m + 1), m, epsilon).clamp(max=1.0)
    assert (found.numpy() >= smallest * (1 - 1e-9)).all()


EVENTS = sorted({bound.event for bound in BOUNDS.values()})


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("m", [15, 150])
def test_bounds_of_one_event_fail_together_no_more_often_than_epsilon(event, m):
    """For a fixed classifier, exactly: the errors are binomial."""
    epsilon, errors = 0.1, np.arange(m + 1)
    sharing = [bound for bound in BOUNDS.values() if bound.event == event]
    values = [bound(torch.from_numpy(errors / m), torch.zeros(m + 1), m, epsilon).numpy() for bound in sharing]
    for risk in np.linspace(0.01, 0.99, 50):
        fails = np.min(values, axis=0) < risk
        assert scipy.stats.binom.pmf(errors, m, risk)[fails].sum() <= epsilon + 1e-12


def test_bounds_of_different_proofs_are_different_events():
    events = {name: bound.event for name, bound in BOUNDS.items()}
    for one, other in itertools.combinations(("kl", "catoni", "test_set"), 2):
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


@given(st.floats(0.01, 0.5), st.integers(10, 2000), levels)
def test_catoni_pays_for_its_whole_grid(risk, m, epsilon):
    # At KL = 0 no β can be better than Chernoff at the confidence ε/K that each has.
    paid = float(kl_inverse(risk, math.log(len(CATONI_GRID) / epsilon) / m))
    assert float(BOUNDS["catoni"](risk, 0.0, m, epsilon)) >= paid - 1e-12


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
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@every_bound
@pytest.mark.parametrize("risk", [-0.1, 1.1, float("nan")])
def test_what_is_no_risk_is_refused(bound, risk):
    with pytest.raises(ValueError, match="must be"):
        bound(risk, 0.0, 100, 0.05)


@every_bound
def test_a_divergence_is_refused_by_bounds_that_hold_for_no_posterior(bound):
    if "posterior" in bound.about:
        assert float(bound(0.1, 5.0, 100, 0.05)) > float(bound(0.1, 0.0, 100, 0.05))
    else:
        with pytest.raises(ValueError, match="kl must be 0 for a bound on one fixed classifier"):
            bound(0.1, 1.0, 100, 0.05)


@every_bound
@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_confidence_outside_the_open_interval_is_refused(bound, epsilon):
    with pytest.raises(ValueError, match=r"epsilon must be in the open interval \(0, 1\)"):
        bound(0.1, 0.0, 100, epsilon)


@every_bound
def test_no_points_are_refused(bound):
    with pytest.raises(ValueError, match="num_data must be an integer of at least 1"):
        bound(0.1, 0.0, 0, 0.05)
