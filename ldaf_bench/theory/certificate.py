r"""One certificate: bound, integration error and selection, paid for together.

A certificate is a pure function of an integration, a KL divergence and a `Budget`. With probability at least
1 − ε − δ′ over the certificate part and the integrations' draws, all certificates that a budget counts hold at once,
so that the best of them may be reported. What remains with the caller: that the prior saw none of the data, and that
the budget counts everything that could have been picked (`plan` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_fraction
from ldaf_bench.theory.bounds import Bound, Classifier, Number, Takes
from ldaf_bench.theory.integrate import Integration, Integrator


@dataclass(frozen=True)
class Budget:
    """How much may fail, and among how many certificates a choice can be made."""

    epsilon: float
    """ε, for the bounds."""
    delta: float
    """δ′, for the integrations; 0 where nothing is left to chance."""
    num_events: int = 1
    """K: the events that could be picked among, fixed before anything runs. A bound's event counts once per prior."""
    num_integrations: int = 1
    """J: the guarantees of integrations by chance that could be picked among. Several posteriors of one prior share an
    event, because the bound holds for all of them at once, but each is integrated. The upper end of a risk and the ends
    of its excess are two guarantees."""

    def __post_init__(self) -> None:
        require_fraction("epsilon", self.epsilon)
        require(0 <= self.delta < 1, "delta", "in the interval [0, 1)", self.delta)
        require_count("num_events", self.num_events)
        require_count("num_integrations", self.num_integrations)
        total = self.epsilon + self.delta
        require(total < 1, "epsilon + delta", "below 1", total)

    @property
    def total(self) -> float:
        """ε + δ′: how often anything that rests on this budget may fail."""
        return self.epsilon + self.delta

    @property
    def epsilon_each(self) -> float:
        """ε/K, the level of one bound."""
        return self.epsilon / self.num_events

    @property
    def delta_each(self) -> float:
        """δ′/J, the level of one integration."""
        return self.delta / self.num_integrations


def fits(bound: Bound, classifier: Classifier, integrator: Integrator | None, has_mean: bool) -> bool:
    """Whether the bound may be used for such a classifier, integrated like this; a mean classifier is not integrated.

    Bounds that count errors go with one draw per datum, and bounds on the mean risk with all other integrations. Bounds
    on values need values that are independent over data, which draws that all data share do not give. An excess is one
    over a mean classifier, which not every method has (`has_mean`).
    """
    if classifier not in bound.about or (bound.takes == "excess" and not has_mean):
        return False
    if integrator is None:
        return True
    return integrator.needs != "shared" if bound.takes == "values" else bound.counts == integrator.counts


def spends_delta(takes: Takes, integrator: Integrator | None) -> bool:
    """Whether a certificate of a bound that takes this spends δ′ on the integration."""
    return integrator is not None and integrator.costs_delta and takes != "values"


def risk_to_certify(integrator: Integrator | None, integration: Integration, delta: float) -> float:
    """r⁺, the guaranteed upper end of the empirical risk at δ′; the value itself if nothing is guaranteed."""
    if integrator is None or integrator.upper is None:
        return float(integration.value)
    return integrator.upper(integration, delta)


def evidence(
    bound: Bound,
    integrator: Integrator | None,
    integrations: Sequence[Integration],
    mistakes: Tensor | None,
    delta: float,
) -> Tensor:
    """What the bound is evaluated at (`Bound.takes`), for one integration or for the mixture over seeds of several.

    Without an integrator the values are a mean classifier's errors. `mistakes` says for every datum whether the mean
    classifier errs, and `delta` is the δ′ of this certificate.
    """
    if bound.takes == "values":
        return torch.stack([one.per_datum for one in integrations]).mean(0)
    if bound.takes == "excess":
        (integration,) = integrations
        assert mistakes is not None
        return _excess(integrator, integration, mistakes, delta)
    return torch.tensor(risk_to_certify(integrator, pool(integrations), delta), dtype=torch.float64)


def pool(integrations: Sequence[Integration]) -> Integration:
    """The integrations of several seeds as one: the draws are independent over seeds too."""
    per_datum = torch.cat([one.per_datum for one in integrations])
    draws = [one.draws for one in integrations if one.draws is not None]
    together = torch.cat(draws) if len(draws) == len(integrations) else None
    return Integration(per_datum, together, None, sum(one.num_evaluations for one in integrations))


def _excess(integrator: Integrator | None, integration: Integration, mistakes: Tensor, delta: float) -> Tensor:
    r"""(R̂(h̄), e⁺, e⁻): the mean classifier's share of errors, and guaranteed ends of both parts of the excess.

    With L_k the risk at datum k, e⁺ ≥ (1/m) Σ L_k over the data where h̄ is right, and where it errs
    e⁻ ≤ (1/m) Σ (1 − L_k) = R̂(h̄) − (1/m) Σ L_k. Both are upper ends of a mean risk, of data that the draws have no
    influence on, at δ′/2 each.
    """
    ends = []
    for chosen in (~mistakes, mistakes):
        draws = None if integration.draws is None else integration.draws[chosen]
        part = Integration(integration.per_datum[chosen], draws)
        share = int(chosen.sum()) / len(chosen)
        ends.append(share * risk_to_certify(integrator, part, delta / 2) if share else 0.0)
    errors = int(mistakes.sum()) / len(mistakes)
    return torch.tensor([errors, ends[0], max(0.0, errors - ends[1])], dtype=torch.float64)


def certify(
    bound: Bound, classifier: Classifier, risk: Number, kl: Number, num_data: int, budget: Budget
) -> torch.Tensor:
    r"""B(r⁺, KL, m, ε/K), at most 1. Risks and divergences may be tensors of one shape: one certificate for each.

    In place of the risk stands what the bound takes (`evidence`). Bounds on the mean risk increase in it, so that
    B(r, …) ≤ B(r⁺, …) wherever the integration holds; a union bound over the K events and the J integrations gives
    ε + δ′. [Langford05]
    """
    require(classifier in bound.about, "bound", f"one about a {classifier}", repr(bound.name))
    return bound(risk, kl, num_data, budget.epsilon_each).clamp(max=1.0)
