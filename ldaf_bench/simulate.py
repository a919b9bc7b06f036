r"""Do the certificates hold? `python -m ldaf_bench.simulate [--repeats 2000]`

A world with a known true risk: finitely many inputs, each with its own label probabilities. Every repeat draws fresh
data sets and goes the whole way with the package's own functions — a prior trained on its own data, the pushforward, a
posterior fitted on the certificate set, integration, bound — and compares the certificate with the true Gibbs risk,
which for three classes is a sum of one- and two-dimensional normal probabilities.

Honest chains must fail no more often than ε + δ′. Broken ones, which commit the classic mistakes, must be caught
failing more often than that; a simulation that cannot catch them would prove nothing.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import scipy.stats
import torch
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from ldaf_bench.theory.bounds import BOUNDS, FIXED_CLASSIFIER
from ldaf_bench.theory.certificate import Budget, certify
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import Risk, integrate, problem
from ldaf_bench.theory.integrate.bonferroni import hunter_worsley
from ldaf_bench.theory.posterior import FitSettings, fit
from ldaf_bench.theory.pushforward import Pushforward, push
from ldaf_bench.theory.seeds import named_generator, named_seed

NODES, CLASSES, INPUTS, DIMENSION = 3, 3, 300, 30
COORDINATES = NODES * (CLASSES - 1)
BUDGET = Budget(epsilon=0.05, delta=0.01)
STOCHASTIC_BOUNDS = [name for name in BOUNDS if name not in FIXED_CLASSIFIER]


class World(NamedTuple):
    """A data distribution: a uniform choice among inputs, then a label."""

    inputs: Tensor
    """(INPUTS, DIMENSION)"""
    labels: Tensor
    """P(y | x), of shape (INPUTS, CLASSES)."""

    def draw(self, size: int, generator: torch.Generator) -> Data:
        """An i.i.d. sample."""
        index = torch.randint(len(self.inputs), (size,), generator=generator)
        return Data(index, torch.multinomial(self.labels[index], 1, generator=generator)[:, 0])


class Data(NamedTuple):
    """A sample: which input, and its label."""

    chosen: Tensor
    labels: Tensor


class Prior(NamedTuple):
    """A trained network and flow, pushed forward for every input of the world, and a covariance."""

    pushed: Pushforward
    gaussian: Gaussian


def make_world(noise: float) -> World:
    """A linear teacher whose label is replaced by a random one with probability `noise`."""
    generator = named_generator("simulate", "world")
    inputs = torch.randn(INPUTS, DIMENSION, dtype=torch.float64, generator=generator)
    teacher = torch.randn(DIMENSION, CLASSES, dtype=torch.float64, generator=generator)
    right = torch.nn.functional.one_hot((inputs @ teacher).argmax(-1), CLASSES).double()
    return World(inputs, (1 - noise) * right + noise / CLASSES)


def train_prior(world: World, data: Data, scale: float, steps: int, seed: int) -> Prior:
    """A linear network with a DAF head, trained end to end by Adam on `data`."""
    generator = named_generator("simulate", "prior", seed)
    weight = torch.randn(DIMENSION, NODES * CLASSES, dtype=torch.float64, generator=generator) * 0.1
    omega = initial_parameter("daf", NODES, CLASSES, generator=generator, dtype=torch.float64)
    leaves = [weight.requires_grad_(), omega.requires_grad_()]
    optimizer = torch.optim.Adam(leaves, lr=0.1)

    def features(inputs: Tensor) -> Tensor:
        return (inputs @ weight).view(-1, NODES, CLASSES)

    for _ in range(steps):
        optimizer.zero_grad()
        logits = forward("daf", FLOWS["daf"].constrain(omega), features(world.inputs[data.chosen]))
        torch.nn.functional.cross_entropy(logits, data.labels).backward()
        optimizer.step()
    with torch.no_grad():
        pushed = push("daf", FLOWS["daf"].constrain(omega), features(world.inputs))
    return Prior(pushed, initial_covariance("code", COORDINATES, scale=scale, seed=seed))


def select(pushed: Pushforward, data: Data) -> Pushforward:
    """The pushforward of a sample."""
    return Pushforward(*(part[data.chosen] for part in pushed))


def true_risk(world: World, pushed: Pushforward, gaussian: Gaussian) -> float:
    """The Gibbs risk over the whole distribution. With two rivals Hunter–Worsley is an equality."""
    total = 0.0
    for label in range(CLASSES):
        labels = torch.full((len(pushed.mean),), label)
        total += float((world.labels[:, label] * hunter_worsley(problem(pushed, gaussian, labels))).sum())
    return total / len(pushed.mean)


def gibbs_risk(prior: Prior, gaussian: Gaussian, data: Data, integrator: str, num_points: int, seed: int) -> Risk:
    """The integrated empirical risk, at the budget's δ′."""
    integrals = problem(select(prior.pushed, data), gaussian, data.labels)
    return integrate(integrator, integrals, num_points=num_points, seed=seed, delta=BUDGET.delta_each)


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
        """Every guaranteed integrator with every bound, and the held-out bounds of the mean classifier."""
        data, prior, gaussian, _ = self.prepare(seed)
        truth = true_risk(self.world, prior.pushed, gaussian)
        outcome = {}
        for integrator in ("mc", "bonferroni"):
            risk = gibbs_risk(prior, gaussian, data, integrator, 32, seed)
            for bound in STOCHASTIC_BOUNDS:
                certificate = certify(bound, risk, prior.gaussian, BUDGET)
                outcome[f"{bound} / {integrator}"] = certificate.value < truth
        guess = prior.pushed.mean.argmax(-1)
        mean_truth = float((1 - self.world.labels[torch.arange(INPUTS), guess]).mean())
        errors = float((guess[data.chosen] != data.labels).double().mean())
        for bound in sorted(FIXED_CLASSIFIER):
            value = float(BOUNDS[bound](errors, 0.0, len(data.labels), BUDGET.epsilon))
            outcome[f"{bound} / mean"] = value < mean_truth
        return outcome

    def broken(self, seed: int) -> Outcome:
        """The kl certificate of a chain with a leak or a wrong m."""
        data, prior, gaussian, kl = self.prepare(seed)
        risk = gibbs_risk(prior, gaussian, data, "bonferroni", 1, seed)
        assert risk.upper is not None
        value = float(BOUNDS["kl"](risk.upper, kl, self.claimed_points or len(data.labels), BUDGET.epsilon))
        return {"kl": value < true_risk(self.world, prior.pushed, gaussian)}

    def few_points(self, seed: int) -> Outcome:
        """One Sobol point for all data, its error ignored; and the same single draw charged by `mc`."""
        generator = named_generator("simulate", "data", seed)
        prior_data, data = (self.world.draw(size, generator) for size in (self.num_prior, self.num_certificate))
        prior = train_prior(self.world, prior_data, self.scale, self.train_steps, seed)
        truth = true_risk(self.world, prior.pushed, prior.gaussian)
        ignored = gibbs_risk(prior, prior.gaussian, data, "qmc", 1, seed)
        charged = gibbs_risk(prior, prior.gaussian, data, "mc", 1, seed)
        outcome = {}
        for name, risk in (("kl / qmc, ignored", ignored), ("kl / mc, charged", charged)):
            outcome[name] = certify("kl", risk, prior.gaussian, BUDGET).value < truth
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
        values = BOUNDS["kl"](risk, 0.0, size, budget.epsilon_each)
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


