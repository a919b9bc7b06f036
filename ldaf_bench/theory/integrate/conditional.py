r"""`conditional`: the 0-1 risk with one dimension integrated exactly and a smooth integrand for the rest."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.integrate.bonferroni import standardized
from ldaf_bench.theory.integrate.problem import Integration, Integrator, Problem
from ldaf_bench.theory.integrate.sampling import sobol_uniforms
from ldaf_bench.theory.normal import upper_tail
from ldaf_bench.theory.pushforward import cholesky
from ldaf_bench.theory.seeds import named_seed

SETTLED = 1e-9
"""Data whose risk is known this well from one-dimensional probabilities alone need no points."""


def conditional(problem: Problem, *, num_points: int, seed: int) -> Integration:
    r"""Genz' separation of variables. [Genz92]

    With D = −h + Lξ, L lower triangular, the risk 1 − P(D_j < 0 for all j) is an integral over [0, 1]^{c−2} of

    .. math:: f_1 + (1 - f_1) f_2 + \dots, \qquad
              f_i = Φ\Big(-\frac{h_i - \sum_{j<i} L_{ij} y_j}{L_{ii}}\Big), \quad y_i = Φ^{-1}(u_i (1 - f_i)),

    the probability that rival i is the first to win, given that none before it did. No indicator is left, so a few
    Sobol points do the work of thousands. Rivals go in the order of their chance to win: what is left to later
    variables then matters least. An estimate without a guarantee.
    """
    with torch.no_grad():
        thresholds, scale, covariance = standardized(*problem.differences(torch.float64))
        single = upper_tail(thresholds)
        union, largest = single.sum(-1), single.amax(-1)
        # max P(E_j) ≤ risk ≤ Σ P(E_j): where the two agree, there is nothing to integrate.
        per_datum = largest.clone()
        hard = torch.nonzero(torch.minimum(union, torch.ones_like(union)) - largest > SETTLED)[:, 0]
        uniform = separating_points(problem.num_classes, num_points, named_seed("conditional", seed)).to(thresholds)
        limits, factor = _in_order(thresholds[hard], scale[hard], covariance[hard])
        for part in chunks(len(hard), num_points * limits.shape[1]):
            per_datum[hard[part]] = _separated(limits[part], factor[part], uniform)
    return Integration(per_datum, num_evaluations=len(hard) * num_points)


def separating_points(num_classes: int, num_points: int, seed: int) -> Tensor:
    """Sobol points in [0, 1]^{c−2}, at least one coordinate: (max(1, c−2), num_points)."""
    return sobol_uniforms(max(1, num_classes - 2), num_points, seed)


def smooth_risk(mean: Tensor, factor: Tensor, uniform: Tensor) -> Tensor:
    """The same estimate for every datum from `differences`, differentiable in both; of shape (b,).

    `uniform` are `separating_points`. The 0-1 risk of a Gaussian is smooth in its mean and covariance, and so is this.
    """
    return _separated(*_in_order(*standardized(mean, factor)), uniform)


def _in_order(thresholds: Tensor, scale: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Thresholds with the likeliest rival first, and the Cholesky factor of the correlations in that order."""
    order = thresholds.argsort(-1)
    correlation = covariance / (scale[:, :, None] * scale[:, None, :])
    correlation = correlation.gather(1, order[..., None].expand_as(correlation))
    correlation = correlation.gather(2, order[:, None, :].expand_as(correlation))
    return thresholds.gather(1, order), cholesky(correlation) if len(order) else correlation


def _separated(limits: Tensor, factor: Tensor, uniform: Tensor) -> Tensor:
    """The mean over points of the separated integrand; limits (b, k), factor (b, k, k), uniform (k−1, q)."""
    size, dimension = limits.shape
    num_points = uniform.shape[1]
    chosen: list[Tensor] = []
    risk = limits.new_zeros(size, num_points)
    correct = limits.new_ones(size, num_points)
    for i in range(dimension):
        limit = limits[:, i, None]
        if i:
            limit = limit - (factor[:, i : i + 1, :i] @ torch.stack(chosen, 1))[:, 0]
        limit = limit / factor[:, i, i, None]
        wins = upper_tail(limit)
        risk = torch.addcmul(risk, correct, wins)
        correct = correct * (1 - wins)
        if i < dimension - 1:
            # The clamp keeps Φ⁻¹ finite; what it changes carries a weight below 1e-15.
            level = (uniform[i] * (1 - wins)).clamp(min=1e-15)
            chosen.append(math.sqrt(2) * torch.erfinv(2 * level - 1))
    return risk.mean(-1)


CONDITIONAL = Integrator("conditional", conditional, needs="gaussian", sobol=True)
