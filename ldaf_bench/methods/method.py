"""The seam: what a method says about itself. Everything else in the package knows methods by these words only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ldaf_bench.columns import Column
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import HeadSpec
from ldaf_bench.models.network import Network
from ldaf_bench.sections import Section, Spec, axes_of, columns_of
from ldaf_bench.theory.integrate import ACCURATE_POINTS, Problem
from ldaf_bench.theory.integrate.problem import Need

Digest = Mapping[str, Tensor]
"""What one pass over a part of the data leaves behind: named tensors with one row per datum."""
UNFITTED = "unfitted"
"""The objective of a posterior that is the prior itself."""


class Data(NamedTuple):
    """A part of the data as a method sees it."""

    digest: Digest
    labels: Tensor
    network: Network
    also: Data | None = None
    """The prior part, for fits that use it too."""

    def to(self, device: torch.device) -> Data:
        """The same on a device. Networks and distributions move themselves to where the data are."""
        also = None if self.also is None else self.also.to(device)
        tensors = {name: tensor.to(device) for name, tensor in self.digest.items()}
        return Data(tensors, self.labels.to(device), self.network, also)


class Distribution(Protocol):
    """A distribution over classifiers: a prior or a posterior."""

    def tensors(self) -> dict[str, Tensor]:
        """All that it is; `Method.restore` makes it again."""

    def kl_from(self, prior: Any) -> float:
        """KL(self ‖ prior), in float64 and never understated."""


class Fitted(NamedTuple):
    """A fitted posterior, and what there is to say about the fit."""

    distribution: Distribution
    outcome: Mapping[str, Any] = {}
    """Values of the method's `outcomes`."""
    history: tuple[Mapping[str, float], ...] = ()
    """Steps of the fit, for curves.parquet: `x`, `seconds`, and one value per series."""


class FitSpec(Spec):
    """Axes that change the posterior but not the prior. They are free: a bound holds for all posteriors at once."""

    objective: str = UNFITTED
    """What the fit minimizes; `unfitted`: the posterior is the prior itself."""

    @property
    def fitted(self) -> bool:
        """Whether the certificate part is used to fit a posterior."""
        return self.objective != UNFITTED

    def unused(self) -> frozenset[str]:
        # Unfitted posteriors ignore the fit's settings.
        return frozenset() if self.fitted else frozenset(type(self).model_fields) - {"objective"}


Watch = Callable[[float], None]
"""Is told the value of the fit's objective after each step, smaller is better."""


@dataclass(frozen=True)
class Method:
    """An entry of METHODS.

    The axes come in four frozen sections, and each function below is given its own section only. So a prior cannot
    depend on how the posterior is fitted, and counting priors for the confidence budget needs no list of names.
    """

    name: str
    head: type[HeadSpec]
    """Axes that change the network."""
    digest: Callable[[Any, Classifier, Tensor], dict[str, Tensor]]
    """(digest spec, classifier in eval mode, uint8 images) → named tensors, one row per datum."""
    logits: Callable[[Digest], Tensor] | None = None
    """The mean classifier's logits (m, c); None: the method has no mean classifier of its own."""
    prior: Callable[[Any, Network, Data | None, int], Distribution] | None = None
    """(prior spec, network, some prior data or None, seed) → prior; None: the method has no distribution."""
    fit: Callable[[Any, Any, Data, int, Watch], Fitted] | None = None
    """(fit spec, prior, certificate data, seed, watch) → posterior; None: the method fits nothing."""
    problem: Callable[[Any, Any, Data], Problem] | None = None
    """(digest spec, distribution, data) → what integrators take."""
    restore: Callable[[Mapping[str, Tensor]], Distribution] | None = None
    """A distribution from its tensors."""
    offers: frozenset[Need] = frozenset()
    """What its problems offer to integrators."""
    digest_axes: type[Spec] = Spec
    """Axes that change the digest of a network."""
    prior_axes: type[Spec] = Spec
    """Axes that change the prior. Each value is a prior of its own and is paid for where a best one is reported."""
    fit_axes: type[FitSpec] = FitSpec
    """Axes that change the posterior only."""
    needs_prior_data: Callable[[Any], bool] = field(default=lambda spec: False)
    """Whether the prior of this spec is made from some data of the prior part."""
    fits_on_prior_data: Callable[[Any], bool] = field(default=lambda spec: False)
    """Whether fits of this spec use the prior part too."""
    report_points: int = ACCURATE_POINTS
    """Draws or points per datum of the risks that are reported and that no certificate rests on."""
    report_draws: int | None = None
    """The same over all data at most, but one per datum at least: for methods whose draws are expensive."""
    refusal: Callable[[Any, int], tuple[str, str]] = field(default=lambda axes, num_classes: ("", ""))
    """(the method's section of a suite, number of classes) → (axis, why it cannot be); empty if all is well."""
    outcomes: tuple[Column, ...] = ()
    """Columns that its fits fill in, besides its axes."""

    @cached_property
    def axes(self) -> type[Section]:
        """Its section of a suite file."""
        return axes_of(self.name, self.specs)

    @property
    def specs(self) -> tuple[type[Spec], ...]:
        """All sections of its axes; a fit has axes only if there is something to fit."""
        return (self.head, self.digest_axes, self.prior_axes, *([self.fit_axes] if self.prior else []))

    def points_for(self, num_data: int) -> int:
        """Draws or points per datum of reported risks, for so many data."""
        if self.report_draws is None:
            return self.report_points
        return min(self.report_points, max(1, self.report_draws // num_data))

    def columns(self) -> list[Column]:
        """A column for each of its axes and outcomes."""
        return [column for spec in self.specs for column in columns_of(spec, "methods.*")] + list(self.outcomes)
