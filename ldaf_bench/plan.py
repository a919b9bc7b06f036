"""The plan: a suite expanded into priors, posteriors and cells, with names, seeds and the confidence budget.

Made before anything runs and from the suite alone, so that nothing that is seen later can change what is paid for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ldaf_bench.artifacts import fingerprint
from ldaf_bench.data.dataset import Summary
from ldaf_bench.data.splits import Splits
from ldaf_bench.methods.config import PriorConfig, SplitConfig
from ldaf_bench.methods.store import prior_id
from ldaf_bench.suite import Suite, SuiteError, check_num_cells, check_sizes
from ldaf_bench.theory.bounds import FIXED_CLASSIFIER
from ldaf_bench.theory.integrate import CERTIFYING

FORMAT = 2
"""To be raised whenever the code computes other numbers for the same cell."""
DETERMINISTIC = frozenset({"bonferroni"})
"""Integrators without chance: they cost no δ′, and know no number of points."""


@dataclass(frozen=True)
class PlannedPrior:
    """A network to train."""

    identity: str
    config: PriorConfig
    splits: Splits


@dataclass(frozen=True)
class PlannedPosterior:
    """A covariance to start from and to fit, on one prior's pushforward."""

    prior: str
    tolerance: float | None
    covariance: str
    scale: float
    seed: int
    """The prior's seed: its covariance is drawn by it."""
    objective: str
    num_points: int
    optimizer: str
    learning_rate: float | None
    epochs: int
    max_alternations: int
    batch_size: int
    rise: float
    epsilon: float
    """ε of the bound that the fit minimizes; any value is valid, the first of the suite is taken."""

    @cached_property
    def identity(self) -> str:
        """Its name."""
        return fingerprint({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True)
class PlannedCell:
    """One risk to integrate, and the bounds to evaluate on it."""

    prior: str
    posterior: PlannedPosterior | None
    """None: the mean classifier, which no integration is needed for."""
    integrator: str
    num_points: int
    bounds: tuple[str, ...]
    epsilons: tuple[float, ...]
    delta: float
    num_priors: int
    """K: what a bound's ε is divided by."""
    num_integrations: int
    """What δ′ is divided by."""

    @cached_property
    def identity(self) -> str:
        """Its name."""
        return fingerprint({"format": FORMAT, **asdict(self)})


@dataclass(frozen=True)
class Plan:
    """All that a suite asks for."""

    suite: Suite
    summary: Summary
    priors: tuple[PlannedPrior, ...]
    posteriors: tuple[PlannedPosterior, ...]
    cells: tuple[PlannedCell, ...]

    def cells_of(self, posterior: PlannedPosterior | None, prior: str) -> tuple[PlannedCell, ...]:
        """The cells of one posterior, or of a prior's mean classifier."""
        return tuple(self._by_owner.get((posterior, prior), ()))

    @cached_property
    def _by_owner(self) -> dict[tuple[PlannedPosterior | None, str], list[PlannedCell]]:
        found: dict[tuple[PlannedPosterior | None, str], list[PlannedCell]] = {}
        for cell in self.cells:
            found.setdefault((cell.posterior, cell.prior), []).append(cell)
        return found

    @cached_property
    def identity(self) -> str:
        """A name for all that the plan asks for and pays for, wherever it runs."""
        search = None if self.suite.search is None else self.suite.search.model_dump(mode="json")
        cells = [cell.identity for cell in self.cells]
        return fingerprint({"suite": self.suite.suite, "cells": cells, "search": search})

    def posterior_axes(self) -> dict[str, tuple[Any, ...]]:
        """The axes whose grid the posteriors are."""
        return _posterior_axes(self.suite, self.priors)

    def posterior_at(self, point: Mapping[str, Any]) -> PlannedPosterior:
        """The posterior at a point of these axes."""
        return _posterior_at(self.suite, {prior.identity: prior.config.seed for prior in self.priors}, point)

    def describe(self) -> dict[str, Any]:
        """For a JSON file: the suite as it was understood, and the budget."""
        paid = {(cell.num_priors, cell.num_integrations) for cell in self.cells if cell.posterior is not None}
        return {
            "suite": self.suite.model_dump(mode="json"),
            "dataset": {**asdict(self.summary), "shape": list(self.summary.shape)},
            "priors": {prior.identity: prior.config.model_dump(mode="json") for prior in self.priors},
            "num_posteriors": len(self.posteriors),
            "cells": [cell.identity for cell in self.cells],
            "budget": {
                "epsilon": list(self.suite.certificates.epsilon),
                "delta": self.suite.certificates.delta,
                "paid": [{"num_priors": k, "num_integrations": n} for k, n in sorted(paid)],
            },
        }


def make_plan(suite: Suite, summary: Summary) -> Plan:
    """Expand a suite; a `SuiteError` for what cannot be."""
    if suite.data.dataset != summary.name:
        raise SuiteError(f"The suite is about {suite.data.dataset}, not about {summary.name}.")
    check_num_cells(suite)
    check_sizes(suite, summary.num_classes)
    priors = tuple(_priors(suite, summary))
    posteriors = tuple(_posteriors(suite, priors))
    cells = tuple(_cells(suite, priors, posteriors))
    if suite.search is not None and not posteriors:
        raise SuiteError("There are no posteriors to search: priors.method needs ldaf.")
    if not cells:
        raise SuiteError("The suite has no cells: certificates.bound needs a bound that fits the methods.")
    return Plan(suite, summary, priors, posteriors, cells)


def _priors(suite: Suite, summary: Summary) -> Iterator[PlannedPrior]:
    data, asked = suite.data, suite.priors
    found: set[str] = set()
    for certificate, method, backbone, flow, num_nodes, horizon, seed in itertools.product(
        data.certificate, asked.method, asked.backbone, asked.flow, asked.num_nodes, asked.horizon, asked.seed
    ):
        config = PriorConfig(
            dataset=data.dataset,
            split=SplitConfig(seed=data.split_seed, certificate=certificate, test=data.test),
            method=method,
            backbone=backbone,
            flow=flow,
            num_nodes=num_nodes,
            horizon=horizon,
            recipe=asked.recipe,
            seed=seed,
        )
        splits = config.splits(summary)
        identity = prior_id(config, splits.hash("prior"))
        # The baseline is one and the same whatever flow it does not use.
        if identity not in found:
            found.add(identity)
            yield PlannedPrior(identity, config, splits)


def _posteriors(suite: Suite, priors: tuple[PlannedPrior, ...]) -> Iterator[PlannedPosterior]:
    axes = _posterior_axes(suite, priors)
    seeds = {prior.identity: prior.config.seed for prior in priors}
    points = (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))
    # What is not fitted is one and the same however it is not fitted, and `scaled` whatever it does not start from.
    yield from dict.fromkeys(_posterior_at(suite, seeds, point) for point in points)


