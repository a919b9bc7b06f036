"""Certificates as pure functions of integrations: one for each classifier, ε and bound, and those of seed mixtures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ldaf_bench.plan import Plan
from ldaf_bench.theory.bounds import Bound, Classifier
from ldaf_bench.theory.certificate import Budget, certify, risk_to_certify
from ldaf_bench.theory.integrate import INTEGRATORS, Integration


class Certifiable(NamedTuple):
    """All that certificates of one classifier need, and the columns that its rows share."""

    classifier: Classifier
    integrator: str | None
    """None for a mean classifier."""
    risk: float
    """What enters the bound; budgets differ in ε only, so that one value serves them all."""
    kl: float
    num_data: int
    certified: bool
    columns: Mapping[str, Any]
    integration: Integration | None = None
    """What the risks come from, if anything was integrated."""
    mixed: bool = False
    """Whether it is a mixture over seeds, which has no number of errors."""

    @classmethod
    def of(
        cls,
        plan: Plan,
        classifier: Classifier,
        integrator: str,
        integration: Integration,
        kl: float,
        columns: Mapping[str, Any],
    ) -> Certifiable:
        """From an integration: the risk is its guaranteed upper end at the plan's δ′."""
        entry = INTEGRATORS[integrator]
        risk = risk_to_certify(entry, integration, plan.budgets(classifier, integrator)[0].delta_each)
        num_data = len(integration.per_datum)
        return cls(classifier, integrator, risk, kl, num_data, entry.certifies, columns, integration)

    @property
    def setting(self) -> tuple[Any, ...]:
        """What it shares with the same classifier of another seed."""
        return self.columns["setting"], self.integrator, self.columns.get("num_points"), self.num_data

    def bounds(self, plan: Plan) -> tuple[Bound, ...]:
        """The plan's bounds for it."""
        every = plan.bounds(self.classifier, self.integrator)
        return tuple(bound for bound in every if not (self.mixed and bound.counts))


def certificates(plan: Plan, found: Sequence[Certifiable]) -> Iterator[dict[str, Any]]:
    """One row for each classifier, ε and bound, each with the certificate of its mixture over seeds."""
    values, asked = _values(plan, found), plan.suite.certificates
    groups = _seeds(found) if asked.report == "all" else {}
    mixed = _values(plan, [_mixture(plan, members) for members in groups.values()])
    place = {setting: number for number, setting in enumerate(groups)}
    for number, one in enumerate(found):
        for level, budget in enumerate(plan.budgets(one.classifier, one.integrator)):
            for bound in one.bounds(plan):
                yield {
                    **one.columns,
                    "bound": bound.name,
                    "event": bound.event,
                    "epsilon": asked.epsilon[level],
                    "level": budget.epsilon,
                    "delta": budget.delta,
                    "total": asked.epsilon[level] + asked.delta if one.certified else None,
                    "num_events": budget.num_events,
                    "num_integrations": budget.num_integrations,
                    "value": values[number, level, bound.name],
                    "mixture": mixed.get((place.get(one.setting, -1), level, bound.name)),
                    "certified": one.certified,
                }


def _values(plan: Plan, found: Sequence[Certifiable]) -> dict[tuple[int, int, str], float]:
    """All certificates by (classifier, ε, bound); each bound is evaluated once for all classifiers alike."""
    groups: dict[tuple[Classifier, int, Bound, Budget, int], list[int]] = {}
    for number, one in enumerate(found):
        for level, budget in enumerate(plan.budgets(one.classifier, one.integrator)):
            for bound in one.bounds(plan):
                groups.setdefault((one.classifier, one.num_data, bound, budget, level), []).append(number)
    values: dict[tuple[int, int, str], float] = {}
    for (kind, num_data, bound, budget, level), members in groups.items():
        kls = torch.tensor([found[number].kl for number in members], dtype=torch.float64)
        risks = torch.tensor([found[number].risk for number in members], dtype=torch.float64)
        certified = certify(bound, kind, risks, kls, num_data, budget).tolist()
        values |= {(n, level, bound.name): v for n, v in zip(members, certified, strict=True)}
    return values


def _seeds(found: Sequence[Certifiable]) -> dict[tuple[Any, ...], list[Certifiable]]:
    """Classifiers that differ in their seed only."""
    groups: dict[tuple[Any, ...], list[Certifiable]] = {}
    for one in found:
        groups.setdefault(one.setting, []).append(one)
    return groups


def _mixture(plan: Plan, members: Sequence[Certifiable]) -> Certifiable:
    r"""The uniform mixture over seeds: draw a seed, then a classifier.

    The mean of S certificates is a statement at S(ε + δ′). The mixture's is one at ε + δ′: its prior draws the seed
    uniformly, so that KL is the mean KL and the risk the mean risk; and the draws of all seeds are independent, so that
    one δ′ covers their mean. With `report: best` all certificates hold at once, and their mean needs no mixture.
    """
    first, size = members[0], len(members)
    kl, risk = (sum(values) / size for values in zip(*((one.kl, one.risk) for one in members), strict=True))
    integrations = [one.integration for one in members if one.integration is not None]
    if first.integrator is not None:
        delta = plan.budgets(first.classifier, first.integrator)[0].delta_each
        risk = risk_to_certify(INTEGRATORS[first.integrator], pool(integrations), delta)
    return first._replace(risk=risk, kl=kl, mixed=True)


def pool(integrations: Sequence[Integration]) -> Integration:
    """The integrations of several seeds as one: the draws are independent over seeds too."""
    per_datum = torch.cat([one.per_datum for one in integrations])
    draws = [one.draws for one in integrations if one.draws is not None]
    together = torch.cat(draws) if len(draws) == len(integrations) else None
    return Integration(per_datum, together, None, sum(one.num_evaluations for one in integrations))
