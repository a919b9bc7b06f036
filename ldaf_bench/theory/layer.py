r"""A Gaussian last layer: logits W φ(x) with independent weights W_kj ~ N(W⁰_kj + μ_kj, σ_kj²).

φ(x) holds the features and the constant that the bias multiplies. The logits of one datum are Gaussian and independent,

.. math:: \text{logit}_k \sim N\Big(M_k + \sum_j μ_{kj} φ_j,\; v_k\Big), \qquad v_k = \sum_j σ_{kj}^2 φ_j^2,

and only their differences matter: without their common part, their deviation is P z with z ~ N(0, Σ̂) as for a flow. The
coordinates of the Gaussian are the entries of W, class by class; its family is `DiagonalRankOne` with q = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_shape
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.gaussian import DiagonalRankOne, Gaussian
from ldaf_bench.theory.integrate import Draw
from ldaf_bench.theory.pushforward import Part


class Layer(NamedTuple):
    """What the last layer sees of a set of data."""

    mean: Tensor
    """M, the logits of the trained layer, of shape (m, c)."""
    features: Tensor
    """φ, of shape (m, w), the bias' constant included."""

    @property
    def size(self) -> int:
        """c·w."""
        return self.mean.shape[1] * self.features.shape[1]

    @property
    def numbers(self) -> int:
        """Those of φ."""
        return self.features.shape[1]

    def covariance(self, gaussian: Gaussian, part: Part, dtype: torch.dtype) -> Tensor:
        """Σ̂ of the logits without their common part; always put together in float64."""
        features = self.features[part].to(dtype)
        scales = _scales(gaussian).to(features).view(-1, self.numbers)
        return without_common_part((features**2 @ (scales**2).mT).double())

    def shift(self, mean: Tensor, part: Part, dtype: torch.dtype) -> Tensor:
        """μ φ, with μ as a matrix."""
        features = self.features[part].to(dtype)
        return features @ mean.to(features).view(-1, self.numbers).mT


def _scales(gaussian: Gaussian) -> Tensor:
    """σ of every weight."""
    independent = isinstance(gaussian, DiagonalRankOne) and not bool(gaussian.q.detach().any())
    require(independent, "gaussian", "one of independent weights", "not")
    assert isinstance(gaussian, DiagonalRankOne)
    return gaussian.d


def without_common_part(variances: Tensor) -> Tensor:
    r"""Σ̂ (…, c−1, c−1) with P Σ̂ Pᵀ = Π₀ Diag(v) Π₀, for variances (…, c) of independent logits.

    Π₀ y = P z with z_i = y_i − mean(y), i < c, so that Σ̂_ij = v_i δ_ij − (v_i + v_j)/c + Σ_k v_k/c².
    """
    num_classes = variances.shape[-1]
    first, total = variances[..., :-1], variances.sum(-1)[..., None, None]
    pairs = first[..., :, None] + first[..., None, :]
    return torch.diag_embed(first) - pairs / num_classes + total / num_classes**2


def layer_draw(weights: Tensor, features: Tensor) -> Callable[[Gaussian], Draw]:
    """Draws by the definition: a fresh matrix of weights for every datum and sample, around the trained W⁰ (c, w)."""
    require_shape("features", features, (None, weights.shape[1]))

    def bind(gaussian: Gaussian) -> Draw:
        require(gaussian.size == weights.numel(), "gaussian", f"of size {weights.numel()}", gaussian.size)

        def draw(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            logits = []
            chosen = features[part]
            for some in chunks(len(chosen), num_samples * gaussian.size):
                noise = chosen.new_empty(some.stop - some.start, num_samples, gaussian.size)
                drawn = gaussian.act(noise.normal_(generator=generator)).unflatten(-1, weights.shape)
                logits.append(((weights.to(chosen) + drawn) @ chosen[some, None, :, None])[..., 0])
            return torch.cat(logits)

        return draw

    return bind
