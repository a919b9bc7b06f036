r"""One certificate: bound, integration error and selection, paid for together.

A certificate is a pure function of an integration, a KL divergence and a `Budget`. With probability at least
1 − ε − δ′ over the certificate part and the integrations' draws, all certificates that a budget counts hold at once,
so that the best of them may be reported. What remains with the caller: that the prior saw none of the data, and that
the budget counts everything that could have been picked (`plan` does).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ldaf_bench.theory.arguments import require, require_count, require_fraction
from ldaf_bench.theory.bounds import Bound, Classifier, Number
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
    """J: the integrations by chance that could be picked among. Several posteriors of one prior share an event, because
    the bound holds for all of them at once, but each is integrated."""

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


def risk_to_certify(integrator: Integrator, integration: Integration, delta: float) -> float:
    """r⁺, the guaranteed upper end of the empirical risk at δ′; the estimate itself if nothing is guaranteed."""
    return float(integration.value) if integrator.upper is None else integrator.upper(integration, delta)


def certify(
    bound: Bound, classifier: Classifier, risk: Number, kl: Number, num_data: int, budget: Budget
) -> torch.Tensor:
    r"""B(r⁺, KL, m, ε/K), at most 1. Risks and divergences may be tensors of one shape: one certificate for each.

    Every bound increases in the risk, so that B(r, …) ≤ B(r⁺, …) wherever the integration holds; a union bound over
    the K events and the J integrations gives ε + δ′. [Langford05]
    """
    require(classifier in bound.about, "bound", f"one about a {classifier}", repr(bound.name))
    return bound(risk, kl, num_data, budget.epsilon_each).clamp(max=1.0)
