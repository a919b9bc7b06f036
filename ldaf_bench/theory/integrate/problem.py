"""What an integrator is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_finite, require_labels, require_shape
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.flows import check_inputs
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.pushforward import Pushforward, class_factor, logit_factor
from ldaf_bench.theory.simplex import expand

Loss = Literal["zero_one", "cross_entropy"]
Draw = Callable[[slice, int, torch.Generator], Tensor]


@dataclass(frozen=True)
class Problem:
    r"""The integrals E[ℓ(M_k + P H_k ξ, y_k)], ξ ~ N(0, I_{c−1}), one for every datum. [Boll22, Sec. 4.4]"""

    mean: Tensor
    """M, of shape (m, c); estimates evaluate the integrand in its dtype, `mc` and `bonferroni` in float64."""
    factor: Tensor
    """H, of shape (m, c−1, c−1), with H Hᵀ = Σ̂; float64 if the guarantees are to be exact."""
    labels: Tensor
    """y, of shape (m,), in 0 … c−1."""
    gaussian: Gaussian | None = None
    """The start's distribution that H comes from; without it, the risk cannot be certified."""
    draw: Draw | None = None
    """Logits (data of a slice, samples, c) by running the flow from fresh starts; for `forward_mc`."""

    def __post_init__(self) -> None:
        require_shape("mean", self.mean, (None, None))
        num_data, num_classes = self.mean.shape
        require(num_data >= 1, "mean", "of at least one datum", f"of shape {tuple(self.mean.shape)}")
        require(num_classes >= 2, "mean", "of at least two classes", f"of shape {tuple(self.mean.shape)}")
        require_shape("factor", self.factor, (num_data, num_classes - 1, num_classes - 1))
        require_labels("labels", self.labels, num_data, num_classes)
        object.__setattr__(self, "labels", self.labels.long())  # files of labels often hold bytes
        require_finite("mean", self.mean)
        require_finite("factor", self.factor)

    @property
    def num_data(self) -> int:
        """m."""
        return len(self.mean)

    @property
    def num_classes(self) -> int:
        """c."""
        return self.mean.shape[1]

    def differences(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        r"""Mean (m, c−1) and factor (m, c−1, c−1) of D_j = logit_j − logit_y, over j ≠ y, in the mean's dtype.

        The 0-1 loss is 1 exactly where some D_j ≥ 0: a tie counts as an error.
        """
        dtype = dtype or self.mean.dtype
        return differences(self.mean.to(dtype), self.factor.to(dtype), self.labels)


def differences(mean: Tensor, factor: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`Problem.differences` for tensors that have been checked already."""
    rivals = torch.arange(mean.shape[1] - 1, device=mean.device).expand_as(mean[:, 1:])
    rivals = rivals + (rivals >= labels[:, None])  # skips y
    logits = class_factor(factor)
    own = labels[:, None, None].expand(-1, 1, logits.shape[-1])
    moved = logits.gather(1, rivals[..., None].expand(-1, -1, logits.shape[-1])) - logits.gather(1, own)
    return mean.gather(1, rivals) - mean.gather(1, labels[:, None]), moved


def problem(
    pushed: Pushforward, gaussian: Gaussian, labels: Tensor, draw: Callable[[Gaussian], Draw] | None = None
) -> Problem:
    """The integrals of a pushforward under a Gaussian start; Σ̂ and its factor in float64.

    `draw`, from `flow_draw`, is needed for `forward_mc` only, and gets the same Gaussian.
    """
    factor = logit_factor(pushed.rows, gaussian)
    return Problem(pushed.mean, factor, labels, gaussian, None if draw is None else draw(gaussian))


def flow_draw(
    flow: str, parameter: Tensor, features: Tensor, horizon: float = 1.0, tolerance: float | None = None
) -> Callable[[Gaussian], Draw]:
    """Draws that know no pushforward: a fresh v₀ = (I ⊗ P)Bξ and a full flow integration for each."""
    entry = check_inputs(flow, parameter, features, horizon)
    num_nodes, num_classes = features.shape[1:]

    def bind(gaussian: Gaussian) -> Draw:
        expected = num_nodes * (num_classes - 1)
        require(gaussian.size == expected, "gaussian", f"of size n(c−1) = {expected}", gaussian.size)

        def draw(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            logits = []
            chosen = features[part]
            for some in chunks(len(chosen), num_samples * num_nodes * num_classes):
                noise = chosen.new_empty(some.stop - some.start, num_samples, expected).normal_(generator=generator)
                start = expand(gaussian.act(noise).unflatten(-1, (num_nodes, num_classes - 1)))
                logits.append(entry.integrate(parameter, chosen[some], start, horizon, tolerance).value)
            return torch.cat(logits)

        return draw

    return bind


Guarantee = Literal["none", "standard error", "upper bound", "deterministic upper bound"]


class Risk(NamedTuple):
    """An expected empirical risk, and what is known of its error."""

    integrator: str
    loss: str
    per_datum: Tensor
    """The estimate for every datum, of shape (m,), in float64."""
    value: Tensor
    """The estimate, their mean; differentiable where the integrator is."""
    guarantee: Guarantee
    """What `standard_error` and `upper` promise."""
    standard_error: float | None
    """Standard error of `value`, if the integrator has one."""
    upper: float | None
    """True risk on these data ≤ `upper` with probability at least 1 − `delta`; `None`: no promise."""
    delta: float
    """δ′, the probability with which `upper` may fail; 0 for a deterministic bound."""
    num_evaluations: int
    """How many (datum, point) pairs were evaluated."""
    gaussian: Gaussian | None = None
    """The start's distribution that this is the risk of."""

    @property
    def certified(self) -> bool:
        """Whether a certificate may rest on it."""
        return self.upper is not None