def _chain(name: str, seed: int) -> Outcome:
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


class Tally(NamedTuple):
    """How often one certificate failed."""

    variant: str
    certificate: str
    repeats: int
    failures: int
    ought_to_hold: bool

    @property
    def allowed(self) -> float:
        """ε, and δ′ as well where an integration may fail."""
        return BUDGET.epsilon + (BUDGET.delta if " / mc" in self.certificate else 0.0)

    @property
    def verdict(self) -> str:
        """`holds`, `caught`, or what is wrong; both decisions at the level 0.001."""
        test = scipy.stats.binomtest(self.failures, self.repeats, self.allowed, alternative="greater")
        too_often = test.pvalue < 1e-3
        if self.ought_to_hold:
            return "FAILS TOO OFTEN" if too_often else "holds"
        return "caught" if too_often else "NOT CAUGHT"

    @property
    def as_expected(self) -> bool:
        """Whether honest certificates hold and broken ones are caught."""
        return self.verdict in ("holds", "caught")


def simulate(variant: str, repeats: int, outcomes: Sequence[Outcome] | None = None) -> list[Tally]:
    """Tallies of one variant over independent repeats, in this process unless outcomes are given."""
    if outcomes is None:
        outcomes = [_chain(variant, named_seed(variant, k)) for k in range(repeats)]
    holds = VARIANTS[variant][1]
    return [Tally(variant, key, len(outcomes), sum(o[key] for o in outcomes), holds(key)) for key in outcomes[0]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all variants over all cores; exit code 0 if everything is as it ought to be, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=2000, help="independent data sets (default: 2000)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1.")
    console = Console()
    tallies: list[Tally] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for variant in options.variants:
            repeats = options.repeats if variant in AT_LENGTH else min(options.repeats, BROKEN_REPEATS)
            seeds = [named_seed(variant, k) for k in range(repeats)]
            results = pool.map(_chain, itertools.repeat(variant), seeds, chunksize=10)
            label = f"{variant}: {VARIANTS[variant][0]}"
            outcomes = list(track(results, label, total=repeats, console=console))
            tallies += simulate(variant, repeats, outcomes)
    title = "How often certificates were below the true risk"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("variant", "certificate", "failed", "of", "rate", "allowed", "verdict"):
        words = heading in ("variant", "certificate", "verdict")
        table.add_column(heading, no_wrap=True, justify="left" if words else "right")
    for tally in tallies:
        style = "" if tally.as_expected else "bold red"
        rates = (f"{tally.failures / tally.repeats:.2%}", f"{tally.allowed:.0%}")
        cells = (tally.variant, tally.certificate, str(tally.failures), str(tally.repeats), *rates, tally.verdict)
        table.add_row(*cells, style=style)
    console.print(table)
    wrong = sum(not tally.as_expected for tally in tallies)
    if wrong:
        print(f"{wrong} of {len(tallies)} certificates are not as they ought to be.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
