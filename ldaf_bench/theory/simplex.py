r"""Geometry of the assignment manifold: one probability simplex per node.

States and tangent vectors have shape (…, n, c): node first, class last. Everything acts on the
class axis and leaves the others alone. [Boll22, Sec. 2.1]
"""

from __future__ import annotations

import torch
from torch import Tensor


def project(v: Tensor) -> Tensor:
    r"""Orthogonal projection onto the tangent space, Π₀v = v − mean over classes."""
    return v - v.mean(-1, keepdim=True)


def root(u: Tensor, v: Tensor) -> Tensor:
    r"""A factor of the replicator R_s v = s∘v − s⟨s, v⟩: D v = u∘(v − u⟨u, v⟩) with u = √s, so that D Dᵀ = R_s.

    Because ‖u‖ = 1, I − uuᵀ is an orthogonal projection, and
    D Dᵀ = Diag(u)(I − uuᵀ)Diag(u) = Diag(s) − ssᵀ. It is exact, needs no factorization and stays
    accurate at the simplex' boundary, where R_s itself is nearly singular.
    """
    return u * (v - u * (u * v).sum(-1, keepdim=True))


def root_adjoint(u: Tensor, v: Tensor) -> Tensor:
    r"""The adjoint factor, Dᵀv = (I − uuᵀ)(u∘v) with u = √s; see `root`."""
    uv = u * v
    return uv - u * (u * uv).sum(-1, keepdim=True)


def expand(z: Tensor) -> Tensor:
    r"""From coordinates to the tangent space, P z = (z; −1ᵀz). [Boll22, Thm. 4.3]"""
    return torch.cat([z, -z.sum(-1, keepdim=True)], dim=-1)


def coordinates(v: Tensor) -> Tensor:
    r"""The adjoint of `expand`, Pᵀv = v₁…v_{c−1} − v_c."""
    return v[..., :-1] - v[..., -1:]
