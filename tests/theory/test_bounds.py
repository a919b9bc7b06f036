"""The bounds' provable order, monotonicity and inverses."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.bounds import (
    BOUNDS,
    CATONI_GRID,
    FIXED_CLASSIFIER,
    best_lambda,
    binary_kl,
    bound,
    complexity,
    kl_inverse,
    kl_inverse_lower,
    lambda_value,
    log_xi,
)

risks = st.floats(0, 1)
divergences = st.floats(0, 100)
counts = st.integers(1, 100_000)
levels = st.floats(1e-6, 0.5)


def value(name, risk, kl, m, epsilon):
    if name in FIXED_CLASSIFIER:
        return float(bound(name, round(risk * m) / m, 0.0, m, epsilon))
    return float(bound(name, risk, kl, m, epsilon))


@given(risks, divergences, counts, levels)
def test_proved_order(risk, kl, m, epsilon):
    v = {name: value(name, risk, kl, m, epsilon) for name in BOUNDS}
    slack = 1 + 1e-9
    assert v["kl_exact"] <= v["kl"] * slack
    assert v["kl"] <= v["quad"] * slack
    assert v["kl"] <= v["classic"] * slack
    assert v["quad"] == pytest.approx(v["lambda"], rel=1e-9)
    assert v["test_set"] <= v["chernoff"] * slack


@given(risks, divergences, counts, levels)
def test_lambda_star_minimizes_the_lambda_bound(risk, kl, m, epsilon):
    c = complexity(kl, m, epsilon)
    grid = torch.linspace(1e-4, 2 - 1e-4, 2001, dtype=torch.float64)
    best = lambda_value(risk, c, best_lambda(risk, c))
    assert (lambda_value(torch.full_like(grid, risk), c.expand_as(grid), grid) >= best * (1 - 1e-12)).all()
    assert 0 < best_lambda(risk, c) <= 1


@pytest.mark.parametrize("name", BOUNDS)
@given(risk=risks, other=risks, kl=divergences, more=divergences, m=counts, epsilon=levels)
def test_monotone_in_every_argument_and_above_the_risk(name, risk, other, kl, more, m, epsilon):
    low, high = sorted((risk, other))
    base = value(name, low, kl, m, epsilon)
    slack = 1e-9 * (1 + base)
    assert value(name, high, kl, m, epsilon) >= base - slack
    assert value(name, low, kl + more, m, epsilon) >= base - slack
    assert value(name, low, kl, m, epsilon / 2) >= base - slack
    if name not in FIXED_CLASSIFIER:  # those count errors, which a finer m rounds differently
        assert base >= low - slack
        if m >= 8:
            assert value(name, low, kl, 4 * m, epsilon) <= base + slack


@given(st.floats(1e-9, 1 - 1e-9), st.floats(1e-9, 1 - 1e-9))
def test_inverses_undo_the_divergence(r, p):
    c = binary_kl(r, p)
    inverse = kl_inverse(r, c) if p >= r else kl_inverse_lower(r, c)
    # Where kl is flat, c fixes p only up to √(rounding of c).
    assert float(inverse) == pytest.approx(p, rel=1e-7, abs=2e-8)


@given(risks, st.floats(1e-12, 5))
def test_inverse_returns_the_outer_end_of_its_bracket(r, c):
    upper, lower = float(kl_inverse(r, c)), float(kl_inverse_lower(r, c))
    assert upper >= r >= lower
    assert upper == 1.0 or float(binary_kl(r, upper)) >= c
    assert lower == 0.0 or float(binary_kl(r, lower)) >= c
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
    p = float(bound("test_set", k / m, 0.0, m, epsilon))
    if k == m:
        assert p == 1.0
    else:
        assert scipy.stats.binom.cdf(k, m, p) == pytest.approx(epsilon, rel=1e-6)


@given(st.floats(0.01, 0.5), st.integers(10, 2000), levels)
def test_catoni_pays_for_its_whole_grid(risk, m, epsilon):
    # At KL = 0 no β can be better than Chernoff at the confidence ε/K that each has.
    paid = float(kl_inverse(risk, math.log(len(CATONI_GRID) / epsilon) / m))
    assert float(bound("catoni", risk, 0.0, m, epsilon)) >= paid - 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bound("kll", 0.1, 1.0, 100, 0.05), "bound must be one of"),
        (lambda: bound("kl", 0.1, 1.0, 0, 0.05), "num_data must be an integer of at least 1, but is 0"),
        (lambda: bound("kl", 0.1, 1.0, 10.5, 0.05), "num_data must be an integer"),
        (lambda: bound("kl", 1.2, 1.0, 100, 0.05), "r must be in"),
        (lambda: bound("kl", float("nan"), 1.0, 100, 0.05), "r must be in"),
        (lambda: bound("kl", 0.1, -1.0, 100, 0.05), "kl must be in"),
        (lambda: lambda_value(0.1, 0.1, 2.0), r"lambda must be in the open interval \(0, 2\)"),
        (lambda: lambda_value(0.1, 0.1, 0.0), "lambda must be in"),
        (lambda: bound("test_set", 0.1, 1.0, 100, 0.05), "kl must be 0 for a bound on one fixed classifier"),
        (lambda: bound("test_set", 0.123, 0.0, 100, 0.05), "risk must be a number of errors over m"),
        (lambda: kl_inverse(0.1, -0.1), "complexity must be in"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_confidence_outside_the_open_interval_is_refused(name, epsilon):
    with pytest.raises(ValueError, match=r"epsilon must be in the open interval \(0, 1\)"):
        bound(name, 0.1, 0.0, 100, epsilon)


@pytest.mark.parametrize("name", BOUNDS)
def test_no_points_are_refused(name):
    with pytest.raises(ValueError, match="num_data must be an integer of at least 1"):
        bound(name, 0.1, 0.0, 0, 0.05)