def _posterior_axes(suite: Suite, priors: tuple[PlannedPrior, ...]) -> dict[str, tuple[Any, ...]]:
    asked = suite.posteriors
    return {
        "prior": tuple(prior.identity for prior in priors if prior.config.method == "ldaf"),
        "tolerance": suite.pushforwards.tolerance,
        "covariance": asked.covariance,
        "scale": asked.scale,
        "objective": asked.objective,
        "num_points": asked.num_points,
        "optimizer": asked.optimizer,
    }


def _posterior_at(suite: Suite, seeds: Mapping[str, int], point: Mapping[str, Any]) -> PlannedPosterior:
    asked = suite.posteriors
    fitted = point["objective"] != "prior"
    return PlannedPosterior(
        prior=point["prior"],
        tolerance=point["tolerance"],
        covariance=point["covariance"],
        # `scaled` looks for its scale around this one.
        scale=1.0 if point["covariance"] == "scaled" else point["scale"],
        seed=seeds[point["prior"]],
        objective=point["objective"],
        # What is not fitted has no points to be fitted with.
        num_points=point["num_points"] if fitted else 0,
        optimizer=point["optimizer"] if fitted else "",
        learning_rate=asked.learning_rate if fitted else None,
        epochs=asked.epochs if fitted else 0,
        max_alternations=asked.max_alternations if fitted else 0,
        batch_size=asked.batch_size if fitted else 0,
        rise=asked.rise if point["covariance"] == "scaled" else 0.0,
        epsilon=suite.certificates.epsilon[0],
    )


def _cells(
    suite: Suite, priors: tuple[PlannedPrior, ...], posteriors: tuple[PlannedPosterior, ...]
) -> Iterator[PlannedCell]:
    asked = suite.certificates
    fixed = tuple(bound for bound in asked.bound if bound in FIXED_CLASSIFIER)
    stochastic = tuple(bound for bound in asked.bound if bound not in FIXED_CLASSIFIER)
    integrations = [
        (integrator, num_points)
        for integrator in suite.risks.integrator
        for num_points in ((0,) if integrator in DETERMINISTIC else suite.risks.num_points)
    ]
    best = asked.report == "best"
    starts = {(p.prior, p.tolerance, p.covariance, p.scale) for p in posteriors}
    # `catoni` rests on an event of its own; all other bounds of one prior follow from that of `kl_exact`.
    families = len({bound == "catoni" for bound in stochastic})
    chances = [pair for pair in integrations if pair[0] in CERTIFYING and pair[0] not in DETERMINISTIC]
    num_priors = max(1, len(starts) * families) if best else 1
    num_integrations = max(1, len(posteriors) * len(chances)) if best else 1
    if fixed:
        for prior in priors:
            # Clopper–Pearson is never above Chernoff, so that these two count once.
            yield PlannedCell(
                prior.identity, None, "", 0, fixed, asked.epsilon, asked.delta, len(priors) if best else 1, 1
            )
    if stochastic:
        for posterior, (integrator, num_points) in itertools.product(posteriors, integrations):
            yield PlannedCell(
                posterior.prior, posterior, integrator, num_points, stochastic, asked.epsilon, asked.delta,
                num_priors, num_integrations,
            )  # fmt: skip
