r"""Gaussian coordinates μ + B ξ, ξ ~ N(0, I), in two families behind one small interface.

For the flow they are those of its start, v₀ = (I ⊗ P)(μ + B ξ); the paper has μ = 0. `DiagonalRankOne` is the paper's
B = Diag(d) + q qᵀ [Boll22, Sec. 4.3], where everything costs O(n c); `Dense` has any invertible B. Both hold float64
tensors, whatever the pushforward's precision: a Kullback–Leibler divergence in float32 would be off by more than
certificates differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_finite, require_shape


class Gaussian(Protocol):
    """What the rest of `theory` asks of N(μ, B Bᵀ)."""

    @property
    def size(self) -> int:
        """The number of coordinates; n(c − 1) for a flow's start."""

    @property
    def mean(self) -> Tensor | None:
        """μ; None stands for 0."""

    def act(self, z: Tensor) -> Tensor:
        """μ + B z, for z of shape (…, size), in z's dtype and on its device: maps white noise to a draw."""

    def covariance(self, rows: Tensor) -> Tensor:
        """(GᵀB)(GᵀB)ᵀ for fixed rows Gᵀ of shape (m, k, size), in their dtype and on their device.

        Of shape (m, k, k), and differentiable in the Gaussian's parameters.
        """

    def logdet(self) -> Tensor:
        """log |det B|."""

    def solve(self, matrix: Tensor) -> Tensor:
        """B⁻¹ X, for X of shape (size, k)."""

    def factor(self) -> Tensor:
        """B itself, of shape (size, size)."""

    def times(self, factor: float) -> Gaussian:
        """The same with `factor` times B, for a positive factor."""

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` makes it again from."""

    def kl_from(self, prior: Gaussian) -> float:
        """KL(self ‖ prior)."""


@dataclass(frozen=True)
class DiagonalRankOne:
    r"""B = Diag(d) + q qᵀ; det B = ∏dᵢ (1 + Σ qᵢ²/dᵢ) and B⁻¹ by Sherman–Morrison."""

    d: Tensor
    q: Tensor
    mean: Tensor | None = None

    def __post_init__(self) -> None:
        require_shape("d", self.d, (None,))
        require_shape("q", self.q, self.d.shape)
        _require_mean(self.mean, self.size)
        for name, value in (("d", self.d), ("q", self.q)):
            require(value.dtype == torch.float64, name, "float64", value.dtype)
            require_finite(name, value)
        smallest = float(self.d.detach().abs().min())
        require(smallest > 1e-12, "d", "away from 0 so that Diag(d) + q qᵀ is invertible", smallest)
        capacity = float(self.capacity().detach().abs())
        require(capacity > 1e-12, "q", "such that 1 + Σ q²/d, hence det B, is not 0", capacity)

    def capacity(self) -> Tensor:
        """1 + Σ q²/d, the second factor of det B."""
        return 1 + (self.q**2 / self.d).sum()

    @property
    def size(self) -> int:
        return len(self.d)

    def act(self, z: Tensor) -> Tensor:
        d, q = self.d.to(z), self.q.to(z)
        return _moved(d * z + (z @ q)[..., None] * q, self.mean)

    def covariance(self, rows: Tensor) -> Tensor:
        result: Tensor = _RankOneCovariance.apply(rows, self.d.to(rows), self.q.to(rows))
        return result

    def logdet(self) -> Tensor:
        return self.d.abs().log().sum() + self.capacity().abs().log()

    def solve(self, matrix: Tensor) -> Tensor:
        scaled = matrix / self.d[:, None]
        return scaled - (self.q / self.d)[:, None] * (self.q @ scaled) / self.capacity()

    def factor(self) -> Tensor:
        return torch.diag(self.d) + torch.outer(self.q, self.q)

    def times(self, factor: float) -> DiagonalRankOne:
        return DiagonalRankOne(factor * self.d, math.sqrt(factor) * self.q, self.mean)

    def tensors(self) -> dict[str, Tensor]:
        return _with_mean({"d": self.d, "q": self.q}, self.mean)

    def kl_from(self, prior: Gaussian) -> float:
        return float(kl_divergence(self, prior))


class _RankOneCovariance(torch.autograd.Function):
    r"""Σ̂ = E Eᵀ + a bᵀ + b aᵀ + ‖q‖² b bᵀ with E = Gᵀ∘d, a = E q and b = Gᵀq.

    This is most of the memory traffic of posterior fitting. Written out, both directions touch one temporary of the
    rows' size, and nothing is kept but the rows.
    """

    @staticmethod
    def forward(ctx, rows, d, q):  # type: ignore[no-untyped-def]
        a, b = (rows @ torch.stack([d * q, q], -1)).unbind(-1)
        scaled = rows * d
        cross = a[..., :, None] * b[..., None, :]
        ctx.save_for_backward(rows, d, q, a, b)
        return scaled @ scaled.mT + cross + cross.mT + (q @ q) * b[..., :, None] * b[..., None, :]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        rows, d, q, a, b = ctx.saved_tensors
        twice = upstream + upstream.mT
        grad_a = (twice @ b[..., None])[..., 0]
        grad_b = (twice @ (a + (q @ q) * b)[..., None])[..., 0]
        flat = rows.flatten(0, 1)
        through_a, through_b = (flat.mT @ torch.stack([grad_a.flatten(), grad_b.flatten()], -1)).unbind(-1)
        grad_d = d * (twice @ rows).mul_(rows).sum((0, 1)) + q * through_a
        grad_q = d * through_a + through_b + (grad_a * b).sum() * q
        return None, grad_d, grad_q


@dataclass(frozen=True)
class Dense:
    """Any invertible factor B."""

    b: Tensor
    mean: Tensor | None = None
    condition: float = field(init=False, default=0.0)
    """‖B‖₁‖B⁻¹‖₁."""

    def __post_init__(self) -> None:
        require_shape("b", self.b, (len(self.b), len(self.b)))
        _require_mean(self.mean, self.size)
        require(self.b.dtype == torch.float64, "b", "float64", self.b.dtype)
        require_finite("b", self.b)
        inverse, info = torch.linalg.inv_ex(self.b.detach())
        condition = float(torch.linalg.norm(self.b.detach(), 1) * torch.linalg.norm(inverse, 1))
        require(int(info) == 0 and condition < 1e10, "b", "invertible", f"singular (condition number {condition:.3g})")
        object.__setattr__(self, "condition", condition)

    @property
    def size(self) -> int:
        return len(self.b)

    def act(self, z: Tensor) -> Tensor:
        return _moved(z @ self.b.to(z).mT, self.mean)

    def covariance(self, rows: Tensor) -> Tensor:
        moved = rows @ self.b.to(rows)
        return moved @ moved.mT

    def logdet(self) -> Tensor:
        return torch.linalg.slogdet(self.b).logabsdet

    def solve(self, matrix: Tensor) -> Tensor:
        return torch.linalg.solve(self.b, matrix)

    def factor(self) -> Tensor:
        return self.b

    def times(self, factor: float) -> Dense:
        return Dense(factor * self.b, self.mean)

    def tensors(self) -> dict[str, Tensor]:
        return _with_mean({"b": self.b}, self.mean)

    def kl_from(self, prior: Gaussian) -> float:
        return float(kl_divergence(self, prior))


def _require_mean(mean: Tensor | None, size: int) -> None:
    if mean is not None:
        require_shape("mean", mean, (size,))
        require(mean.dtype == torch.float64, "mean", "float64", mean.dtype)
        require_finite("mean", mean)


def _moved(draw: Tensor, mean: Tensor | None) -> Tensor:
    return draw if mean is None else draw + mean.to(draw)


def _with_mean(tensors: dict[str, Tensor], mean: Tensor | None) -> dict[str, Tensor]:
    return tensors if mean is None else {**tensors, "mean": mean}


def from_tensors(tensors: Mapping[str, Tensor]) -> Gaussian:
    """The Gaussian that `tensors` came from."""
    mean = tensors.get("mean")
    return Dense(tensors["b"], mean) if "b" in tensors else DiagonalRankOne(tensors["d"], tensors["q"], mean)


def kl_divergence(posterior: Gaussian, prior: Gaussian) -> Tensor:
    r"""KL(N(μ₁, B₁B₁ᵀ) ‖ N(μ₀, B₀B₀ᵀ)), which is ½‖B₀⁻¹(μ₁ − μ₀)‖² more than that of the same without means,

    .. math:: \tfrac12 (\|B_0^{-1} B_1\|_F^2 - n(c - 1)) + \log|\det B_0| - \log|\det B_1|.

    By [Boll22, Lemma 4.1] this is the divergence of the two classifiers. Computed from E = B₀⁻¹(B₁ − B₀) as

    .. math:: \mathrm{tr}\, E + \tfrac12 \|E\|_F^2 - \log|\det(I + E)|,

    in O(n c) if both are of the paper's family, where no large numbers cancel near equality. What rounding may have
    taken away is added, so that the divergence is never understated; if that is more than 1e-6, the factors are too
    ill-conditioned for a certificate: `ArithmeticError`. So is a value below −1e-8, which would be a defect.
    """
    size = prior.size
    require(posterior.size == size, "posterior", f"of the prior's size {size}", posterior.size)
    if isinstance(posterior, DiagonalRankOne) and isinstance(prior, DiagonalRankOne):
        value, magnitude = _rank_one_terms(posterior, prior)
    else:
        shift = prior.solve(posterior.factor() - prior.factor())
        squared, trace = (shift * shift).sum(), shift.trace()
        value = trace + squared / 2 - (posterior.logdet() - prior.logdet())
        one, zero = (
            g.condition if isinstance(g, Dense) else Dense(g.factor().detach()).condition for g in (posterior, prior)
        )
        magnitude = zero * (squared + (size * squared).sqrt()) + size * (one + zero)
        magnitude = magnitude + posterior.logdet().abs() + prior.logdet().abs()
    if posterior.mean is not None or prior.mean is not None:
        further, largest = _mean_terms(posterior, prior)
        value, magnitude = value + further, magnitude + largest
    allowance = 8 * torch.finfo(torch.float64).eps * float(magnitude.detach())
    if not allowance <= 1e-6:
        raise ArithmeticError(
            f"The KL divergence is only known up to {allowance:.1e}: d is too small beside q, or B too ill-conditioned."
        )
    if not float(value.detach()) >= -max(1e-8, allowance):
        raise ArithmeticError(f"The KL divergence came out as {float(value)}, which cannot be.")
    return value.clamp(min=0) + allowance


def _mean_terms(posterior: Gaussian, prior: Gaussian) -> tuple[Tensor, Tensor]:
    """½‖B₀⁻¹(μ₁ − μ₀)‖², and what rounding in it is relative to."""
    moved = posterior.mean if posterior.mean is not None else 0.0
    step = moved - prior.mean if prior.mean is not None else torch.as_tensor(moved)
    solved = prior.solve(step[:, None])[:, 0]
    if isinstance(prior, DiagonalRankOne):
        # Sherman–Morrison without cancellation, and with what 1 + Σ q²/d may have lost.
        ratio, scaled = (prior.q / prior.d).abs(), (step / prior.d).abs()
        lost = (1 + (prior.q**2 / prior.d).abs().sum()) / prior.capacity().abs()
        largest = scaled + ratio * (prior.q.abs() @ scaled) * lost / prior.capacity().abs()
        return solved @ solved / 2, largest @ largest
    condition = prior.condition if isinstance(prior, Dense) else Dense(prior.factor().detach()).condition
    return solved @ solved / 2, condition * (solved @ solved)


def _rank_one_terms(one: DiagonalRankOne, zero: DiagonalRankOne) -> tuple[Tensor, Tensor]:
    r"""The divergence of the paper's family, and the sum of the absolute values of what is added up in it.

    With e = (d₁ − d₀)/d₀, p = q₁ − q₀, x = p/d₀, r = q₀/d₀ and γ = 1/(1 + q₀ᵀr), Sherman–Morrison gives
    E = Diag(e) + x q₁ᵀ + r wᵀ, where w = γ(p − (d₁ − d₀)∘r − (rᵀp) q₁).
    """
    step, p, r, gamma = one.d - zero.d, one.q - zero.q, zero.q / zero.d, 1 / zero.capacity()
    e, x = step / zero.d, p / zero.d
    w = gamma * (p - step * r - (r @ p) * one.q)
    stretch = torch.where(e > -0.5, torch.log1p(e.clamp(min=-0.5)), (one.d / zero.d).abs().log())
    growth = gamma * (p * (one.q + zero.q) - zero.q**2 * e) / one.d
    grown = growth.sum()
    ratio = torch.log1p(grown) if float(grown.detach()) > -0.5 else (one.capacity() / zero.capacity()).abs().log()
    value = _trace_and_norm(e, x, one.q, r, w) - stretch.sum() - ratio
    largest = gamma.abs() * (p.abs() + (step * r).abs() + (r * p).abs().sum() * one.q.abs())
    magnitude = _trace_and_norm(e.abs(), x.abs(), one.q.abs(), r.abs(), largest)
    magnitude = magnitude + stretch.abs().sum() + growth.abs().sum() + 1
    # Where d has both signs, 1 + Σ q²/d may cancel, and γ with it.
    lost = [(1 + (g.q**2 / g.d).abs().sum()) / g.capacity().abs() for g in (one, zero)]
    return value, magnitude * torch.maximum(*lost) * (value.detach() != 0)


def _trace_and_norm(e: Tensor, x: Tensor, q: Tensor, r: Tensor, w: Tensor) -> Tensor:
    """tr E + ½‖E‖²_F for E = Diag(e) + x qᵀ + r wᵀ."""
    trace = e.sum() + x @ q + r @ w
    squares = e @ e + (x @ x) * (q @ q) + (r @ r) * (w @ w)
    return trace + squares / 2 + (e * x) @ q + (e * r) @ w + (x @ r) * (q @ w)
