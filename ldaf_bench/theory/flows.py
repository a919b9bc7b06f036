r"""FLOWS: how features and a start v₀ become the logits of the class node.

The linearized deep assignment flow [Boll22, Sec. 3.3] of a datum with features F and S₀ = softmax(F) is

.. math:: \dot v = A v + b, \quad A = Π_0 Ω R_{s_0}, \quad b = Π_0 Ω s_0, \qquad
          v(T) = e^{TA} v_0 + T φ_1(TA)\, b, \qquad \text{logits} = F_{[0]} + v(T)_{[0]}.

A is not symmetric, but R = D Dᵀ with D of `simplex.root`, and f(XY)X = X f(YX) [Higham08, Cor. 1.34] for
X = Π₀ΩD and Y = Dᵀ turns every function of A into one of the symmetric H = DᵀΩD:

.. math::
    e^{TA} &= I + Π_0 Ω D \;[T φ_1(TH)]\; D^⊤ \\
    T φ_1(TA) b &= T b + Π_0 Ω D \;[T^2 φ_2(TH)]\; D^⊤ b

So Lanczos takes Arnoldi's place, in the Euclidean inner product and without dividing by anything that is small at
the boundary of the simplex. An entry of FLOWS is a `Flow`: plain functions, differentiable in
the parameter and in the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import (
    require,
    require_count,
    require_entry,
    require_finite,
    require_positive,
    require_shape,
    require_symmetric,
)
from ldaf_bench.theory.krylov import DEFAULT_TOLERANCE, phi_action
from ldaf_bench.theory.simplex import project, root, root_adjoint


class Logits(NamedTuple):
    """What a flow says of a batch of data."""

    value: Tensor
    """Logits of the class node, of shape (batch, rows, c): a row for every start."""
    error: Tensor
    """Estimated error of any logit, truncation and rounding; of shape (batch, rows), float64."""


class Rows(NamedTuple):
    r"""The rows of e^{TA} that the class node sees, U = e^{TAᵀ}[e₁ … e_{c−1}]."""

    value: Tensor
    """U, of shape (batch, c − 1, n, c)."""
    error: Tensor
    """Estimated error of every row in the Euclidean norm, of shape (batch, c − 1), float64."""


Integrate = Callable[[Tensor, Tensor, Tensor | None, float, float | None], Logits]
"""(parameter, features, starts (batch, rows, n, c) or `None` for one at 0, horizon, tolerance) → logits."""

RowsOf = Callable[[Tensor, Tensor, float, float | None], Rows]
"""(parameter, features, horizon, tolerance) → the rows that carry a Gaussian start to the class logits."""


@dataclass(frozen=True)
class Flow:
    """An entry of FLOWS."""

    shape: Callable[[int, int], tuple[int, ...]]
    """The parameter's shape, from n and c."""
    constrain: Callable[[Tensor], Tensor]
    """From an unconstrained tensor of that shape, as an optimizer moves it, to a valid parameter."""
    check: Callable[[Tensor], None]
    """Refuses an invalid parameter with a `ValueError`."""
    integrate: Integrate
    rows: RowsOf


class Fitness(NamedTuple):
    """A symmetric fitness operator Ω on node × class vectors."""

    act: Callable[[Tensor, Tensor], Tensor]
    """Ω v, for v of shape (…, n, c)."""
    columns: Callable[[Tensor, int], Tensor]
    """Ω [e₁ … e_c] at the class node, of shape (n, c, c): the last axis counts the columns."""


def _dense_act(omega: Tensor, v: Tensor) -> Tensor:
    size = v.shape[-2] * v.shape[-1]
    return (v.reshape(-1, size) @ omega.reshape(size, size)).view(v.shape)


def _kronecker_act(omega: Tensor, v: Tensor) -> Tensor:
    # As one matrix product over all data, rows and classes: a batched n × n by n × c product is slower.
    moved = v.transpose(-1, -2)
    return (moved.reshape(-1, moved.shape[-1]) @ omega).view(moved.shape).transpose(-1, -2)


def _kronecker_columns(omega: Tensor, num_classes: int) -> Tensor:
    identity = torch.eye(num_classes, dtype=omega.dtype, device=omega.device)
    return omega[:, 0, None, None] * identity


DENSE = Fitness(act=_dense_act, columns=lambda omega, _: omega[:, :, 0, :])
KRONECKER = Fitness(act=_kronecker_act, columns=_kronecker_columns)


