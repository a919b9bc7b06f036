r"""`bonferroni`: a deterministic upper bound on the 0-1 risk from one- and two-dimensional probabilities."""

from __future__ import annotations

import torch
from torch import Tensor

from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.integrate.problem import Integration, Integrator, Problem
from ldaf_bench.theory.normal import BVN_ERROR, bvn, upper_tail


def standardized(mean: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    r"""For D_j of these `differences`: thresholds h_j = −E[D_j]/σ_j, so that P(E_j) = P(X > h_j); σ_j; covariance."""
    covariance = factor @ factor.mT
    scale = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    return -mean / scale, scale, covariance


def hunter_worsley(problem: Problem) -> Tensor:
    r"""P(∪E_j) ≤ ΣP(E_j) − Σ_{(j,k) ∈ tree} P(E_j ∩ E_k), E_j = {logit_j ≥ logit_y}. [Hunter76; Worsley82]

    Valid for any spanning tree; the maximal one, found by Prim's algorithm for all data at once, is the best. The
    errors of the normal probabilities are added, so that the sum is a bound as computed. Of shape (m,).
    """
    with torch.no_grad():
        thresholds, scale, covariance = standardized(*problem.differences(torch.float64))
        parts = chunks(problem.num_data, problem.num_classes**2)
        return torch.cat([_tree_bound(thresholds[k], scale[k], covariance[k]) for k in parts])


def _tree_bound(thresholds: Tensor, scale: Tensor, covariance: Tensor) -> Tensor:
    single = upper_tail(thresholds)
    size = single.shape[1]
    first, second = torch.triu_indices(size, size, offset=1, device=single.device)
    # bvn increases in the correlation, and near 1 steeply: what rounding may have added to it is taken off first.
    correlation = covariance[:, first, second] / (scale[:, first] * scale[:, second])
    correlation = correlation - 8 * torch.finfo(correlation.dtype).eps
    joint = torch.zeros_like(covariance)
    pairs = bvn(thresholds[:, first], thresholds[:, second], correlation)
    # No joint probability exceeds either of its parts: rounding must not make it so.
    pairs = torch.minimum(pairs, torch.minimum(single[:, first], single[:, second]))
    joint[:, first, second] = pairs
    joint[:, second, first] = pairs
    tree = _maximal_spanning_tree(joint)
    allowance = 2 * size * BVN_ERROR
    return (single.sum(-1) - tree + allowance).clamp(max=1.0)


def _maximal_spanning_tree(weights: Tensor) -> Tensor:
    """Prim's algorithm on complete graphs with weights (b, k, k) ≥ 0: the total weight, per element."""
    batch = torch.arange(len(weights), device=weights.device)
    best = weights[:, 0].clone()
    outside = torch.ones_like(best, dtype=torch.bool)
    outside[:, 0] = False
    total = torch.zeros_like(best[:, 0])
    for _ in range(weights.shape[1] - 1):
        value, chosen = torch.where(outside, best, -1.0).max(-1)
        total += value
        outside[batch, chosen] = False
        best = torch.maximum(best, weights[batch, chosen])
    return total


def bonferroni(problem: Problem, *, num_points: int, seed: int) -> Integration:
    """The bound as an integrator: it uses no points and no seed."""
    per_datum = hunter_worsley(problem)
    return Integration(per_datum, torch.zeros_like(problem.labels))


def mean_of_upper_values(integration: Integration, delta: float) -> float:
    """Each value is an upper bound, so their mean is one, without chance."""
    return min(1.0, float(integration.value))


BONFERRONI = Integrator(
    "bonferroni", bonferroni, needs="gaussian", upper=mean_of_upper_values, chance=False, least_points=0
)
