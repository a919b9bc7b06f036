"""Bounds and guarantees written down once more, in plain Python: what `verify` compares certificates with.

Keyed by the entries themselves. A bound or integrator without a twin here is checked by its own code, and `verify` says
so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special
from numpy.typing import NDArray

from ldaf_bench.theory.betting import order
from ldaf_bench.theory.bounds import (
    BETAS,
    BETTING,
    CATONI,
    CATONI_GRID,
    CHERNOFF,
    CLASSIC,
    KL,
    KL_EXACT,
    LAMBDA,
    QUAD,
    SPLIT_KL,
    TEST_SET,
    Bound,
)
from ldaf_bench.theory.integrate import Integrator
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.theory.integrate.sampling import FORWARD_MC, MC, ONE_DRAW, SHARED_MC


def kl_inverse(risk: float, complexity: float) -> float:
    """sup{p ≥ r : kl(r‖p) ≤ C}, by bisection."""

    def excess(p: float) -> float:
        left = risk * math.log(risk / p) if risk > 0 else 0.0
        right = (1 - risk) * math.log((1 - risk) / (1 - p)) if risk < 1 else 0.0
        return left + right - complexity

    low, high = risk, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high) or middle >= 1:
            break
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return high


def _penalty(kl: float, num_data: int, epsilon: float) -> float:
    return (kl + math.log(2 * math.sqrt(num_data) / epsilon)) / num_data


def _kl_exact(risk: float, kl: float, num_data: int, epsilon: float) -> float:
    counts = np.arange(num_data + 1)
    logs = scipy.special.gammaln(num_data + 1) - scipy.special.gammaln(counts + 1)
    logs = logs - scipy.special.gammaln(num_data - counts + 1)
    logs = logs + scipy.special.xlogy(counts, counts / num_data)
    logs = logs + scipy.special.xlogy(num_data - counts, 1 - counts / num_data)
    return kl_inverse(risk, (kl + float(scipy.special.logsumexp(logs)) - math.log(epsilon)) / num_data)


def _quad(risk: float, kl: float, num_data: int, epsilon: float) -> float:
    half = _penalty(kl, num_data, epsilon) / 2
    return (math.sqrt(risk + half) + math.sqrt(half)) ** 2


def _catoni_at(risk: float, kl: float, num_data: int, epsilon: float, beta: float) -> float:
    return -math.expm1(-beta * risk - (kl + math.log(1 / epsilon)) / num_data) / -math.expm1(-beta)


def _catoni(risk: float, kl: float, num_data: int, epsilon: float, guess: float) -> float:
    """At the β that minimizes the bound at the guess and KL = ½: where its derivative changes its sign."""
    penalty = (0.5 + math.log(1 / epsilon)) / num_data
    low, high = 1e-6, 50.0
    for _ in range(100):
        beta = (low + high) / 2
        rises = guess * math.expm1(beta) > math.expm1(beta * guess + penalty)
        low, high = (low, beta) if rises else (beta, high)
    return _catoni_at(risk, kl, num_data, epsilon, high)


def _catoni_grid(risk: float, kl: float, num_data: int, epsilon: float) -> float:
    return min(_catoni_at(risk, kl, num_data, epsilon / len(BETAS), beta) for beta in BETAS)


def _test_set(risk: float, kl: float, num_data: int, epsilon: float) -> float:
    """The p with P(Bin(m, p) ≤ errors) = ε, by bisection of the defining identity."""
    wrong = round(risk * num_data)
    if wrong >= num_data:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if scipy.special.bdtr(wrong, num_data, middle) > epsilon else (low, middle)
    return high


def _betting(values: Sequence[float], kl: float, num_data: int, epsilon: float) -> float:
    """The largest mean at which the capital stays below 1/ε, one datum after the other."""
    goal = math.log(1 / epsilon) / num_data
    bets, first, second = [], 0.5, 0.5
    for count, place in enumerate(order(num_data).tolist(), 1):
        value, mean = values[place], first / count
        lowest = mean - (second / count - mean**2) / (1 - mean)
        chance = (mean - lowest) / (1 - lowest)
        # d² = 2 goal (q + d/3)(1 − q − d/3), solved for its positive root
        a, b, c = 1 + 2 * goal / 9, -2 * goal * (1 - 2 * chance) / 3, -2 * goal * chance * (1 - chance)
        coin = min(chance + (-b + math.sqrt(b * b - 4 * a * c)) / (2 * a), 0.9 + 0.1 * chance)
        bets.append((value, (coin - chance) / (coin * (1 - coin) * (1 - lowest))))
        first, second = first + value, second + value**2

    def refuted(mean: float) -> bool:
        factors = (1 + min(stake, 0.99 / (1 - mean)) * (mean - value) for value, stake in bets)
        return math.fsum(map(math.log, factors)) >= math.log(1 / epsilon)

    low, high = 0.0, 1.0
    for _ in range(35):
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(middle) else (middle, high)
    return high


def _split_kl(excess: Sequence[float], kl: float, num_data: int, epsilon: float) -> float:
    """The mean classifier's risk, plus what is lost at most, minus what is won at least."""
    errors, lost, won = excess
    least = 1 - _kl_exact(1 - won, kl, num_data, epsilon / 3)
    return _test_set(errors, 0.0, num_data, epsilon / 3) + _kl_exact(lost, kl, num_data, epsilon / 3) - least


