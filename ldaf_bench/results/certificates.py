"""Certificates as pure functions of integrations: one for each classifier, ε and bound, and those of seed mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldaf_bench.plan import Plan
from ldaf_bench.theory.bounds import Bound, Classifier, Takes
from ldaf_bench.theory.certificate import Budget, certify, evidence
from ldaf_bench.theory.integrate import INTEGRATORS, Integration


class Certifiable(NamedTuple):
    """All that certificates of one classifier need, and the columns that its rows share."""

    classifier: Classifier
    integrator: str | None
    """None for a mean classifier."""
    integrations: tuple[Integration, ...]
    """What certificates rest on: one, or those of all seeds of a mixture. A mean classifier's values are its errors."""
    mistakes: Tensor | None
    """For every datum whether the mean classifier errs, if there is one."""
    kl: float
    num_data: int
    certified: bool
    columns: Mapping[str, Any]
    mixed: bool = False
    """Whether it is a mixture over seeds, which some bounds have no value for."""

    @property
    def setting(self) -> tuple[Any, ...]:
        """What it shares with the same classifier of another seed."""
        return self.columns["setting"], self.integrator, self.columns.get("num_points"), self.num_data

    def prices(self, plan: Plan) -> dict[Bound, tuple[Budget, ...]]:
        """The plan's bounds for it, each with a budget for every ε."""
        every = plan.bounds(self.classifier, self.integrator, self.mistakes is not None)
        own = (bound for bound in every if bound.mixes or not self.mixed)
        return {bound: plan.budgets(self.classifier, self.integrator, bound.takes) for bound in own}

    def evidence(self, bound: Bound, delta: float) -> Tensor:
        """What the bound is evaluated at."""
        entry = None if self.integrator is None else INTEGRATORS[self.integrator]
        return evidence(bound, entry, self.integrations, self.mistakes, delta)


def certificates(plan: Plan, found: Sequence[Certifiable]) -> Iterator[dict[str, Any]]:
    """One row for each classifier, ε and bound, each with the certificate of its mixture over seeds."""
    values, asked = _values(plan, found), plan.suite.certificates
    groups = _seeds(found) if asked.report == "all" else {}
    mixed = _values(plan, [_mixture(members) for members in groups.values()])
    place = {setting: number for number, setting in enumerate(groups)}
    for number, one in enumerate(found):
        prices = one.prices(plan)
        for level, epsilon in enumerate(asked.epsilon):
            for bound, budgets in prices.items():
                budget, (value, taken) = budgets[level], values[number, level, bound]
                upper = taken.item() if one.integrator and one.certified and bound.takes == "risk" else None
                yield {
                    **one.columns,
                    "risk_upper": upper,
                    "bound": bound.name,
                    "guess": bound.guess,
                    "event": bound.event,
                    "epsilon": epsilon,
                    "level": budget.epsilon,
                    "delta": budget.delta,
                    "total": epsilon + asked.delta if one.certified else None,
                    "num_events": budget.num_events,
                    "num_integrations": budget.num_integrations,
                    "value": value,
                    "mixture": mixed.get((place.get(one.setting, -1), level, bound), (None,))[0],
                    "certified": one.certified,
                }


def _values(plan: Plan, found: Sequence[Certifiable]) -> dict[tuple[int, int, Bound], tuple[float, Tensor]]:
    """All certificates by (classifier, ε, bound), each with what the bound was evaluated at.

    Budgets differ in ε only, so that one evidence serves them all. Each bound is evaluated once for all classifiers
    alike.
    """
    groups: dict[tuple[Classifier, int, Bound, Budget, int], list[int]] = {}
    taken: dict[tuple[int, Takes], Tensor] = {}
    for number, one in enumerate(found):
        for bound, budgets in one.prices(plan).items():
            if (number, bound.takes) not in taken:
                taken[number, bound.takes] = one.evidence(bound, budgets[0].delta_each)
            for level, budget in enumerate(budgets):
                groups.setdefault((one.classifier, one.num_data, bound, budget, level), []).append(number)
    values: dict[tuple[int, int, Bound], tuple[float, Tensor]] = {}
    for (kind, num_data, bound, budget, level), members in groups.items():
        kls = torch.tensor([found[number].kl for number in members], dtype=torch.float64)
        evidences = [taken[number, bound.takes] for number in members]
        certified = certify(bound, kind, torch.stack(evidences), kls, num_data, budget).tolist()
        for number, value, one_taken in zip(members, certified, evidences, strict=True):
            values[number, level, bound] = value, one_taken
    return values


def _seeds(found: Sequence[Certifiable]) -> dict[tuple[Any, ...], list[Certifiable]]:
    """Classifiers that differ in their seed only."""
    groups: dict[tuple[Any, ...], list[Certifiable]] = {}
    for one in found:
        groups.setdefault(one.setting, []).append(one)
    return groups


def _mixture(members: Sequence[Certifiable]) -> Certifiable:
    r"""The uniform mixture over seeds: draw a seed, then a classifier.

    The mean of S certificates is a statement at S(ε + δ′). The mixture's is one at ε + δ′: its prior draws the seed
    uniformly, so that KL is the mean KL and the risk the mean risk; and the draws of all seeds are independent, so that
    one δ′ covers their mean. With `report: best` all certificates hold at once, and their mean needs no mixture.
    """
    integrations = tuple(integration for one in members for integration in one.integrations)
    kl = sum(one.kl for one in members) / len(members)
    return members[0]._replace(integrations=integrations, kl=kl, mixed=True)
