"""What is certified in a world with known risk, each by a real plan, real integrations and real certificates.

A scenario draws fresh data, divides them by the plan's own split and yields classifiers, each with its
true risk in the column `truth`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ldaf_bench.data.dataset import Summary
from ldaf_bench.methods import pbb
from ldaf_bench.methods.deterministic import DETERMINISTIC
from ldaf_bench.methods.last_layer import LAST_LAYER
from ldaf_bench.methods.ldaf import LDAF
from ldaf_bench.methods.method import UNFITTED, Method
from ldaf_bench.methods.method import Data as SeenData
from ldaf_bench.methods.pbb import PBB
from ldaf_bench.models.stochastic import StochasticClassifier
from ldaf_bench.plan import Plan, make_plan
from ldaf_bench.results.certificates import Certifiable
from ldaf_bench.sections import Spec
from ldaf_bench.suite import Suite
from ldaf_bench.theory.bounds import BOUNDS, CHERNOFF, KL_EXACT, QUAD, SPLIT_KL, TEST_SET, Bound, Classifier
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.integrate import INTEGRATORS, Integration, Integrator, Problem, integrate
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.theory.integrate.sampling import MC, ONE_DRAW, QMC, SHARED_MC
from ldaf_bench.theory.layer import Layer, layer_draw
from ldaf_bench.theory.logits import flow_draw, problem
from ldaf_bench.theory.posterior import FitSettings, fit
from ldaf_bench.theory.seeds import named_seed
from ldaf_bench.verify import dense
from tools.simulate.world import (
    CLASSES,
    COORDINATES,
    DIMENSION,
    FLOW,
    Data,
    LinearNetwork,
    SmallNetwork,
    World,
    linear_risk,
    make_world,
    train,
    untrained,
)

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

    classifiers: Callable[[Scenario, int, bool], list[Made]]
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
    num_inputs: int = 300
    scale: float = WIDTH
    train_steps: int = 15
    method: Method = LDAF

    @property
    def total(self) -> float:
        """How often a certificate may fail."""
        return self.epsilon + self.delta

    @property
    def world(self) -> World:
        """Where the data come from."""
        return _world(self.noise, self.num_inputs)

    @cached_property
    def plan(self) -> Plan:
        """The plan of its suite, made by the package."""
        drawn = self.num_prior + self.num_certificate
        axes: dict[str, Any] = {"scale": self.scale, "objective": list(self.objectives)} if self.method.prior else {}
        content: dict[str, Any] = {
            "suite": "simulated",
            "data": {"dataset": "digits", "certificate": self.num_certificate / drawn},
            "networks": {"backbone": "tinynet", "recipe": "tiny", "seed": list(range(self.num_seeds))},
            "methods": {self.method.name: axes},
            "certificates": {
                "bound": [bound.name for bound in self.bounds],
                "epsilon": self.epsilon,
                "delta": self.delta,
                "report": self.report,
            },
        }
        if self.integrators:
            names = [integrator.name for integrator in self.integrators]
            content["risks"] = {"integrator": names, "num_points": self.num_points, "num_draws": self.num_points}
        # The name has to be one that suites know; all else is this scenario's.
        summary = Summary("digits", "0" * 64, (drawn + 1, 1, 8, 8), 1, CLASSES)
        return make_plan(Suite.model_validate(content), summary)


@cache
def _world(noise: float, num_inputs: int) -> World:
    return make_world(noise, num_inputs)


Fitted = tuple[Any, float, float]
"""A distribution, its KL from the prior, and its true risk."""


def _integrated(
    scenario: Scenario,
    seed: int,
    mean: tuple[Tensor, float],
    fitted: Callable[[bool], Fitted],
    integrals: Callable[[Any], Problem],
) -> list[Made]:
    """All integrations of the plan and the mean classifier, of which its mistakes and its true error are given.

    `fitted` makes the posterior, or the prior itself.
    """
    mistakes, true_error = mean
    found, made = [], dict[bool, Fitted]()
    for planned in scenario.plan.integrations:
        fits = planned.posterior.fit.fitted
        if fits not in made:
            made[fits] = fitted(fits)
        distribution, kl, truth = made[fits]
        points = planned.num_points or 1
        integration = integrate(planned.integrator, integrals(distribution), num_points=points, seed=seed)
        kind = planned.posterior.classifier
        one = _certifiable(kind, planned.integrator, integration, kl, truth, planned.posterior.identity)
        found.append(one._replace(one=one.one._replace(mistakes=mistakes)))
    if scenario.plan.means:
        found.append(_certifiable("mean", None, Integration(mistakes.double()), 0.0, true_error))
    return found


def trained(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """The whole way of LDAF: a network trained on the prior part, prior and posterior, and the mean classifier."""
    world = scenario.world
    sample, data = _drawn(scenario, seed)
    network = train(
        world, data if leak else sample.part(scenario.plan.networks[0].splits.prior), scenario.train_steps, seed
    )
    pushed = network.pushed_for(data)
    prior = initial_covariance("code", COORDINATES, scale=scenario.scale, seed=seed)
    settings = FitSettings(num_points=64, max_alternations=2, epsilon=scenario.epsilon, seed=seed)
    draw = flow_draw(FLOW, network.omega, network.features[data.chosen])

    def fitted(fits: bool) -> Fitted:
        gaussian, kl = fit(pushed, data.labels, prior, settings)[:2] if fits else (prior, 0.0)
        return gaussian, kl, network.true_risk(world, gaussian)

    mean = pushed.mean.argmax(-1) != data.labels, network.true_error(world)
    return _integrated(scenario, seed, mean, fitted, lambda one: problem(pushed, one, data.labels, draw))


def _drawn(scenario: Scenario, seed: int) -> tuple[Data, Data]:
    """A fresh data set, and its certificate part."""
    sample = scenario.world.draw(len(scenario.plan.summary), seed)
    return sample, sample.part(scenario.plan.networks[0].splits.certificate)


def layer(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """A Gaussian last layer, mean and scales fitted."""
    world, (sample, data) = scenario.world, _drawn(scenario, seed)
    network = LinearNetwork(world, sample.part(scenario.plan.networks[0].splits.prior), scenario.train_steps, seed)
    trained_layer = torch.cat([network.linear.weight, network.linear.bias[:, None]], 1).detach().double()
    inputs = world.inputs[data.chosen]
    features = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
    cache = Layer(features @ trained_layer.mT, features)
    prior = initial_covariance("isotropic", trained_layer.numel(), scale=scenario.scale)
    settings = FitSettings(num_points=64, max_alternations=2, mean=True, learning_rate=0.01, seed=seed)

    def fitted(fits: bool) -> Fitted:
        gaussian, kl = fit(cache, data.labels, prior, settings)[:2] if fits else (prior, 0.0)
        parts = {name: tensor.detach().view_as(trained_layer).numpy() for name, tensor in gaussian.tensors().items()}
        return gaussian, kl, linear_risk(world, trained_layer.numpy() + parts.get("mean", 0.0), parts["d"])

    mean, draw = (cache.mean.argmax(-1) != data.labels, network.true_error(world)), layer_draw(trained_layer, features)
    return _integrated(scenario, seed, mean, fitted, lambda one: problem(cache, one, data.labels, draw))


def weights(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """A network whose weights are drawn; with one linear layer, its true risk is that of a Gaussian last layer."""
    world, (sample, data) = scenario.world, _drawn(scenario, seed)
    network = LinearNetwork(world, sample.part(scenario.plan.networks[0].splits.prior), scenario.train_steps, seed)
    inputs = world.inputs[data.chosen].float()
    with torch.no_grad():
        digest = {"images": inputs, "logits": network(inputs)}
    seen = SeenData(digest, data.labels, SimpleNamespace(model=lambda: copy.deepcopy(network)))  # type: ignore[arg-type]
    centre = StochasticClassifier(copy.deepcopy(network)).weights
    prior = pbb.Weights(centre, torch.full_like(centre, scenario.scale))
    spec = pbb.Fit(fit_epochs=2, fit_batch=30, learning_rate=0.02)

    def whole(flat: Tensor) -> dense.Array:
        weight, bias = flat.double().split([CLASSES * DIMENSION, CLASSES])
        return torch.cat([weight.view(CLASSES, DIMENSION), bias[:, None]], 1).numpy()

    def fitted(fits: bool) -> Fitted:
        found: Any = pbb.fit_weights(spec, prior, seen, seed, lambda value: None).distribution if fits else prior
        return found, found.kl_from(prior), linear_risk(world, whole(found.mean), whole(found.scale))

    mean = digest["logits"].argmax(-1) != data.labels, network.true_error(world)
    return _integrated(scenario, seed, mean, fitted, lambda one: pbb.problem(Spec(), one, seen))


class Made(NamedTuple):
    """A classifier of a scenario, and what is known of it."""

    one: Certifiable
    columns: Mapping[str, Any]


def _certifiable(
    kind: Classifier, integrator: str | None, integration: Integration, kl: float, truth: float, setting: str = ""
) -> Made:
    columns = {"setting": setting, "classifier": kind, "integrator": integrator, "truth": truth}
    columns["risk"] = float(integration.value)
    return Made(Certifiable(kind, integrator, (integration,), None, kl, len(integration.per_datum)), columns)


@cache
def _hopeless(number: int) -> tuple[SmallNetwork, Tensor, float]:
    """An untrained network in a world of pure noise, its risk for every (input, label), and its true risk."""
    world, network = _world(1.0, FEW_INPUTS), untrained(FEW_INPUTS, number)
    gaussian = initial_covariance("constant", COORDINATES, scale=NARROW)
    values = []
    for label in range(CLASSES):
        integrals = problem(network.pushed, gaussian, torch.full((FEW_INPUTS,), label))
        values.append(integrate(BONFERRONI.name, integrals).per_datum)
    return network, torch.stack(values, -1), network.true_risk(world, gaussian)


def hopeless(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """Untrained networks, which only luck tells apart, one for each seed of the suite."""
    _, data = _drawn(scenario, seed)
    first = 0 if scenario.num_seeds > 1 else seed % 50
    found = []
    for number in range(first, first + scenario.num_seeds):
        _, values, truth = _hopeless(number)
        risks = values[data.chosen, data.labels]
        integration = Integration(risks, torch.zeros(len(risks), dtype=torch.int64))
        found.append(_certifiable("prior", BONFERRONI.name, integration, 0.0, truth))
    return found


HYPOTHESES = 500


def luckiest(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """A prior that draws one of many untrained networks, and a posterior that takes the luckiest: KL = ln(number)."""
    _, data = _drawn(scenario, seed)
    risks = torch.stack([_hopeless(number)[1][data.chosen, data.labels] for number in range(HYPOTHESES)])
    best = int(risks.mean(1).argmin())
    integration = Integration(risks[best], torch.zeros(risks.shape[1], dtype=torch.int64))
    kl, truth = float(np.log(HYPOTHESES)), _hopeless(best)[2]
    return [_certifiable("posterior", BONFERRONI.name, integration, kl, truth)]


def coin(scenario: Scenario, seed: int, leak: bool) -> list[Made]:
    """A fixed classifier with a known risk and so many data that the last printed digit matters."""
    size = scenario.num_certificate
    count = np.random.default_rng(named_seed("simulate", "coin", seed)).binomial(size, COIN)
    errors = torch.zeros(size, dtype=torch.float64)
    errors[:count] = 1
    return [_certifiable("mean", None, Integration(errors), 0.0, COIN)]


WITH_DRAWS = tuple(entry for entry in INTEGRATORS.values() if entry.certifies and entry.needs != "gaussian")
GUARANTEED = tuple(entry for entry in INTEGRATORS.values() if entry.certifies)
EVERYTHING = Scenario(trained, 60, tuple(BOUNDS.values()), GUARANTEED, objectives=("cross_entropy", UNFITTED))
NOISE = Scenario(trained, 60, (KL_EXACT,), objectives=("cross_entropy",), noise=NOISY)
PURE_NOISE: dict[str, Any] = {"noise": 1.0, "num_inputs": FEW_INPUTS, "scale": NARROW}
FIXED = Scenario(hopeless, 5, (KL_EXACT, CHERNOFF), epsilon=0.0099, delta=0.0001, **PURE_NOISE)
MANY_SEEDS = Scenario(hopeless, 30, (KL_EXACT, CHERNOFF), num_seeds=300, report="best", **PURE_NOISE)
FEW_SEEDS = Scenario(hopeless, 30, (CHERNOFF,), num_seeds=20, **PURE_NOISE)
CHOICE = Scenario(luckiest, 30, (KL_EXACT,), objectives=("cross_entropy",), **PURE_NOISE)
ONE_POINT = Scenario(trained, 2000, (CHERNOFF,), (MC, QMC), num_points=1, scale=WIDE)
LARGE = Scenario(coin, 1_000_000, (TEST_SET,), (), method=DETERMINISTIC)
LAYER = dataclasses.replace(EVERYTHING, classifiers=layer, method=LAST_LAYER, integrators=(BONFERRONI, ONE_DRAW))
WEIGHTS = dataclasses.replace(
    EVERYTHING, classifiers=weights, method=PBB, integrators=WITH_DRAWS, objectives=(QUAD.name, UNFITTED)
)
SHARED = Scenario(weights, 20_000, (CHERNOFF,), (SHARED_MC,), 1, scale=WIDE, method=PBB)
EXCESS = Scenario(
    layer, 2000, (SPLIT_KL, TEST_SET), num_prior=3000, noise=0.0, scale=WIDE, train_steps=150, method=LAST_LAYER
)
