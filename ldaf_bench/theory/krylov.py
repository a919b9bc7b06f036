r"""Actions of the φ-functions of a symmetric operator, by Lanczos, with error bound and gradient.

.. math::
    y = T^p \varphi_p(T H)\, w, \qquad
    \varphi_0(z) = e^z, \quad \varphi_p(z) = \int_0^1 e^{(1-θ)z} \frac{θ^{p-1}}{(p-1)!}\, dθ

Vectors stand in the last axis, of shape (batch, rows, N): many data at once, and for each of them
many right-hand sides. The operator is given as ``apply(params, v)``; it must be symmetric in v and
may differ from datum to datum through `params`.

Every element of the batch is treated on its own: it stops at its own dimension, as soon as its own error estimate
allows or its own Krylov space is exhausted, and what it returns does not depend on its neighbours in the batch, up to
rounding. A certificate needs this: the classifier must be a function of its input, not of the certificate set.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_positive, require_shape

Apply = Callable[[Sequence[Tensor], Tensor], Tensor]

DEFAULT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-7}
"""Truncation error, relative to T^p‖w‖/p!, that is asked for when nobody says."""


class Lanczos(NamedTuple):
    r"""The relation H Vᵀ = Vᵀ J + β_k v_{k+1} e_kᵀ, with J tridiagonal and V's rows orthonormal."""

    basis: Tensor
    """V, of shape (batch, rows, k, N); rows past an element's own dimension are zero."""
    diagonal: Tensor
    """α₁ … α_k, of shape (batch, rows, k), zero past an element's own dimension."""
    offdiagonal: Tensor
    """β₁ … β_k; β_k belongs to the residual and is not part of J."""
    residual: Tensor
    """β_k v_{k+1}, of shape (batch, rows, N)."""
    norm: Tensor
    """‖w‖, of shape (batch, rows)."""
    log_error: Tensor
    """Logarithm of the estimate that the element stopped at; see `log_truncation`."""


def log_truncation(order: int, horizon: float, norm: Tensor, diagonal: Tensor, offdiagonal: Tensor) -> Tensor:
    r"""A-posteriori estimate of ‖T^p φ_p(TH)w − ‖w‖ V T^p φ_p(TJ)e₁‖ after k steps, as a logarithm.

    .. math:: \|w\| \, β_1 \cdots β_k \, \frac{T^{k+p}}{(k+p)!} \, e^{T \max(μ, 0)}

    The error solves ε' = Hε + r with the residual r(t) = ‖w‖ β_k [t^p φ_p(tJ)]_{k1} v_{k+1}, so
    ε(T) = ∫ e^{(T−t)H} r(t) dt [Saad92]. In f(J)e₁ only powers J^{k−1} and higher reach the last entry, so [f(J)]_{k1}
    is β₁ … β_{k−1} times a divided difference of f of order k − 1 at the Ritz values, which is at most
    f^{(k−1)}(μ)/(k−1)! because all derivatives of φ_p increase. Integrating gives the formula.

    It is a bound if μ is at least the largest eigenvalue of H that w has a component of. Taken for μ is Gershgorin's
    bound for J, with the residual's β_k counted in; an eigenvalue far above that shows itself by a large β as soon as
    its component in w is above rounding. Costs O(k), so that it can be asked after every step. Zero after breakdown.
    """
    size = diagonal.shape[-1]
    before = torch.nn.functional.pad(offdiagonal[..., :-1], (1, 0))
    top = (diagonal + before + offdiagonal).amax(-1).clamp(min=0)
    powers = (size + order) * math.log(horizon) - math.lgamma(size + order + 1)
    return norm.log() + offdiagonal.log().sum(-1) + powers + horizon * top


def lanczos(
    apply: Callable[[Tensor], Tensor],
    start: Tensor,
    max_dim: int,
    log_error: Callable[[Tensor, Tensor, Tensor], Tensor],
    log_tolerance: Tensor,
) -> Lanczos:
    """Symmetric three-term recurrence, for every element until its error is within its tolerance.

    An element that is done gets β = 0 and zero vectors from there on: J decouples, and nothing that
    happens later reaches it. A breakdown (β = 0, the Krylov space is invariant) makes the bound zero
    and is the same case. No reorthogonalization: for functions of H, the loss of orthogonality that sets in when a
    Ritz value has converged delays convergence but does not spoil it (Druskin and Knizhnerman, 1991).
    """
    norm = start.norm(dim=-1)
    tiny = torch.finfo(start.dtype).tiny
    vector = start / norm.clamp(min=tiny)[..., None]
    previous, beta = torch.zeros_like(vector), torch.zeros_like(norm)
    active = norm > 0
    reached = torch.full_like(norm, -math.inf, dtype=torch.float64)
    vectors, diagonal, offdiagonal = [], [], []
    for _ in range(max_dim):
        residual = torch.addcmul(apply(vector), previous, beta[..., None], value=-1)
        alpha = (residual * vector).sum(-1)
        residual = torch.addcmul(residual, vector, alpha[..., None], value=-1)
        beta = residual.norm(dim=-1)
        vectors.append(vector)
        diagonal.append(alpha)
        offdiagonal.append(beta)
        alphas = torch.stack(diagonal, -1).double()
        betas = torch.stack(offdiagonal, -1).double()
        error = log_error(norm.double(), alphas, betas)
        reached = torch.where(active, error, reached)
        active = active & (error > log_tolerance)
        if not active.any():
            break
        beta = torch.where(active, beta, 0)
        previous = vector
        # An element that is done continues as the zero vector.
        vector = residual * torch.where(active, 1 / beta.clamp(min=tiny), 0)[..., None]
        offdiagonal[-1] = beta
    return Lanczos(
        torch.stack(vectors, -2),
        torch.stack(diagonal, -1),
        torch.stack(offdiagonal, -1),
        residual,
        norm,
        reached,
    )