def _symmetrized(fitness: Fitness, params: Sequence[Tensor], v: Tensor) -> Tensor:
    """H v = DᵀΩD v, for v of shape (batch, rows, N)."""
    u, omega = params
    shaped = v.unflatten(-1, u.shape[-2:])
    u = u[:, None]
    return root_adjoint(u, fitness.act(omega, root(u, shaped))).flatten(-2)


def _root_of_state(features: Tensor) -> Tensor:
    # exp(½ log s) rather than √s: its gradient stays finite where a probability underflows.
    return (torch.log_softmax(features, dim=-1) / 2).exp()


def _assignment_integrate(
    fitness: Fitness,
    omega: Tensor,
    features: Tensor,
    start: Tensor | None,
    horizon: float,
    tolerance: float | None,
) -> Logits:
    r"""F[0] + v(T)[0] with v(T) = v₀ + T b′ + Π₀ΩD T²φ₂(TH) Dᵀb′ and b′ = A v₀ + b.

    The form follows from e^{TA}v₀ = v₀ + Tφ₁(TA)A v₀: one matrix function per start.
    """
    u = _root_of_state(features)[:, None]
    state = u * u
    if start is not None:
        state = state + root(u, root_adjoint(u, start))
    drift = project(fitness.act(omega, state))
    begin = root_adjoint(u, drift).flatten(-2)
    step, error = phi_action(2, horizon, partial(_symmetrized, fitness), (u[:, 0], omega), begin, tolerance=tolerance)
    columns = project(fitness.columns(omega, features.shape[-1])).flatten(0, 1)
    seen = root(u, step.unflatten(-1, features.shape[-2:])).flatten(-2) @ columns
    begun = features[:, None, 0] if start is None else features[:, None, 0] + start[..., 0, :]
    moved = horizon * drift[..., 0, :] + seen
    # |⟨ΩΠ₀e_j, D ε⟩| ≤ ‖ΩΠ₀e_j‖ ‖D‖ ‖ε‖ and ‖D‖² = ‖R‖ ≤ ½
    propagated = error * columns.detach().norm(dim=0).amax().double() * math.sqrt(0.5)
    return Logits(begun + moved, propagated + _rounding(features, begun.abs().amax(-1), moved.abs().amax(-1)))


def _assignment_rows(
    fitness: Fitness, omega: Tensor, features: Tensor, horizon: float, tolerance: float | None
) -> Rows:
    r"""U_i = e_i + D [Tφ₁(TH)] DᵀΩΠ₀e_i, all c − 1 rows of all data in one recurrence."""
    num_nodes, num_classes = features.shape[-2:]
    u = _root_of_state(features)[:, None]
    columns = project(fitness.columns(omega, num_classes))[..., :-1].movedim(-1, 0)
    begin = root_adjoint(u, columns).flatten(-2)
    step, error = phi_action(1, horizon, partial(_symmetrized, fitness), (u[:, 0], omega), begin, tolerance=tolerance)
    moved = root(u, step.unflatten(-1, (num_nodes, num_classes)))
    unit = torch.eye(num_classes, dtype=features.dtype, device=features.device)[:-1]
    value = moved + torch.nn.functional.pad(unit[:, None], (0, 0, 0, num_nodes - 1))
    length = moved.flatten(-2).norm(dim=-1)
    return Rows(value, error * math.sqrt(0.5) + _rounding(features, torch.ones_like(length), length))


def _rounding(features: Tensor, given: Tensor, made: Tensor) -> Tensor:
    """Allowance for the rounding of a sum of what is `given` and what is `made` from S₀, in float64.

    The exponential in S₀ turns rounding of F into a relative error of |F| eps.
    """
    largest = features.detach().abs().flatten(1).amax(1, keepdim=True).double()
    weighted = 4 * given.detach().double() + (8 + 2 * largest) * made.detach().double()
    return torch.finfo(features.dtype).eps * weighted


def _linear_map(weight: Tensor) -> Tensor:
    r"""L = E₀ + Π₀WΠ₀ of shape (c, n, c), where E₀ takes the class node out."""
    identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
    taken = torch.nn.functional.pad(identity[:, None], (0, 0, 0, weight.shape[1] - 1))
    return taken + project(project(weight).movedim(0, -1)).movedim(-1, 0)


def _linear_integrate(
    weight: Tensor, features: Tensor, start: Tensor | None, horizon: float, tolerance: float | None
) -> Logits:
    r"""Logits L(F + v₀): the same map for every datum, no horizon. [Boll22, Sec. 5.2]"""
    moved = features[:, None] if start is None else features[:, None] + start
    matrix = _linear_map(weight)
    value = torch.einsum("brnc,jnc->brj", moved, matrix)
    added = torch.einsum("brnc,jnc->brj", moved.detach().abs(), matrix.detach().abs())
    return Logits(value, 4 * torch.finfo(value.dtype).eps * added.amax(-1).double())


