"""Ways to a certificate, honest or with one of the classic mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ldaf_bench.simulate.world import (
    BUDGET,
    CLASSES,
    COORDINATES,
    INPUTS,
    NODES,
    Data,
    Prior,
    World,
    gibbs_risk,
    make_world,
    select,
    train_prior,
    true_risk,
    value_of,
)
from ldaf_bench.theory.bounds import BOUNDS, KL
from ldaf_bench.theory.certificate import Budget, certify
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.flows import initial_parameter
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI, hunter_worsley
from ldaf_bench.theory.integrate.sampling import MC, QMC
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.posterior import FitSettings, fit
from ldaf_bench.theory.pushforward import push
from ldaf_bench.theory.seeds import named_generator

Outcome = dict[str, bool]
"""For each certificate of a repeat, whether it failed: was below the true risk."""


@dataclass(frozen=True)
class Chain:
    """One way to a certificate, honest or with a mistake."""

    world: World
    num_prior: int = 150
    num_certificate: int = 60
    scale: float = 0.3
    train_steps: int = 15
    fit_points: int = 64
    leak: bool = False
    """The prior is trained on the certificate set."""
    claimed_points: int | None = None
    """A wrong m, larger than the certificate set."""

    def prepare(self, seed: int) -> tuple[Data, Prior, Gaussian, float]:
        """Certificate set, prior, fitted posterior and its KL divergence, of one repeat."""
        generator = named_generator("simulate", "data", seed)
        prior_data = self.world.draw(self.num_prior, generator)
        data = self.world.draw(self.num_certificate, generator)
        prior = train_prior(self.world, data if self.leak else prior_data, self.scale, self.train_steps, seed)
        settings = FitSettings(num_points=self.fit_points, max_alternations=2, epsilon=BUDGET.epsilon, seed=seed)
        posterior = fit(select(prior.pushed, data), data.labels, prior.gaussian, settings)
        return data, prior, posterior.gaussian, posterior.kl

    def honest(self, seed: int) -> Outcome:
        """Every guaranteed integrator with every bound, the unfitted prior, and the mean classifier."""
        data, prior, gaussian, kl = self.prepare(seed)
        num_data = len(data.labels)
        truth, prior_truth = (true_risk(self.world, prior.pushed, one) for one in (gaussian, prior.gaussian))
        outcome = {}
        for integrator in INTEGRATORS.values():
            if integrator.certifies and integrator.needs == "gaussian":
                risk = gibbs_risk(prior, gaussian, data, integrator, 32, seed)
                unfitted = gibbs_risk(prior, prior.gaussian, data, integrator, 32, seed)
                for bound in BOUNDS.values():
                    name = f"{bound.name} / {integrator.name}"
                    if "posterior" in bound.about:
                        outcome[name] = value_of(bound, risk, kl, num_data) < truth
                    elif "prior" in bound.about and (integrator.counts or not bound.counts):
                        value = certify(bound, "prior", unfitted, 0.0, num_data, BUDGET)
                        outcome[f"{name}, unfitted"] = float(value) < prior_truth
        guess = prior.pushed.mean.argmax(-1)
        mean_truth = float((1 - self.world.labels[torch.arange(INPUTS), guess]).mean())
        errors = float((guess[data.chosen] != data.labels).double().mean())
        for bound in (bound for bound in BOUNDS.values() if "mean" in bound.about):
            value = certify(bound, "mean", errors, 0.0, num_data, BUDGET)
            outcome[f"{bound.name} / mean"] = float(value) < mean_truth
        return outcome

    def broken(self, seed: int) -> Outcome:
        """The kl certificate of a chain with a leak or a wrong m."""
        data, prior, gaussian, kl = self.prepare(seed)
        risk = gibbs_risk(prior, gaussian, data, BONFERRONI, 1, seed)
        value = value_of(KL, risk, kl, self.claimed_points or len(data.labels))
        return {KL.name: value < true_risk(self.world, prior.pushed, gaussian)}

    def few_points(self, seed: int) -> Outcome:
        """One Sobol point for all data, its error ignored; and the same single draw charged by `mc`."""
        generator = named_generator("simulate", "data", seed)
        prior_data, data = (self.world.draw(size, generator) for size in (self.num_prior, self.num_certificate))
        prior = train_prior(self.world, prior_data, self.scale, self.train_steps, seed)
        truth = true_risk(self.world, prior.pushed, prior.gaussian)
        outcome = {}
        for integrator, what in ((QMC, "ignored"), (MC, "charged")):
            risk = gibbs_risk(prior, prior.gaussian, data, integrator, 1, seed)
            value = value_of(KL, risk, 0.0, len(data.labels))
            outcome[f"{KL.name} / {integrator.name}, {what}"] = value < truth
        return outcome


NUM_PRIORS = 2000


def many_priors() -> tuple[Tensor, Tensor]:
    """Gibbs risk of many untrained priors for every input and label (K, INPUTS, CLASSES), and their true risk.

    Labels are pure noise here, so that no prior is any good and only luck tells them apart.
    """
    generator = named_generator("simulate", "many priors")
    features = 4 * torch.randn(NUM_PRIORS * INPUTS, NODES, CLASSES, dtype=torch.float64, generator=generator)
    omega = initial_parameter("daf", NODES, CLASSES, generator=generator, dtype=torch.float64)
    pushed = push("daf", omega, features)
    gaussian = initial_covariance("constant", COORDINATES, scale=0.05)
    risks = [hunter_worsley(problem(pushed, gaussian, torch.full((len(features),), label))) for label in range(CLASSES)]
    table = torch.stack(risks, -1).view(NUM_PRIORS, INPUTS, CLASSES)
    return table, table.mean((1, 2))


def best_of_many(table: Tensor, truth: Tensor, size: int, seed: int) -> Outcome:
    """The smallest of K certificates at ε, and at ε/K."""
    generator = named_generator("simulate", "selection", seed)
    index = torch.randint(INPUTS, (size,), generator=generator)
    labels = torch.randint(CLASSES, (size,), generator=generator)
    risk = table[:, index, labels].mean(-1)
    outcome = {}
    for name, budget in (("ε", BUDGET), ("ε/K", Budget(BUDGET.epsilon, BUDGET.delta, NUM_PRIORS))):
        values = certify(KL, "prior", risk, 0.0, size, budget)
        picked = int(values.argmin())
        outcome[f"best of {NUM_PRIORS} at {name}"] = float(values[picked]) < float(truth[picked])
    return outcome


_LEARNABLE, _NOISY = 0.2, 0.5
_TABLE: tuple[Tensor, Tensor] | None = None


def _selection(seed: int) -> Outcome:
    global _TABLE
    if _TABLE is None:  # once per process
        _TABLE = many_priors()
    return best_of_many(*_TABLE, size=30, seed=seed)


def run_chain(name: str, seed: int) -> Outcome:
    """One repeat of a variant; importable, so that other processes can run it."""
    torch.set_num_threads(1)
    if name == "selection":
        return _selection(seed)
    if name == "few points":
        return Chain(make_world(_LEARNABLE), scale=1.5, num_certificate=2000).few_points(seed)
    if name == "leaking prior":
        return Chain(make_world(_NOISY), leak=True).broken(seed)
    if name == "wrong m":
        return Chain(make_world(_NOISY), claimed_points=6000).broken(seed)
    return Chain(make_world(_LEARNABLE)).honest(seed)


VARIANTS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "honest": ("the whole chain, nothing broken", lambda key: True),
    "few points": ("integration with one point per datum", lambda key: "charged" in key),
    "selection": ("the best of many priors reported", lambda key: "ε/K" in key),
    "leaking prior": ("the prior saw the certificate set", lambda key: False),
    "wrong m": ("m is taken a hundred times too large", lambda key: False),
}
"""What each variant does, and which of its certificates ought to hold."""


AT_LENGTH = ("honest", "selection")
BROKEN_REPEATS = 400
"""A broken chain fails so often that fewer repeats catch it."""
