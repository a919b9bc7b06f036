r"""COVARIANCES: where a prior's covariance starts; an ablation axis.

Entries are drawn from a stream that is named after the initialization and the seed. The paper's entries of d are
N(0.1, 0.1²) and cross zero about once in six, where B = Diag(d) + q qᵀ would turn singular: d is replaced by its
absolute value and floored at `FLOOR` times the scale. q is kept as drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_entry, require_labels, require_positive
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.gaussian import Dense, DiagonalRankOne, Gaussian
from ldaf_bench.theory.integrate import accurate_risk
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.pushforward import Affine
from ldaf_bench.theory.seeds import named_generator

FLOOR = 0.01
"""Smallest |d| of a drawn covariance, relative to its scale."""
SHAPE_SCALE = 0.1
"""σ at which an initialization is drawn whose scale is given in units of the logits: that of the paper."""


class PriorData(NamedTuple):
    """Cached *prior-training* data and their labels; the only data an initialization may see."""

    pushed: Affine
    labels: Tensor
    rise: float = 0.005
    """By how much the Gibbs risk on these data may exceed the mean classifier's error."""


Draw = Callable[[int, float, torch.Generator, PriorData | None], Gaussian]


def _constant(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    """d = q = σ."""
    value = torch.full((size,), scale, dtype=torch.float64)
    return DiagonalRankOne(value, value.clone())


def _isotropic(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    """d = σ, q = 0."""
    value = torch.full((size,), scale, dtype=torch.float64)
    return DiagonalRankOne(value, torch.zeros_like(value))


def _drawn(size: int, scale: float, spread: float, generator: torch.Generator) -> Gaussian:
    d, q = scale * (1 + spread * torch.randn(2, size, dtype=torch.float64, generator=generator))
    return DiagonalRankOne(d.abs().clamp(min=FLOOR * scale), q)


def _paper(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    """Entries ~ N(σ, σ²); at σ = 0.1 a variance of 0.01, as the text says. [Boll22, Sec. 5.1]"""
    return _drawn(size, scale, 1.0, generator)


def _code(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    """Entries ~ N(σ, (σ/10)²); at σ = 0.1 a standard deviation of 0.01, as the authors' code draws."""
    return _drawn(size, scale, 0.1, generator)


def _dense(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    """B = σ(I + E/(4√k)), E standard normal: all pairs correlated, singular values about σ(1 ± ½)."""
    noise = torch.randn(size, size, dtype=torch.float64, generator=generator)
    return Dense(scale * (torch.eye(size, dtype=torch.float64) + noise / (4 * math.sqrt(size))))


def _scaled(size: int, scale: float, generator: torch.Generator, data: PriorData | None) -> Gaussian:
    r"""d = σ, q = 0 with σ such that the Gibbs risk on prior-training data rises by a set amount.

    Bisection in log σ with accurate estimates, from `scale`/1000 to 1000·`scale`. It sees prior-training data
    only, so that it belongs to the prior and costs nothing in the confidence budget.
    """
    require(data is not None, "data", "prior-training data for the initialization `scaled`", None)
    assert data is not None
    require_labels("data.labels", data.labels, *data.pushed.mean.shape)
    wrong = (data.pushed.mean.argmax(-1) != data.labels).double().mean()
    target = float(wrong) + data.rise

    def risk(value: float) -> float:
        gaussian = _isotropic(size, value, generator, None)
        return accurate_risk(problem(data.pushed, gaussian, data.labels), num_points=128)

    low, high = scale / 1000, scale * 1000
    reached = risk(low) <= target <= risk(high)
    require(reached, "rise", f"within what σ from {low:g} to {high:g} can do to the Gibbs risk", data.rise)
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if risk(middle) > target else (middle, high)
    return _isotropic(size, low, generator, None)


def logit_deviation(gaussian: Gaussian, data: PriorData) -> float:
    r"""The root mean square deviation of a logit over the data, √(mean tr(P Σ̂ Pᵀ)/c): their common part is left out."""
    cache, total = data.pushed, 0.0
    num_data, num_classes = cache.mean.shape
    for part in chunks(num_data, cache.numbers):
        covariance = cache.covariance(gaussian, part, torch.float64)
        total += float(covariance.diagonal(dim1=-2, dim2=-1).sum() + covariance.sum())  # tr(Σ̂ PᵀP), PᵀP = I + 1 1ᵀ
    return math.sqrt(total / (num_data * num_classes))


COVARIANCES: dict[str, Draw] = {
    "code": _code,
    "constant": _constant,
    "paper": _paper,
    "isotropic": _isotropic,
    "scaled": _scaled,
    "dense": _dense,
}
FINDS_ITS_SCALE = frozenset({"scaled"})
"""Initializations that choose their scale on prior data, and so need some."""


def initial_covariance(
    name: str, size: int, *, scale: float = 0.1, seed: int = 0, data: PriorData | None = None, in_logits: bool = False
) -> Gaussian:
    """The prior's Gaussian start in `size` = n(c−1) coordinates, by the initialization of that name.

    With `in_logits`, `scale` is the `logit_deviation` on prior data: the initialization is drawn at `SHAPE_SCALE`, and
    all of B multiplied. So the same scale means the same for every network and every initialization.
    """
    require_entry("covariance", name, COVARIANCES)
    require_count("size", size)
    require_positive("scale", scale)
    drawn = COVARIANCES[name](
        size, SHAPE_SCALE if in_logits else scale, named_generator("covariance", name, seed), data
    )
    if not in_logits:
        return drawn
    require(data is not None, "data", "prior-training data for a scale in units of the logits", None)
    assert data is not None
    return drawn.times(scale / logit_deviation(drawn, data))
