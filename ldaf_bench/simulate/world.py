"""A world whose true risk is known: finitely many inputs, each with its own label probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.bounds import Bound
from ldaf_bench.theory.certificate import Budget, certify, risk_to_certify
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import Integrator, integrate
from ldaf_bench.theory.integrate.bonferroni import hunter_worsley
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.pushforward import Pushforward, push
from ldaf_bench.theory.seeds import named_generator

NODES, CLASSES, INPUTS, DIMENSION = 3, 3, 300, 30
COORDINATES = NODES * (CLASSES - 1)
BUDGET = Budget(epsilon=0.05, delta=0.01)


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


def gibbs_risk(
    prior: Prior, gaussian: Gaussian, data: Data, integrator: Integrator, num_points: int, seed: int
) -> float:
    """The integrated empirical risk that enters a bound, at the budget's δ′."""
    integrals = problem(select(prior.pushed, data), gaussian, data.labels)
    found = integrate(integrator.name, integrals, num_points=num_points, seed=seed)
    return risk_to_certify(integrator, found, BUDGET.delta_each)


def value_of(bound: Bound, risk: float, kl: float, num_data: int) -> float:
    """The certificate of a fitted posterior."""
    return float(certify(bound, "posterior", risk, kl, num_data, BUDGET))
