r"""One certificate: bound, integration error and selection, paid for together.

With probability at least 1 − ε − δ′ over the certificate set and the integration's draws, any `num_choices`
certificates under one `Budget` hold at once, so that the best of them may be reported. The ways to get this wrong are
closed where they can be: m is the number of data that the risk was integrated over, KL is computed here for the
posterior that the risk is of, a risk without a guarantee gives `certified=False`, and one that was integrated at a
larger δ′ than the budget has for it is refused. What remains with the caller: that the prior saw none of the data, and
that `num_choices` counts every certificate that could have been picked.
"""

from __future__ import annotations

from dataclasses import dataclass

from ldaf_bench.theory.arguments import require, require_count, require_entry, require_fraction
from ldaf_bench.theory.bounds import BOUNDS, FIXED_CLASSIFIER
from ldaf_bench.theory.gaussian import Gaussian, kl_divergence
from ldaf_bench.theory.integrate import Risk


@dataclass(frozen=True)
class Budget:
    """How much may fail, and among how many certificates a choice can be made."""

    epsilon: float
    """ε, for the bounds."""
    delta: float
    """δ′, for the integrations."""
    num_choices: int = 1
    """K: the certificates that could be picked, fixed before anything runs. Each prior counts, and `catoni` beside the
    others; `kl_exact`, `kl`, `lambda`, `quad` and `classic` of one prior follow from one event and count once."""
    num_integrations: int | None = None
    """Integrations that could be picked among; `None`: as many as choices. Several posteriors of one prior are one
    choice to the bound, which holds for all of them at once, but an integration each."""

    def __post_init__(self) -> None:
        require_fraction("epsilon", self.epsilon)
        require_fraction("delta", self.delta)
        require_count("num_choices", self.num_choices)
        require_count("num_integrations", self.num_choices if self.num_integrations is None else self.num_integrations)
        total = self.epsilon + self.delta
        require(total < 1, "epsilon + delta", "below 1", total)

    @property
    def epsilon_each(self) -> float:
        """ε/K, what one bound is evaluated at."""
        return self.epsilon / self.num_choices

    @property
    def delta_each(self) -> float:
        """δ′ over the number of integrations, what one of them is run at."""
        return self.delta / (self.num_integrations or self.num_choices)


@dataclass(frozen=True)
class Certificate:
    """A bound on the true 0-1 risk of a stochastic classifier, and all that entered it."""

    bound: str
    value: float
    """The certified risk, at most 1."""
    certified: bool
    """Whether it rests on a guaranteed integration; if not, it is the paper's estimate of a certificate."""
    risk: float
    """The empirical Gibbs risk that entered the bound: its guaranteed upper end if there is one."""
    kl: float
    num_data: int
    """m."""
    budget: Budget
    integrator: str
    delta: float
    """The δ′ that this integration was run at."""
    num_evaluations: int


def certify(bound: str, risk: Risk, prior: Gaussian, budget: Budget) -> Certificate:
    r"""B(r⁺, KL, m, ε/K) where r ≤ r⁺ except with probability δ′/K; the posterior is the one that the risk is of.

    Every bound increases in the risk, so that B(r, …) ≤ B(r⁺, …) wherever the integration holds; a union bound over
    the K choices and over the two events gives ε + δ′. [Langford05]
    """
    require_entry("bound", bound, BOUNDS)
    require(bound not in FIXED_CLASSIFIER, "bound", "one for stochastic classifiers", repr(bound))
    require(risk.loss == "zero_one", "risk", "of the 0-1 loss, the only bounded one here", risk.loss)
    affordable = risk.delta <= budget.delta_each * (1 + 1e-12)
    require(affordable, "risk", f"integrated at delta ≤ {budget.delta_each:g}", f"at {risk.delta:g}")
    used = float(risk.value) if risk.upper is None else risk.upper
    if risk.gaussian is None:
        raise ValueError("risk must be that of a known posterior (see `integrate.problem`), but has none.")
    kl = float(kl_divergence(risk.gaussian, prior))
    num_data = len(risk.per_datum)
    value = min(1.0, float(BOUNDS[bound](used, kl, num_data, budget.epsilon_each)))
    return Certificate(
        bound, value, risk.certified, used, kl, num_data, budget, risk.integrator, risk.delta, risk.num_evaluations
    )