def phi(order: int, z: Tensor) -> Tensor:
    r"""φ_p(z) for p = 0, 1, 2, without cancellation at 0. [Higham08, Sec. 10.7.4]"""
    if order == 0:
        return z.exp()
    near = z.abs() < 1.0
    safe = torch.where(near, torch.ones_like(z), z)
    far = torch.expm1(safe) / safe if order == 1 else (torch.expm1(safe) - safe) / safe**2
    series = torch.zeros_like(z)
    for k in range(18, -1, -1):  # 1/20! is below float64's resolution
        series = series * z + 1 / math.factorial(k + order)
    return torch.where(near, series, far)


def phi_divided_difference(order: int, x: Tensor, y: Tensor) -> Tensor:
    r"""φ_p[x, y] = (φ_p(x) − φ_p(y))/(x − y), and φ_p′(x) where they meet.

    From φ_p's integral and e^{sx}[x, y] = s e^{s(x+y)/2} sinhc(s(x−y)/2), by Gauss–Legendre in θ with nodes enough for
    the largest argument: no cancellation for close ones.
    """
    middle, half = (x + y) / 2, (x - y) / 2
    if order == 0:
        return middle.exp() * _sinhc(half)
    num_nodes = 32 + int(torch.maximum(x.abs().max(), y.abs().max()).clamp(max=1000) / 2)
    nodes, weights = (torch.as_tensor(a).to(x) for a in np.polynomial.legendre.leggauss(num_nodes))
    theta = (nodes + 1) / 2
    scale = weights / 2 * (1 - theta) * theta ** (order - 1) / math.factorial(order - 1)
    middle, half = (1 - theta) * middle[..., None], (1 - theta) * half[..., None]
    return (middle.exp() * _sinhc(half)) @ scale


def _sinhc(z: Tensor) -> Tensor:
    """sinh(z)/z, and 1 at 0."""
    small = z.abs() < 1e-4
    safe = torch.where(small, torch.ones_like(z), z)
    return torch.where(small, 1 + z * z / 6, torch.sinh(safe) / safe)


def _eigen(space: Lanczos) -> tuple[Tensor, Tensor, Tensor]:
    """Ritz values, eigenvectors of J, and ‖w‖ times their first components; in float64."""
    off = space.offdiagonal[..., :-1].double()
    tridiagonal = torch.diag_embed(space.diagonal.double())
    tridiagonal = tridiagonal + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    values, vectors = torch.linalg.eigh(tridiagonal)
    return values, vectors, vectors[..., 0, :] * space.norm.double()[..., None]


def _evaluate(order: int, horizon: float, space: Lanczos) -> tuple[Tensor, Tensor]:
    """‖w‖ Vᵀ T^p φ_p(TJ) e₁, and its error: truncation plus an allowance for rounding."""
    values, vectors, first = _eigen(space)
    column = vectors @ (phi(order, horizon * values) * first)[..., None]
    column = (horizon**order * column).to(space.basis.dtype)
    # Past its own dimension an element's J is padded with zeros, whose Ritz values w has no part in.
    seen = torch.where(first.abs() > 1e-15 * space.norm.double()[..., None], values, values[..., :1])
    magnitude = horizon**order * phi(order, horizon * seen.amax(-1)) * space.norm.double()
    # Rounding in J moves the Ritz values by eps‖H‖, which the exponential turns into a relative error of T eps‖H‖.
    relative = torch.finfo(space.basis.dtype).eps * (space.diagonal.shape[-1] + 2 * horizon * seen.abs().amax(-1))
    rounding = relative * magnitude
    return (space.basis.mT @ column)[..., 0], space.log_error.exp() + rounding


class _Settings(NamedTuple):
    """Which function, and how accurately."""

    order: int
    horizon: float
    tolerance: float
    max_dim: int


