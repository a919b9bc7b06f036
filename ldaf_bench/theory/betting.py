r"""An upper confidence limit for the mean of values in [0, 1], by betting against every mean that is too large.

Let X_1, …, X_m be i.i.d. in [0, 1] with mean R. Against the claim "the mean is μ" bet on small values, with stakes
λ_i ≥ 0 that depend on X_1, …, X_{i−1} only. The capital

.. math:: K(μ) = \prod_{i=1}^m \big(1 + λ_i(μ)(μ - X_i)\big)

has the expectation 1 at μ = R, and is never negative. So K(R) ≥ 1/ε has a probability of at most ε (Markov), and R is
below the upper end of {μ : K(μ) < 1/ε}, except with probability ε. [WaudbySmith23, Sec. 4, one side of it]

Any stakes are valid. Those here adapt to the variance, and are truncated, λ_i(μ) = min(λ_i, c/(1 − μ)) with c < 1, so
that all factors are positive. Each factor increases in μ: where λ_i is not truncated that is plain, and where it is,
(μ − x)/(1 − μ) has the derivative (1 − x)/(1 − μ)² ≥ 0. So the set is an interval, and bisection finds its upper end.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.seeds import named_generator

TRUNCATION = 0.99
"""c: the largest share of the capital that one value can lose."""
STEPS = 40
"""Of the bisection: the end is found to 2⁻⁴⁰, and rounded up."""
ROUNDING = 1e-9
"""What the logarithm of the capital must exceed ln(1/ε) by; rounding in its m terms is far less."""


def order(num_data: int) -> Tensor:
    """The order in which the data are bet on: a permutation that m alone determines, so that no datum can."""
    return torch.randperm(num_data, generator=named_generator("order of bets", num_data))


def stakes(values: Tensor, epsilon: float) -> Tensor:
    r"""λ_i for every value, from the values before it; of the values' shape (…, m).

    With p and v the mean and the variance so far, one value at 0 and one at 1 of weight ½ each added to begin with.
    Among all distributions with this mean and variance on (−∞, 1], capital grows least for the one with two values, 1
    and x₀ = p − v/(1 − p), with q = v/(v + (1 − p)²) the probability of 1. There the bet on a coin is the best one:
    λ = (b − q)/(b(1 − b)(1 − x₀)), against the b with kl(q‖b) = ln(1/ε)/m, by which the capital reaches 1/ε after m
    values. The approximation kl(q‖q + d) ≈ d²/(2(q + d/3)(1 − q − d/3)) gives b = q + d in closed form.
    """
    before = torch.arange(values.shape[-1], dtype=values.dtype) + 1
    p = (values.cumsum(-1) - values + 0.5) / before
    v = ((values**2).cumsum(-1) - values**2 + 0.5) / before - p**2
    q = v / (v + (1 - p) ** 2)
    level = math.log(1 / epsilon) / values.shape[-1]
    slope, square = level * (1 - 2 * q) / 3, 1 + 2 * level / 9
    d = (slope + (slope**2 + 2 * level * q * (1 - q) * square).sqrt()) / square
    b = torch.minimum(q + d, 0.9 + 0.1 * q)  # few data: the approximation may leave [0, 1]
    return (b - q) / (b * (1 - b) * (1 - p + v / (1 - p)))


def log_capital(values: Tensor, stakes: Tensor, mean: Tensor) -> Tensor:
    """ln K(μ), for values and stakes of shape (n, m) and μ of shape (n,)."""
    mean = mean[:, None]
    staked = torch.minimum(stakes, TRUNCATION / (1 - mean))
    return torch.log1p(staked * (mean - values)).sum(-1)


def upper_end(values: Tensor, epsilon: float) -> Tensor:
    """The upper end of {μ : K(μ) < 1/ε} as the outer end of a bracket; 1 if no μ is refuted. (…, m) → (…)."""
    num_data = values.shape[-1]
    rows = values.reshape(-1, num_data)[:, order(num_data)]
    return torch.cat([_upper_end(rows[part], epsilon) for part in chunks(len(rows), num_data)]).view(values.shape[:-1])


def _upper_end(values: Tensor, epsilon: float) -> Tensor:
    bets, enough = stakes(values, epsilon), math.log(1 / epsilon) + ROUNDING
    inside, outside = torch.zeros_like(values[:, 0]), torch.ones_like(values[:, 0])
    for _ in range(STEPS):
        middle = (inside + outside) / 2
        refuted = log_capital(values, bets, middle) >= enough
        outside = torch.where(refuted, middle, outside)
        inside = torch.where(refuted, inside, middle)
    return outside
