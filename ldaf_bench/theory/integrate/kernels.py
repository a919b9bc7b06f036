r"""The two losses at many points for many data, as functions of D_j = logit_j − logit_y, j ≠ y.

The 0-1 loss is [max_j D_j ≥ 0] and the cross-entropy log(1 + Σ_j e^{D_j}): both see the differences only, and the
second keeps its relative accuracy down to the smallest values, where logsumexp − logit_y would cancel.

Points are columns: shape (c−1, q), the same for every datum, or (b, c−1, q), fresh for each. A row of ones below
them carries the mean through the same matrix product. What is computed per point is used and dropped: memory never
grows with m × q.
"""

from __future__ import annotations

import torch
from torch import Tensor


def _maps(mean: Tensor, factor: Tensor) -> Tensor:
    """The affine maps (b, c−1, c) from points with ones to differences."""
    return torch.cat([factor, mean[..., None]], dim=-1)


def _with_ones(points: Tensor) -> Tensor:
    return torch.cat([points, torch.ones_like(points[..., :1, :])], dim=-2)


def _affine(maps: Tensor, points: Tensor) -> Tensor:
    """(b, k, c) times (c, q) or (b, c, q): one large product where the points are shared."""
    if points.ndim == 3:
        return maps @ points
    return (maps.flatten(0, 1) @ points).view(*maps.shape[:2], -1)


def count_errors(mean: Tensor, factor: Tensor, points: Tensor) -> Tensor:
    """For every datum, the number of points with a 0-1 loss of 1; of shape (b,), float64.

    `mean` (b, c−1) and `factor` (b, c−1, c−1) are those of `Problem.differences`.
    """
    differences = _affine(_maps(mean, factor), _with_ones(points))
    return (differences.amax(1) >= 0).sum(-1).double()


class _MeanCrossEntropy(torch.autograd.Function):
    """Mean over points of log(1 + Σ exp(maps @ points)), with its gradient made in the same pass."""

    @staticmethod
    def forward(ctx, maps, points, chunk):  # type: ignore[no-untyped-def]
        total = maps.new_zeros(len(maps), dtype=torch.float64)
        gradient = torch.zeros_like(maps) if ctx.needs_input_grad[0] else None
        for part in points.split(chunk, dim=-1):
            ones = _with_ones(part)
            weights = _affine(maps, ones)
            top = weights.amax(1, keepdim=True).clamp_(min=0)
            weights.sub_(top).exp_()
            # 1 + Σe^D = e^top (1 + rest); without a rival ahead, top = 0 and log1p loses nothing.
            rest = weights.sum(1, keepdim=True).add_(torch.expm1(-top))
            total += torch.log1p(rest).add_(top)[:, 0].sum(-1)
            if gradient is not None:
                weights.div_(rest.add_(1))
                if ones.ndim == 3:
                    gradient.baddbmm_(weights, ones.mT)
                else:
                    gradient.flatten(0, 1).addmm_(weights.flatten(0, 1), ones.mT)
        num_points = points.shape[-1]
        if gradient is not None:
            ctx.save_for_backward(gradient.div_(num_points))
        return total / num_points

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        (gradient,) = ctx.saved_tensors
        return upstream.to(gradient.dtype)[:, None, None] * gradient, None, None


def cross_entropy(mean: Tensor, factor: Tensor, points: Tensor, chunk: int = 1024) -> Tensor:
    r"""(1/q) Σ_z log(1 + Σ_j exp(D_j(z))) for every datum; of shape (b,), float64.

    `mean` and `factor` are those of `Problem.differences`, and the result is differentiable in both.
    """
    result: Tensor = _MeanCrossEntropy.apply(_maps(mean, factor), points, chunk)
    return result
