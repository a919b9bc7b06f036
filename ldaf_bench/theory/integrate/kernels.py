r"""The two losses at many points for many data, as functions of D_j = logit_j − logit_y, j ≠ y.

The 0-1 loss is [max_j D_j ≥ 0] and the cross-entropy log(1 + Σ_j e^{D_j}): both see the differences only, and the
second keeps its relative accuracy down to the smallest values, where logsumexp − logit_y would cancel.

Points are columns: shape (c−1, q), the same for every datum, or (b, c−1, q), fresh for each. What is computed per
point is used and dropped: memory never grows with m × q.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ldaf_bench.theory.chunks import chunk_length, chunks

TILE = 1 << 19
"""Numbers in a tile, 2 to 4 MB: measured best on CPUs; its buffer is allocated once per call."""


def _tiles(mean: Tensor, factor: Tensor, points: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """(data, points, differences (data, c−1, points)) over tiles of data × points.

    The differences are in one buffer that the next tile overwrites. Where points are shared, they come with a row
    of ones, and the affine maps of all data are one large product.
    """
    shared = points.ndim == 2
    num_data, num_rivals = mean.shape
    if shared:
        points = torch.cat([points, torch.ones_like(points[:1])])
        maps = torch.cat([factor, mean[..., None]], dim=-1)
    width = min(points.shape[-1], 4096)
    buffer = mean.new_empty(min(num_data, chunk_length(width * num_rivals, TILE)) * num_rivals * width)
    for data in chunks(num_data, width * num_rivals, TILE):
        for part in (points if shared else points[data]).split(width, dim=-1):
            shape = (data.stop - data.start, num_rivals, part.shape[-1])
            out = buffer[: math.prod(shape)].view(shape)
            if shared:
                torch.mm(maps[data].flatten(0, 1), part, out=out.flatten(0, 1))
            else:
                torch.baddbmm(mean[data, :, None], factor[data], part, out=out)
            yield data, part, out


def count_errors(mean: Tensor, factor: Tensor, points: Tensor) -> Tensor:
    """For every datum, the number of points with a 0-1 loss of 1; of shape (b,), float64.

    `mean` (b, c−1) and `factor` (b, c−1, c−1) are those of `Problem.differences`.
    """
    counts = mean.new_zeros(len(mean), dtype=torch.float64)
    with torch.no_grad():
        for data, _, differences in _tiles(mean, factor, points):
            counts[data] += (~(differences.amax(1) < 0)).sum(-1)  # NaN is an error, never a success
    return counts


class _MeanCrossEntropy(torch.autograd.Function):
    """Mean over points of log(1 + Σ_j e^{D_j}), with its gradient made in the same pass."""

    @staticmethod
    def forward(ctx, mean, factor, points):  # type: ignore[no-untyped-def]
        num_points = points.shape[-1]
        total = mean.new_zeros(len(mean), dtype=torch.float64)
        wanted = any(ctx.needs_input_grad)
        gradient = mean.new_zeros(*mean.shape, mean.shape[1] + 1)
        for data, part, weights in _tiles(mean, factor, points):
            top = weights.amax(1, keepdim=True).clamp_(min=0)
            weights.sub_(top).exp_()
            # 1 + Σe^D = e^top (1 + rest); without a rival ahead, top = 0 and log1p loses nothing.
            rest = weights.sum(1, keepdim=True).add_(torch.expm1(-top))
            total[data] += torch.log1p(rest).add_(top)[:, 0].sum(-1)
            if wanted:
                weights.div_(rest.add_(1))
                if part.ndim == 2:
                    gradient[data].flatten(0, 1).addmm_(weights.flatten(0, 1), part.mT)
                else:
                    gradient[data, :, :-1] += weights @ part.mT
                    gradient[data, :, -1] += weights.sum(-1)
        ctx.save_for_backward(gradient.div_(num_points))
        return total / num_points

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        (gradient,) = ctx.saved_tensors
        scaled = upstream.to(gradient.dtype)[:, None, None] * gradient
        return scaled[..., -1], scaled[..., :-1], None


def cross_entropy(mean: Tensor, factor: Tensor, points: Tensor) -> Tensor:
    r"""(1/q) Σ_z log(1 + Σ_j exp(D_j(z))) for every datum; of shape (b,), float64.

    `mean` and `factor` are those of `Problem.differences`, and the result is differentiable in both.
    """
    result: Tensor = _MeanCrossEntropy.apply(mean, factor, points)
    return result
