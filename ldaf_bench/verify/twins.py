"""Bounds and guarantees written down once more, in plain Python: what `verify` compares certificates with.

Keyed by the entries themselves. A bound or integrator without a twin here is checked by its own code, and `verify` says
so.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy.special
from numpy.typing import NDArray

from ldaf_bench.theory.bounds import (
    CATONI,
    CATONI_GRID,
    CHERNOFF,
    CLASSIC,
    KL,
    KL_EXACT,
    LAMBDA,
    QUAD,
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


def _catoni(risk: float, kl: float, num_data: int, epsilon: float) -> float:
    union = (kl + math.log(len(CATONI_GRID) / epsilon)) / num_data
    return min(-math.expm1(-beta * risk - union) / -math.expm1(-beta) for beta in CATONI_GRID)


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


Twin = Callable[[float, float, int, float], float]
BOUND_TWINS: dict[Bound, Twin] = {
    KL: lambda risk, kl, m, epsilon: kl_inverse(risk, _penalty(kl, m, epsilon)),
    KL_EXACT: _kl_exact,
    LAMBDA: _quad,  # at its best λ the λ-bound is the quad bound
    QUAD: _quad,
    CLASSIC: lambda risk, kl, m, epsilon: risk + math.sqrt(_penalty(kl, m, epsilon) / 2),
    CATONI: _catoni,
    TEST_SET: _test_set,
    CHERNOFF: lambda risk, kl, m, epsilon: kl_inverse(risk, math.log(1 / epsilon) / m),
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