def _space(settings: _Settings, apply: Apply, params: Sequence[Tensor], start: Tensor) -> Lanczos:
    """The Krylov space of `start`, large enough for the tolerance; refuses to return less."""
    order, horizon, tolerance, max_dim = settings
    scale = start.norm(dim=-1).double() * (horizon**order / math.factorial(order))
    log_tolerance = (tolerance * scale).log()

    def log_error(norm: Tensor, diagonal: Tensor, offdiagonal: Tensor) -> Tensor:
        return log_truncation(order, horizon, norm, diagonal, offdiagonal)

    space = lanczos(lambda v: apply(params, v), start, max_dim, log_error, log_tolerance)
    if not (space.log_error <= log_tolerance).all():
        gap = space.log_error - log_tolerance
        if not bool(torch.isfinite(space.diagonal).all() & torch.isfinite(space.offdiagonal).all()):
            raise ArithmeticError("The matrix function did not converge: operator or start are not finite.")
        worst = float(gap[torch.isfinite(gap)].max()) / math.log(10)
        raise ArithmeticError(
            f"The matrix function did not converge: after {space.diagonal.shape[-1]} Krylov steps its error estimate "
            f"is still 10^{worst:.1f} times the tolerance {tolerance:g}. The operator is too large (diverging "
            f"fitness or horizon?); raise max_dim only if it is meant to be so."
        )
    return space


class _PhiAction(torch.autograd.Function):
    """`phi_action` with a gradient that keeps nothing but its inputs."""

    @staticmethod
    def forward(ctx, settings, apply, start, *params):  # type: ignore[no-untyped-def]
        space = _space(settings, apply, params, start)
        ctx.settings, ctx.operator = settings, apply
        ctx.save_for_backward(start, *params)
        value, error = _evaluate(settings.order, settings.horizon, space)
        ctx.mark_non_differentiable(error)
        return value, error

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, _):  # type: ignore[no-untyped-def]
        r"""With U, J_u the Krylov space of the gradient g and V, J_v that of w, the derivative of
        ⟨g, f(H)w⟩ is f(H)g in w, and in H the low-rank matrix Uᵀ X V with
        X = Q_u (f[θ_u, θ_v] ∘ a_u a_vᵀ) Q_vᵀ; f[·,·] is the divided difference at the Ritz
        values [Zeilmann21; Higham08, Sec. 3.2]. Both spaces are made here, not kept.
        """
        start, *params = ctx.saved_tensors
        order, horizon, *_ = ctx.settings
        left = _space(ctx.settings, ctx.operator, params, gradient.contiguous())
        right = _space(ctx.settings, ctx.operator, params, start)
        values_u, vectors_u, first_u = _eigen(left)
        values_v, vectors_v, first_v = _eigen(right)
        difference = phi_divided_difference(order, horizon * values_u[..., :, None], horizon * values_v[..., None, :])
        core = horizon ** (order + 1) * difference * first_u[..., :, None] * first_v[..., None, :]
        core = (vectors_u @ core @ vectors_v.mT).to(start.dtype)
        with torch.enable_grad():
            needs = ctx.needs_input_grad[3:]
            leaves = [p.detach().requires_grad_(need) for p, need in zip(params, needs, strict=True)]
            image = ctx.operator(leaves, (core @ right.basis).flatten(1, 2))
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            scalar = (left.basis.flatten(1, 2) * image).sum()
            found = iter(torch.autograd.grad(scalar, wanted) if wanted else ())
        grads = [next(found) if leaf.requires_grad else None for leaf in leaves]
        return None, None, _evaluate(order, horizon, left)[0], *grads


def phi_action(
    order: int,
    horizon: float,
    apply: Apply,
    params: Sequence[Tensor],
    start: Tensor,
    *,
    tolerance: float | None = None,
    max_dim: int = 200,
) -> tuple[Tensor, Tensor]:
    r"""y = T^p φ_p(TH) w for symmetric H, and an estimate of ‖error‖ for every element.

    `start` is w, of shape (batch, rows, N); ``apply(params, v)`` is Hv, for any number of rows. The
    dimension is chosen for every element from `log_truncation`, so that the error is at most
    `tolerance` relative to ‖T^p φ_p(0) w‖; if `max_dim` steps do not suffice, `ArithmeticError`.
    Returns y and the error (truncation and rounding), of shapes (batch, rows, N) and (batch, rows).
    Differentiable once in `start` and in every tensor of `params`.
    """
    require(order in (0, 1, 2), "order", "0, 1 or 2", order)
    require_positive("horizon", horizon)
    require_shape("start", start, (None, None, None))
    require(start.dtype in DEFAULT_TOLERANCE, "start", "float32 or float64", start.dtype)
    require_count("max_dim", max_dim)
    if tolerance is None:
        tolerance = DEFAULT_TOLERANCE[start.dtype]
    require_positive("tolerance", tolerance)
    settings = _Settings(order, horizon, tolerance, max_dim)
    result: tuple[Tensor, Tensor] = _PhiAction.apply(settings, apply, start, *params)
    return result
