"""What is certified in a world with known risk, each by a real plan, real integrations and real certificates.

A scenario draws fresh data, divides them by the plan's own split and yields `Certifiable` classifiers, each with its
true risk in the column `truth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ldaf_bench.data.dataset import Summary
from ldaf_bench.methods.deterministic import DETERMINISTIC
from ldaf_bench.methods.ldaf import LDAF
from ldaf_bench.methods.method import UNFITTED
from ldaf_bench.plan import Plan, make_plan
from ldaf_bench.results.certificates import Certifiable
from ldaf_bench.simulate.world import CLASSES, COORDINATES, FLOW, SmallNetwork, World, make_world, train, untrained
from ldaf_bench.suite import Suite
from ldaf_bench.theory.bounds import BOUNDS, CHERNOFF, KL_EXACT, TEST_SET, Bound, Classifier
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import INTEGRATORS, Integration, Integrator, integrate
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.theory.integrate.sampling import MC, QMC
from ldaf_bench.theory.logits import flow_draw, problem
from ldaf_bench.theory.posterior import FitSettings, fit
from ldaf_bench.theory.seeds import named_seed

LEARNABLE, NOISY = 0.2, 0.5
"""Shares of random labels."""
FEW_INPUTS = 30
WIDTH, WIDE = 0.3, 1.5
"""Scales of a start: usual, and so wide that single draws differ much."""
NARROW = 0.05
"""The scale of an almost deterministic classifier: its risk on a datum is nearly 0 or 1, where bounds are tight."""
COIN = 0.01001
"""The true risk of the classifier with a million data: just above a number with two digits in percent."""


@dataclass(frozen=True)
class Scenario:
    """A suite for data of a given size, and how its classifiers come about."""

    classifiers: Callable[[Scenario, int, bool], list[Certifiable]]
    """(scenario, seed, whether networks are trained on the certificate part) → what is certified."""
    num_certificate: int
    bounds: tuple[Bound, ...]
    integrators: tuple[Integrator, ...] = (BONFERRONI,)
    num_points: int = 32
    objectives: tuple[str, ...] = (UNFITTED,)
    num_seeds: int = 1
    report: str = "all"
    epsilon: float = 0.05
    delta: float = 0.01
    num_prior: int = 150
    noise: float = LEARNABLE
    scale: float = WIDTH

    @property
    def total(self) -> float:
        """How often a certificate may fail."""
        return self.epsilon + self.delta

    @property
    def world(self) -> World:
        """Where the data come from."""
        return _world(self.noise)

    @cached_property
    def plan(self) -> Plan:
        """The plan of its suite, made by the package."""
        drawn = self.num_prior + self.num_certificate
        flow = {"num_nodes": 3, "flow": FLOW, "scale": self.scale, "objective": list(self.objectives)}
        content: dict[str, Any] = {
            "suite": "simulated",
            "data": {"dataset": "digits", "certificate": self.num_certificate / drawn},
            "networks": {"backbone": "tinynet", "recipe": "tiny", "seed": list(range(self.num_seeds))},
            "methods": {LDAF.name: flow} if self.integrators else {DETERMINISTIC.name: {}},
            "certificates": {
                "bound": [bound.name for bound in self.bounds],
                "epsilon": self.epsilon,
                "delta": self.delta,
                "report": self.report,
            },
        }
        if self.integrators:
            names = [integrator.name for integrator in self.integrators]
            content["risks"] = {"integrator": names, "num_points": self.num_points}
        # The name has to be one that suites know; all else is this scenario's.
        summary = Summary("digits", "0" * 64, (drawn + 1, 1, 8, 8), 1, CLASSES)
        return make_plan(Suite.model_validate(content), summary)


@cache
def _world(noise: float) -> World:
    return make_world(noise)


def trained(scenario: Scenario, seed: int, leak: bool) -> list[Certifiable]:
    """The whole way: a network trained on the prior part, priors and fitted posteriors, and the mean classifier."""
    plan, world = scenario.plan, scenario.world
    splits = plan.networks[0].splits
    sample = world.draw(len(plan.summary), seed)
    data = sample.part(splits.certificate)
    network = train(world, data if leak else sample.part(splits.prior), 15, seed)
    pushed = network.pushed_for(data)
    prior = initial_covariance("code", COORDINATES, scale=scenario.scale, seed=seed)
    settings = FitSettings(num_points=64, max_alternations=2, epsilon=scenario.epsilon, seed=seed)
    draw = flow_draw(FLOW, network.omega, network.features[data.chosen])
    mistakes = pushed.mean.argmax(-1) != data.labels
    found: list[Certifiable] = []
    fitted: dict[str, tuple[Gaussian, float, float]] = {}
    for planned in plan.integrations:
        name = planned.posterior.identity
        if name not in fitted:
            gaussian, kl = prior, 0.0
            if planned.posterior.fit.fitted:
                gaussian, kl = fit(pushed, data.labels, prior, settings)[:2]
            fitted[name] = gaussian, float(kl), network.true_risk(world, gaussian)
        gaussian, kl, truth = fitted[name]
        integrals = problem(pushed, gaussian, data.labels, draw)
        integration = integrate(planned.integrator, integrals, num_points=planned.num_points or 1, seed=seed)
        one = _certifiable(planned.posterior.classifier, planned.integrator, integration, kl, truth, name)
        found.append(one._replace(mistakes=mistakes))
    if plan.means:
        found.append(_certifiable("mean", None, Integration(mistakes.double()), 0.0, network.true_error(world)))
    return found


def _certifiable(
    kind: Classifier, integrator: str | None, integration: Integration, kl: float, truth: float, setting: str = ""
) -> Certifiable:
    columns = {"setting": setting, "classifier": kind, "integrator": integrator, "truth": truth}
    certified = integrator is None or INTEGRATORS[integrator].certifies
    return Certifiable(kind, integrator, (integration,), None, kl, len(integration.per_datum), certified, columns)


@cache
def _hopeless(number: int) -> tuple[SmallNetwork, Tensor, float]:
    """An untrained network in a world of pure noise, its risk for every (input, label), and its true risk."""
    world, network = make_world(1.0, FEW_INPUTS), untrained(FEW_INPUTS, number)
    gaussian = initial_covariance("constant", COORDINATES, scale=NARROW)
    values = []
    for label in range(CLASSES):
        integrals = problem(network.pushed, gaussian, torch.full((FEW_INPUTS,), label))
        values.append(integrate(BONFERRONI.name, integrals).per_datum)
    return network, torch.stack(values, -1), network.true_risk(world, gaussian)


def hopeless(scenario: Scenario, seed: int, leak: bool) -> list[Certifiable]:
    """Untrained networks, which only luck tells apart, one for each seed of the suite."""
    plan = scenario.plan
    data = make_world(1.0, FEW_INPUTS).draw(len(plan.summary), seed).part(plan.networks[0].splits.certificate)
    first = 0 if scenario.num_seeds > 1 else seed % 50
    found = []
    for number in range(first, first + scenario.num_seeds):
        _, values, truth = _hopeless(number)
        risks = values[data.chosen, data.labels]
        integration = Integration(risks, torch.zeros(len(risks), dtype=torch.int64))
        found.append(_certifiable("prior", BONFERRONI.name, integration, 0.0, truth))
    return found


HYPOTHESES = 500


def luckiest(scenario: Scenario, seed: int, leak: bool) -> list[Certifiable]:
    """A prior that draws one of many untrained networks, and a posterior that takes the luckiest: KL = ln(number)."""
    plan = scenario.plan
    data = make_world(1.0, FEW_INPUTS).draw(len(plan.summary), seed).part(plan.networks[0].splits.certificate)
    risks = torch.stack([_hopeless(number)[1][data.chosen, data.labels] for number in range(HYPOTHESES)])
    best = int(risks.mean(1).argmin())
    integration = Integration(risks[best], torch.zeros(risks.shape[1], dtype=torch.int64))
    kl, truth = float(np.log(HYPOTHESES)), _hopeless(best)[2]
    return [_certifiable("posterior", BONFERRONI.name, integration, kl, truth)]


def coin(scenario: Scenario, seed: int, leak: bool) -> list[Certifiable]:
    """A fixed classifier with a known risk and so many data that the last printed digit matters."""
    size = scenario.num_certificate
    count = np.random.default_rng(named_seed("simulate", "coin", seed)).binomial(size, COIN)
    errors = torch.zeros(size, dtype=torch.float64)
    errors[:count] = 1
    return [_certifiable("mean", None, Integration(errors), 0.0, COIN)]


GUARANTEED = tuple(entry for entry in INTEGRATORS.values() if entry.certifies)
EVERYTHING = Scenario(trained, 60, tuple(BOUNDS.values()), GUARANTEED, objectives=("cross_entropy", UNFITTED))
NOISE = Scenario(trained, 60, (KL_EXACT,), objectives=("cross_entropy",), noise=NOISY)
FIXED = Scenario(hopeless, 5, (KL_EXACT, CHERNOFF), epsilon=0.0099, delta=0.0001, noise=1.0, scale=NARROW)
MANY_SEEDS = Scenario(hopeless, 30, (KL_EXACT, CHERNOFF), num_seeds=300, report="best", scale=NARROW)
FEW_SEEDS = Scenario(hopeless, 30, (CHERNOFF,), num_seeds=20, scale=NARROW)
CHOICE = Scenario(luckiest, 30, (KL_EXACT,), objectives=("cross_entropy",), scale=NARROW)
ONE_POINT = Scenario(trained, 2000, (CHERNOFF,), (MC, QMC), num_points=1, scale=WIDE)
LARGE = Scenario(coin, 1_000_000, (TEST_SET,), ())