def _linear_rows(weight: Tensor, features: Tensor, horizon: float, tolerance: float | None) -> Rows:
    """The rows of L itself, whatever the datum."""
    value = _linear_map(weight)[:-1].expand(len(features), -1, -1, -1)
    return Rows(value, torch.finfo(value.dtype).eps * value.detach().flatten(-2).norm(dim=-1).double())


def _half_sum_dense(weight: Tensor) -> Tensor:
    return (weight + weight.permute(2, 3, 0, 1)) / 2


def _check_dense(omega: Tensor) -> None:
    require_shape("omega", omega, (None, None, *omega.shape[:2]))
    size = omega.shape[0] * omega.shape[1]
    require_finite("omega", omega)
    require_symmetric("omega", omega.reshape(size, size))


def _check_kronecker(omega: Tensor) -> None:
    require_shape("omega", omega, (omega.shape[0], omega.shape[0]))
    require_finite("omega", omega)
    require_symmetric("omega", omega)


def _check_linear(weight: Tensor) -> None:
    require_shape("omega", weight, (weight.shape[-1], None, weight.shape[-1]))
    require_finite("omega", weight)


FLOWS: dict[str, Flow] = {
    "daf": Flow(
        shape=lambda n, c: (n, c, n, c),
        constrain=_half_sum_dense,
        check=_check_dense,
        integrate=partial(_assignment_integrate, DENSE),
        rows=partial(_assignment_rows, DENSE),
    ),
    "sflow": Flow(
        shape=lambda n, c: (n, n),
        constrain=lambda weight: (weight + weight.mT) / 2,
        check=_check_kronecker,
        integrate=partial(_assignment_integrate, KRONECKER),
        rows=partial(_assignment_rows, KRONECKER),
    ),
    "linear": Flow(
        shape=lambda n, c: (c, n, c),
        constrain=lambda weight: weight,
        check=_check_linear,
        integrate=_linear_integrate,
        rows=_linear_rows,
    ),
}
"""The fitness operators of the paper (`daf`, `sflow`), and the linear map of its discussion."""


def initial_parameter(
    flow: str,
    num_nodes: int,
    num_classes: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """A random valid parameter, scaled so that Ω's spectral radius is about 1 whatever n and c."""
    require_entry("flow", flow, FLOWS)
    require_count("num_nodes", num_nodes)
    require_count("num_classes", num_classes, minimum=2)
    shape = FLOWS[flow].shape(num_nodes, num_classes)
    fan_in = num_nodes if flow == "sflow" else num_nodes * num_classes
    device = generator.device if generator is not None else None
    weight = torch.randn(shape, generator=generator, dtype=dtype, device=device) / math.sqrt(2 * fan_in)
    return FLOWS[flow].constrain(weight)


def check_inputs(flow: str, parameter: Tensor, features: Tensor, horizon: float) -> Flow:
    """The flow of that name, after refusing a parameter or features that do not fit it."""
    require_entry("flow", flow, FLOWS)
    entry = FLOWS[flow]
    require_shape("features", features, (None, None, None))
    enough = features.shape[0] >= 1 and features.shape[1] >= 1 and features.shape[2] >= 2
    require(enough, "features", "of at least one datum, one node and two classes", f"of shape {tuple(features.shape)}")
    require(features.dtype in DEFAULT_TOLERANCE, "features", "float32 or float64", features.dtype)
    require_finite("features", features)
    require_shape("omega", parameter, entry.shape(*features.shape[1:]))
    require(parameter.dtype == features.dtype, "omega", f"of the features' dtype {features.dtype}", parameter.dtype)
    entry.check(parameter)
    require_positive("horizon", horizon)
    return entry


def forward(
    flow: str,
    parameter: Tensor,
    features: Tensor,
    horizon: float = 1.0,
    *,
    tolerance: float | None = None,
) -> Tensor:
    """Logits (batch, c) of the deterministic classifier, whose flow starts at v₀ = 0.

    Features are of shape (batch, n, c). Differentiable in features and parameter: this is the head
    that a prior is trained with. Runs in the features' precision, inside mixed-precision training as well.
    """
    entry = check_inputs(flow, parameter, features, horizon)
    with torch.autocast(features.device.type, enabled=False):
        return entry.integrate(parameter, features, None, horizon, tolerance).value[:, 0]
