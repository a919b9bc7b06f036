"""What an integrator is given, what it returns, and what it says about itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_finite, require_labels, require_shape
from ldaf_bench.theory.pushforward import class_factor

Need = Literal["gaussian", "draws", "shared"]
"""What a problem can offer: Gaussian logits in closed form, logits drawn afresh for every datum, or logits of all data
from one draw of the classifier."""
Draw = Callable[[slice, int, torch.Generator], Tensor]
"""(data, number of samples, generator) → logits (data, samples, c), independent over data and samples."""
SharedDraw = Callable[[torch.Generator], Tensor]
"""generator → logits (m, c) of one classifier for all data."""


@dataclass(frozen=True)
class Problem:
    r"""The integrals E[ℓ(logits, y_k)], one for every datum: what a method makes of a distribution and data.

    Gaussian logits are M_k + P H_k ξ with ξ ~ N(0, I_{c−1}) [Boll22, Sec. 4.4]. A method that has no closed form leaves
    out `mean` and `factor` and gives `draw`.
    """

    mean: Tensor | None
    """M, of shape (m, c); estimates evaluate the integrand in its dtype, guarantees in float64."""
    factor: Tensor | None
    """H, of shape (m, c−1, c−1), with H Hᵀ = Σ̂; float64 if the guarantees are to be exact."""
    labels: Tensor
    """y, of shape (m,), in 0 … c−1."""
    draw: Draw | None = None
    """Logits with fresh randomness for every datum and sample."""
    num_classes: int = 0
    """c; taken from `mean` where there is one."""
    shared: SharedDraw | None = None
    """Logits of all data with the same randomness."""

    def __post_init__(self) -> None:
        if self.mean is not None:
            require_shape("mean", self.mean, (None, None))
            object.__setattr__(self, "num_classes", self.mean.shape[1])
        num_data = len(self.labels) if self.mean is None else len(self.mean)
        require(num_data >= 1, "mean", "of at least one datum", f"of {num_data}")
        require(self.num_classes >= 2, "num_classes", "at least two", self.num_classes)
        require_labels("labels", self.labels, num_data, self.num_classes)
        object.__setattr__(self, "labels", self.labels.long())  # files of labels often hold bytes
        require((self.mean is None) == (self.factor is None), "factor", "given together with the mean", "not")
        if self.mean is not None and self.factor is not None:
            require_shape("factor", self.factor, (num_data, self.num_classes - 1, self.num_classes - 1))
            require_finite("mean", self.mean)
            require_finite("factor", self.factor)

    @property
    def num_data(self) -> int:
        """m."""
        return len(self.labels)

    @property
    def offers(self) -> frozenset[Need]:
        """What integrators can ask of it."""
        have: dict[Need, object] = {"gaussian": self.mean, "draws": self.draw, "shared": self.shared}
        return frozenset(need for need, value in have.items() if value is not None)

    @property
    def gaussian(self) -> tuple[Tensor, Tensor]:
        """(M, H)."""
        if self.mean is None or self.factor is None:
            raise ValueError("problem must have Gaussian logits, but has draws only.")
        return self.mean, self.factor

    def differences(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        r"""Mean (m, c−1) and factor (m, c−1, c−1) of D_j = logit_j − logit_y, over j ≠ y, in the mean's dtype.

        The 0-1 loss is 1 exactly where some D_j ≥ 0: a tie counts as an error.
        """
        mean, factor = self.gaussian
        dtype = dtype or mean.dtype
        return differences(mean.to(dtype), factor.to(dtype), self.labels)


def differences(mean: Tensor, factor: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """`Problem.differences` for tensors that have been checked already."""
    rivals = torch.arange(mean.shape[1] - 1, device=mean.device).expand_as(mean[:, 1:])
    rivals = rivals + (rivals >= labels[:, None])  # skips y
    logits = class_factor(factor)
    own = labels[:, None, None].expand(-1, 1, logits.shape[-1])
    moved = logits.gather(1, rivals[..., None].expand(-1, -1, logits.shape[-1])) - logits.gather(1, own)
    return mean.gather(1, rivals) - mean.gather(1, labels[:, None]), moved


class Integration(NamedTuple):
    """An expected empirical 0-1 risk, with everything that a guarantee needs. It knows no confidence level."""

    per_datum: Tensor
    """For every datum the share of draws with an error, an estimate, or (by a bound) an upper value; (m,), float64."""
    draws: Tensor | None = None
    """For every datum the number of independent 0-1 draws behind its value, (m,), int64; 0 where the value is an upper
    bound without chance. None: the values are estimates."""
    standard_error: float | None = None
    """Standard error of `value`, if the integrator has one."""
    num_evaluations: int = 0
    """How many (datum, point) pairs were evaluated."""

    @property
    def value(self) -> Tensor:
        """The mean over data."""
        return self.per_datum.mean()

    def cpu(self) -> Integration:
        """The same in the memory of the CPU."""
        draws = None if self.draws is None else self.draws.cpu()
        return self._replace(per_datum=self.per_datum.cpu(), draws=draws)


class Run(Protocol):
    """How an integrator is called; `num_points` is q, the number of points for every datum."""

    def __call__(self, problem: Problem, *, num_points: int, seed: int) -> Integration: ...


@dataclass(frozen=True)
class Integrator:
    """An entry of INTEGRATORS."""

    name: str
    run: Run
    needs: Need
    """What it asks of a problem."""
    upper: Callable[[Integration, float], float] | None = None
    """(integration, δ′) → r⁺ with risk ≤ r⁺ except with probability δ′; None: an estimate, which certifies nothing. An
    integrator that `counts` gives its share of errors, whose chance is in the bound's event."""
    chance: bool = True
    """Whether the guarantee may fail, and so costs δ′."""
    sobol: bool = False
    """Whether its points are Sobol points, whose number must be a power of 2."""
    counts: bool = False
    """Whether it is one draw per datum: the errors of a randomized classifier, for bounds that count errors and for no
    others. Its draws belong to the event of the bound, so it costs no δ′."""
    least_points: int = 1
    """The smallest number of points; 0: the suite's number of points does not concern it."""

    @property
    def certifies(self) -> bool:
        """Whether a certificate may rest on it."""
        return self.upper is not None

    @property
    def costs_delta(self) -> bool:
        """Whether certificates that rest on it spend δ′."""
        return self.certifies and self.chance