Twin = Callable[..., float]
"""(what the bound takes, KL, m, ε) → value; the guess comes last where there is one."""
BOUND_TWINS: dict[Bound, Twin] = {
    KL: lambda risk, kl, m, epsilon: kl_inverse(risk, _penalty(kl, m, epsilon)),
    KL_EXACT: _kl_exact,
    LAMBDA: _quad,  # at its best λ the λ-bound is the quad bound
    QUAD: _quad,
    CLASSIC: lambda risk, kl, m, epsilon: risk + math.sqrt(_penalty(kl, m, epsilon) / 2),
    CATONI: _catoni,
    CATONI_GRID: _catoni_grid,
    TEST_SET: _test_set,
    CHERNOFF: lambda risk, kl, m, epsilon: kl_inverse(risk, math.log(1 / epsilon) / m),
    BETTING: _betting,
    SPLIT_KL: _split_kl,
}


def _upper_of_shared(values: NDArray[np.float64], draws: NDArray[np.int64], delta: float) -> float:
    """What q draws prove that all data share: the error rates of the draws are q independent values."""
    return kl_inverse(float(values.mean()), math.log(2 / delta) / int(draws[0]))


def _upper_of_draws(values: NDArray[np.float64], draws: NDArray[np.int64], delta: float) -> float:
    """What independent draws prove at δ′, and upper values where there are none."""
    drawn = draws > 0
    upper = float(values[~drawn].sum()) / len(values)
    if drawn.any():
        hits, size = float((values * draws)[drawn].sum()), int(draws.sum())
        upper += float(drawn.mean()) * kl_inverse(min(1.0, hits / size), math.log(1 / delta) / size)
    return min(1.0, upper)


Upper = Callable[[NDArray[np.float64], NDArray[np.int64], float], float]
UPPER_TWINS: dict[Integrator, Upper] = {
    MC: _upper_of_draws,
    FORWARD_MC: _upper_of_draws,
    BONFERRONI: _upper_of_draws,
    SHARED_MC: _upper_of_shared,
    ONE_DRAW: lambda values, draws, delta: float(values.mean()),
}
"""The guaranteed risk from the values and draws of all data at δ′; a bound that counts errors takes their share."""


def excess(
    values: NDArray[np.float64], draws: NDArray[np.int64], wrong: NDArray[np.bool_], upper: Upper, delta: float
) -> tuple[float, float, float]:
    """Errors of the mean classifier, what draws lose at most where it is right, and win at least where it errs."""
    lost, kept = (
        float(part.mean()) * upper(values[part], draws[part], delta / 2) if part.any() else 0.0
        for part in (~wrong, wrong)
    )
    return float(wrong.mean()), lost, max(0.0, float(wrong.mean()) - kept)
