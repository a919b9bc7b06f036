r"""The pushforward of a Gaussian start to the class logits, computed once per datum.

.. math:: \text{logits}(x) \sim N(M(x),\, P \hatΣ(x) P^⊤), \qquad \hatΣ = G^⊤ B B^⊤ G

M and G depend on the prior's network and flow only, never on the covariance B Bᵀ [Boll22, Prop. 4.2
and Thm. 4.3]: network and flow run once per datum, and everything after that lives on (M, G).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_shape
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.flows import check_inputs
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.simplex import coordinates, expand

Part = slice | Tensor
"""Some of the data: a slice of them, or their places."""


class Affine(Protocol):
    """Data whose logits are affine in Gaussian coordinates: all that fits and closed integrals ask for."""

    @property
    def mean(self) -> Tensor:
        """M, the logits at coordinates 0, of shape (m, c)."""

    def _asdict(self) -> dict[str, Any]:
        """All tensors by their names."""

    @property
    def size(self) -> int:
        """The number of coordinates."""

    @property
    def numbers(self) -> int:
        """How many numbers a datum has, for chunks."""

    def covariance(self, gaussian: Gaussian, part: Part, dtype: torch.dtype) -> Tensor:
        """Σ̂ of some data, (b, c−1, c−1), computed in that precision and differentiable in the Gaussian."""

    def shift(self, mean: Tensor, part: Part, dtype: torch.dtype) -> Tensor:
        """What the coordinates μ add to the logits of some data, (b, c)."""


class Pushforward(NamedTuple):
    """(M, G) of a set of data."""

    mean: Tensor
    """M, the mean logits, of shape (m, c)."""
    rows: Tensor
    """Gᵀ, the transpose of G = (I ⊗ P)ᵀU, of shape (m, c−1, n(c−1)): a row for every class but the last,
    contiguous, so that d and q act along the fastest axis."""
    error: Tensor
    """Estimated error of a mean logit or of a row of G, per datum; of shape (m,), float64."""

    @property
    def size(self) -> int:
        """n(c − 1)."""
        return self.rows.shape[2]

    @property
    def numbers(self) -> int:
        """Those of G."""
        return self.rows[0].numel()

    def covariance(self, gaussian: Gaussian, part: Part, dtype: torch.dtype) -> Tensor:
        """Σ̂ = (GᵀB)(GᵀB)ᵀ. [Boll22, Thm. 4.3]"""
        return covariance(self.rows[part].to(dtype), gaussian)

    def shift(self, mean: Tensor, part: Part, dtype: torch.dtype) -> Tensor:
        """P Gᵀμ."""
        rows = self.rows[part].to(dtype)
        return expand(rows @ mean.to(rows))


def push(
    flow: str,
    parameter: Tensor,
    features: Tensor,
    horizon: float = 1.0,
    *,
    tolerance: float | None = None,
) -> Pushforward:
    r"""(M, G) for features of shape (m, n, c), in the features' precision.

    M = F[0] + Tφ₁(TA)b[0] is what `flows.forward` returns; G = (I ⊗ P)ᵀe^{TAᵀ}[e₁ … e_{c−1}] takes c − 1
    matrix functions, together about c forward passes [Boll22, Sec. 4.3]. Memory beyond the result
    is that of one chunk and its Krylov basis.

    The error of the matrix function is part of what the classifier *is*: every datum's (M, G) is a function of that
    datum alone, up to rounding (see `krylov`), so a certificate holds for the classifier as computed. Products in
    reduced precision (TF32, bfloat16) are refused: they would be a thousand times less exact than `error` says.
    """
    entry = check_inputs(flow, parameter, features, horizon)
    if features.dtype == torch.float32:
        try:
            precision = torch.get_float32_matmul_precision()
        except RuntimeError:  # torch's newer switches were set, in a way that the older one cannot express
            precision = "set by fp32_precision"
        require(
            precision == "highest", "torch's float32 matmul precision", "'highest' while pushing forward", precision
        )
    num_data, num_nodes, num_classes = features.shape
    mean = features.new_empty(num_data, num_classes)
    rows = features.new_empty(num_data, num_classes - 1, num_nodes * (num_classes - 1))
    error = torch.empty(num_data, dtype=torch.float64, device=features.device)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        for part in chunks(num_data, 2 * (num_classes - 1) * num_nodes * num_classes):
            logits = entry.integrate(parameter, features[part], None, horizon, tolerance)
            seen = entry.rows(parameter, features[part], horizon, tolerance)
            mean[part] = logits.value[:, 0]
            rows[part] = coordinates(seen.value).flatten(-2)
            # Pᵀ has norm √c, so a row of U that is off by ε is off by at most √c ε in G.
            error[part] = torch.maximum(logits.error[:, 0], num_classes**0.5 * seen.error.amax(-1))
    return Pushforward(mean, rows, error)


def covariance(rows: Tensor, gaussian: Gaussian) -> Tensor:
    r"""Σ̂ = (GᵀB)(GᵀB)ᵀ of shape (m, c−1, c−1), in O(n c²) per datum. [Boll22, Thm. 4.3]"""
    require_shape("rows", rows, (None, None, gaussian.size))
    return gaussian.covariance(rows)


def logit_mean(cache: Affine, gaussian: Gaussian, part: Part, dtype: torch.dtype) -> Tensor:
    """The logits' mean: M as it is cached, or moved by the Gaussian's own mean and then in that precision."""
    mean = cache.mean[part]
    return mean if gaussian.mean is None else mean.to(dtype) + cache.shift(gaussian.mean, part, dtype)


def logit_factor(cache: Affine, gaussian: Gaussian) -> Tensor:
    r"""Cholesky factor H of Σ̂ = H Hᵀ in float64, of shape (m, c−1, c−1), whatever the dtype of the cache.

    A covariance that is not positive definite in float64 is an `ArithmeticError`: no jitter, because
    the result would certify another classifier.
    """
    num_data = len(cache.mean)
    require(num_data >= 1, "cache", "of at least one datum", f"of {num_data}")
    require(gaussian.size == cache.size, "gaussian", f"of size {cache.size}", gaussian.size)
    parts = chunks(num_data, cache.numbers)
    return cholesky(torch.cat([cache.covariance(gaussian, part, torch.float64) for part in parts]))


def cholesky(matrices: Tensor) -> Tensor:
    """Lower Cholesky factors, or an `ArithmeticError` that says which datum has none."""
    factor, info = torch.linalg.cholesky_ex(matrices)
    if bool((info != 0).any()) or not bool(torch.isfinite(factor.detach().sum())):
        bad = (info != 0) | ~torch.isfinite(factor.detach()).flatten(1).all(-1)
        where = torch.nonzero(bad)
        raise ArithmeticError(
            f"The logit covariance of {len(where)} of {len(matrices)} data, first at position {int(where[0])} of them, "
            f"is not positive definite in {matrices.dtype}: the start's covariance or the flow is degenerate."
        )
    return factor


def class_factor(factor: Tensor) -> Tensor:
    r"""P H of shape (…, c, c−1): from white noise to the deviation of all c logits."""
    require(factor.ndim >= 2, "factor", "a batch of matrices", tuple(factor.shape))
    return torch.cat([factor, -factor.sum(-2, keepdim=True)], dim=-2)
