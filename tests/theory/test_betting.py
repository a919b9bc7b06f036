"""Betting: the capital is what its theorem needs, the limit holds where outcomes can be counted, and peeking fails."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory import betting
from ldaf_bench.theory.betting import TRUNCATION, log_capital, order, stakes, upper_end
from ldaf_bench.theory.bounds import BOUNDS
from tests.cases import rng

EPSILON = 0.1


def outcomes(support, m):
    """All sequences of m values, (n, m), and how often each value is in each of them, (n, values)."""
    places = torch.tensor(list(itertools.product(range(len(support)), repeat=m)))
    counts = torch.stack([(places == place).sum(-1) for place in range(len(support))], -1)
    return torch.tensor(support, dtype=torch.float64)[places], counts


def chances(counts, weights):
    return (counts * torch.tensor(weights, dtype=torch.float64).log()).sum(-1).exp()


CASES = [
    ((0.0, 1.0), 10, [(1 - p, p) for p in np.linspace(0.02, 0.98, 25)]),
    ((0.0, 0.3, 1.0), 6, [(0.9, 0.05, 0.05), (0.3, 0.4, 0.3), (0.01, 0.98, 0.01), (0.5, 0.05, 0.45)]),
    ((0.05, 0.1), 10, [(0.5, 0.5), (0.9, 0.1), (0.1, 0.9)]),
]


@pytest.mark.parametrize(("support", "m", "weights"), CASES)
def test_the_capital_against_the_true_mean_has_the_expectation_one(support, m, weights):
    """The identity that the theorem rests on, summed over all outcomes."""
    values, counts = outcomes(support, m)
    bets = stakes(values, EPSILON)
    for weight in weights:
        mean = torch.tensor(np.dot(support, weight)).expand(len(values))
        capital = log_capital(values, bets, mean).exp()
        assert float((capital * chances(counts, weight)).sum()) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize(("support", "m", "weights"), CASES)
def test_the_limit_fails_no_more_often_than_epsilon_exactly(support, m, weights):
    values, counts = outcomes(support, m)
    found = upper_end(values, EPSILON)
    for weight in weights:
        fails = found < np.dot(support, weight)
        assert float(chances(counts, weight)[fails].sum()) <= EPSILON


def failures(draw, mean, m=100, repeats=3000):
    """How often the limit is below the mean, over seeded data sets."""
    return int((upper_end(draw(repeats, m), EPSILON) < mean).sum()), EPSILON * repeats, 4 * math.sqrt(EPSILON * repeats)


def errors(repeats, m, risk=0.2, seed=0):
    return (torch.rand(repeats, m, dtype=torch.float64, generator=rng(seed)) < risk).double()


def shares(repeats, m):
    """Shares of errors among 4 draws, whose chance is itself drawn for every datum: 0.02, or rarely 0.8."""
    hard = torch.rand(repeats, m, generator=rng(1)) < 0.15
    chance = torch.where(hard, 0.8, 0.02).double()
    return sum(torch.bernoulli(chance, generator=rng(2 + k)) for k in range(4)) / 4


@pytest.mark.parametrize(("draw", "mean"), [(errors, 0.2), (shares, 0.15 * 0.8 + 0.85 * 0.02)])
def test_the_limit_covers_the_mean_of_independent_values(draw, mean):
    failed, expected, slack = failures(draw, mean)
    # One that never failed at ε = 0.1 would be wasteful.
    assert 0 < failed <= expected + slack


def test_stakes_that_see_their_own_value_are_caught(monkeypatch):
    honest = betting.stakes

    def peeking(values, epsilon):
        return honest(values, epsilon) * (1.1 - values)

    monkeypatch.setattr(betting, "stakes", peeking)
    failed, expected, slack = failures(errors, 0.2)
    assert failed > expected + slack


@given(st.integers(0, 10_000), st.integers(1, 60), st.floats(0, 1), st.floats(1e-6, 0.5))
def test_stakes_depend_on_the_past_only_and_the_capital_grows_with_the_mean(seed, m, mean, epsilon):
    values = torch.rand(1, m, dtype=torch.float64, generator=rng(seed))
    values = torch.where(values < 0.3, 0.0, torch.where(values > 0.8, 1.0, values))
    bets = stakes(values, epsilon)
    assert (bets >= 0).all()
    later = values.clone()
    later[0, m // 2 :] = 1 - later[0, m // 2 :]
    assert torch.equal(stakes(later, epsilon)[0, : m // 2 + 1], bets[0, : m // 2 + 1])
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    every = log_capital(values.expand(101, m), bets.expand(101, m), grid)
    assert (every.diff() >= -1e-9).all()
    # No value takes more than its share of the capital: factors stay positive.
    assert (every >= m * math.log1p(-TRUNCATION) - 1e-9).all()


@given(st.integers(0, 10_000), st.integers(1, 300), st.floats(1e-6, 0.5))
def test_the_limit_is_the_outer_end_of_its_bracket(seed, m, epsilon):
    values = torch.rand(1, m, dtype=torch.float64, generator=rng(seed)) ** 4
    limit = upper_end(values, epsilon)
    ordered = values[:, order(m)]
    bets = stakes(ordered, epsilon)
    assert float(limit) == 1.0 or float(log_capital(ordered, bets, limit)) >= math.log(1 / epsilon)
    assert float(log_capital(ordered, bets, limit - 1e-9)) < math.log(1 / epsilon) + 1e-6


def test_the_order_is_a_permutation_that_the_number_of_data_fixes():
    assert torch.equal(order(500), order(500))
    assert sorted(order(500).tolist()) == list(range(500))
    assert order(500).tolist() != list(range(500))


def test_many_are_as_each_alone_however_they_are_divided(monkeypatch):
    values = torch.rand(30, 50, dtype=torch.float64, generator=rng(0)) ** 3
    each = torch.stack([upper_end(one, 0.05) for one in values])
    assert torch.equal(upper_end(values, 0.05), each)
    assert upper_end(values.view(5, 6, 50), 0.05).shape == (5, 6)
    monkeypatch.setattr("ldaf_bench.theory.chunks.NUMBERS", 120)
    assert torch.equal(upper_end(values, 0.05), each)


def test_a_small_variance_pays_and_errors_cost_little():
    """Betting is below Chernoff where values vary less than errors do, and close to it where they are errors."""
    m, chernoff = 2000, BOUNDS["chernoff"]
    steady = 0.05 + 0.1 * torch.rand(m, dtype=torch.float64, generator=rng(3))
    assert float(upper_end(steady, 0.01)) < float(chernoff(float(steady.mean()), 0.0, m, 0.01)) - 0.008
    wrong = errors(20, m, 0.1)
    gap = upper_end(wrong, 0.01) - chernoff(wrong.mean(-1), 0.0, m, 0.01)
    assert float(gap.abs().max()) < 0.003
