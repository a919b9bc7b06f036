"""Certificates as pure functions of integrations: one for each classifier, ε and bound, and those of seed mixtures.

An integration holds a value for every datum. What a bound takes of it is mostly one number, so that integrations are
let go one after the other (`Certifier.add`), and bounds are evaluated for many classifiers at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldaf_bench.plan import Plan
from ldaf_bench.theory.bounds import Bound, Classifier, Takes
from ldaf_bench.theory.certificate import Budget, certify, evidence
from ldaf_bench.theory.integrate import INTEGRATORS, Integration

PENDING_BYTES = 64 << 20
"""Of evidence that waits to be evaluated together."""


class Certifiable(NamedTuple):
    """All that certificates of one classifier need."""

    classifier: Classifier
    integrator: str | None
    """None for a mean classifier."""
    integrations: tuple[Integration, ...]
    """What certificates rest on: one, or those of all seeds of a mixture. A mean classifier's values are its errors."""
    mistakes: Tensor | None
    """For every datum whether the mean classifier errs, if there is one."""
    kl: float
    num_data: int
    """m."""
    mixed: bool = False
    """Whether it is a mixture over seeds, which some bounds have no value for."""


def mixture(members: Sequence[Certifiable]) -> Certifiable:
    r"""The uniform mixture over seeds: draw a seed, then a classifier.

    The mean of S certificates is a statement at S(ε + δ′). The mixture's is one at ε + δ′: its prior draws the seed
    uniformly, so that KL is the mean KL and the risk the mean risk; and the draws of all seeds are independent, so that
    one δ′ covers their mean. With `report: best` all certificates hold at once, and their mean needs no mixture.
    """
    integrations = tuple(integration for one in members for integration in one.integrations)
    kl = sum(one.kl for one in members) / len(members)
    return members[0]._replace(integrations=integrations, kl=kl, mixed=True)


class Kind(NamedTuple):
    """What decides which bounds a classifier has, and at which budgets."""

    classifier: Classifier
    integrator: str | None
    has_mean: bool
    mixed: bool


class Certifier:
    """Evaluates the plan's bounds, and keeps their values only."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._pending: dict[tuple[Classifier, int, Bound, tuple[Budget, ...]], list[tuple[str, float, Tensor]]]
        self._pending, self._bytes = defaultdict(list), 0
        self._values: dict[tuple[Bound, int], dict[str, float]] = defaultdict(dict)
        """By bound and ε, then by name."""
        self._upper: dict[str, float] = {}
        self._prices: dict[Kind, dict[Bound, tuple[Budget, ...]]] = {}
        self._kinds: dict[str, Kind] = {}

    def prices(self, kind: Kind) -> dict[Bound, tuple[Budget, ...]]:
        """The plan's bounds, each with a budget for every ε."""
        if kind not in self._prices:
            every = self.plan.bounds(*kind[:3])
            own = [bound for bound in every if bound.mixes or not kind.mixed]
            self._prices[kind] = {bound: self.plan.budgets(*kind[:2], bound.takes) for bound in own}
        return self._prices[kind]

    def add(self, name: str, one: Certifiable) -> None:
        """Take of a classifier what bounds are evaluated at. Budgets differ in ε only, so one evidence serves all."""
        entry = None if one.integrator is None else INTEGRATORS[one.integrator]
        kind = self._kinds[name] = Kind(one.classifier, one.integrator, one.mistakes is not None, one.mixed)
        taken: dict[Takes, Tensor] = {}
        for bound, budgets in self.prices(kind).items():
            if bound.takes not in taken:
                delta = budgets[0].delta_each
                taken[bound.takes] = evidence(bound, entry, one.integrations, one.mistakes, delta)
                self._bytes += taken[bound.takes].nbytes
            self._pending[one.classifier, one.num_data, bound, budgets].append((name, one.kl, taken[bound.takes]))
        if "risk" in taken:
            self._upper[name] = taken["risk"].item()
        if self._bytes > PENDING_BYTES:
            self._evaluate()

    def _evaluate(self) -> None:
        """Every bound once for all classifiers alike."""
        for (classifier, num_data, bound, budgets), members in self._pending.items():
            names, kls, taken = zip(*members, strict=True)
            together, divergences = torch.stack(taken), torch.tensor(kls, dtype=torch.float64)
            for level, budget in enumerate(budgets):
                values = certify(bound, classifier, together, divergences, num_data, budget).tolist()
                self._values[bound, level].update(zip(names, values, strict=True))
        self._pending.clear()
        self._bytes = 0

    def rows(self, name: str, mixed: str, columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """One row for each ε and bound, each with the certificate of the mixture over seeds called `mixed`, if any."""
        self._evaluate()
        kind, asked = self._kinds[name], self.plan.suite.certificates
        certified = kind.integrator is None or INTEGRATORS[kind.integrator].certifies
        for level, epsilon in enumerate(asked.epsilon):
            for bound, budgets in self.prices(kind).items():
                budget, values = budgets[level], self._values[bound, level]
                has_upper = kind.integrator is not None and certified and bound.takes == "risk"
                yield {
                    **columns,
                    "risk_upper": self._upper[name] if has_upper else None,
                    "bound": bound.name,
                    "guess": bound.guess,
                    "event": bound.event,
                    "epsilon": epsilon,
                    "level": budget.epsilon,
                    "delta": budget.delta,
                    "total": epsilon + asked.delta if certified else None,
                    "num_events": budget.num_events,
                    "num_integrations": budget.num_integrations,
                    "value": values[name],
                    "mixture": values.get(mixed),
                    "certified": certified,
                }
