"""A world whose true risk is known: finitely many inputs, each with its own label probabilities.

The true risk is computed in numpy by the dense twins of `verify`, so that no mistake of the package can hide in it.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.pushforward import Pushforward, push
from ldaf_bench.theory.seeds import named_generator
from ldaf_bench.verify import dense

NODES, CLASSES, DIMENSION = 3, 3, 30
COORDINATES = NODES * (CLASSES - 1)
FLOW = "daf"


class Data(NamedTuple):
    """A sample: which input, and its label."""

    chosen: Tensor
    labels: Tensor

    def part(self, indices: NDArray[np.int64]) -> Data:
        """Some of it."""
        index = torch.from_numpy(np.array(indices))
        return Data(self.chosen[index], self.labels[index])


class World(NamedTuple):
    """A data distribution: a uniform choice among inputs, then a label."""

    inputs: Tensor
    """(inputs, DIMENSION)"""
    labels: Tensor
    """P(y | x), of shape (inputs, CLASSES)."""

    def draw(self, size: int, seed: int) -> Data:
        """An i.i.d. sample."""
        generator = named_generator("simulate", "data", seed)
        index = torch.randint(len(self.inputs), (size,), generator=generator)
        return Data(index, torch.multinomial(self.labels[index], 1, generator=generator)[:, 0])


def make_world(noise: float, num_inputs: int = 300) -> World:
    """A linear teacher whose label is replaced by a random one with probability `noise`."""
    generator = named_generator("simulate", "world")
    inputs = torch.randn(num_inputs, DIMENSION, dtype=torch.float64, generator=generator)
    teacher = torch.randn(DIMENSION, CLASSES, dtype=torch.float64, generator=generator)
    right = torch.nn.functional.one_hot((inputs @ teacher).argmax(-1), CLASSES).double()
    return World(inputs, (1 - noise) * right + noise / CLASSES)


def gibbs_risk(world: World, mean: dense.Array, noise: dense.Array) -> float:
    """The risk of logits `mean` + `noise` ξ with white ξ; with two rivals, P(A ∪ B) = P(A) + P(B) − P(A ∩ B)."""
    total = 0.0
    for label in range(CLASSES):
        rivals = [other for other in range(CLASSES) if other != label]
        moved = noise[:, rivals] - noise[:, [label]]
        scale = np.sqrt((moved**2).sum(-1))
        limits = -(mean[:, rivals] - mean[:, [label]]) / scale
        correlation = np.clip((moved[:, 0] * moved[:, 1]).sum(-1) / scale.prod(-1), -1 + 1e-15, 1 - 1e-15)
        both = dense.joint_tail(limits[:, 0], limits[:, 1], correlation)
        either = scipy.special.ndtr(-limits).sum(-1) - both
        total += float((world.labels[:, label].numpy() * either).mean())
    return total


def error_of(world: World, logits: dense.Array) -> float:
    """The risk of a classifier that takes the largest logit."""
    guess = logits.argmax(-1)
    return float(1 - world.labels.numpy()[np.arange(len(guess)), guess].mean())


class SmallNetwork:
    """Features of every input of the world, and a flow behind them."""

    def __init__(self, features: Tensor, omega: Tensor) -> None:
        self.features, self.omega = features, omega

    @cached_property
    def pushed(self) -> Pushforward:
        """(M, G) of every input, by the package."""
        return push(FLOW, self.omega, self.features)

    def pushed_for(self, data: Data) -> Pushforward:
        """(M, G) of a sample."""
        return Pushforward(*(part[data.chosen] for part in self.pushed))

    @cached_property
    def _dense(self) -> tuple[dense.Array, dense.Array]:
        """(M, Gᵀ) of every input, by matrix exponentials."""
        return dense.pushforward(FLOW, self.omega.numpy(), self.features.numpy(), 1.0)

    def true_risk(self, world: World, gaussian: Gaussian) -> float:
        """The Gibbs risk over the whole distribution."""
        mean, rows = self._dense
        return gibbs_risk(
            world, mean, np.einsum("ck,mks,st->mct", dense.basis(CLASSES), rows, gaussian.factor().numpy())
        )

    def true_error(self, world: World) -> float:
        """The risk of the mean classifier."""
        return error_of(world, self._dense[0])


def train(world: World, data: Data, steps: int, seed: int) -> SmallNetwork:
    """A linear network with a flow behind it, trained end to end by Adam on `data`."""
    generator = named_generator("simulate", "network", seed)
    weight = torch.randn(DIMENSION, NODES * CLASSES, dtype=torch.float64, generator=generator) * 0.1
    omega = initial_parameter(FLOW, NODES, CLASSES, generator=generator, dtype=torch.float64)
    leaves = [weight.requires_grad_(), omega.requires_grad_()]
    optimizer = torch.optim.Adam(leaves, lr=0.1)

    def features(inputs: Tensor) -> Tensor:
        return (inputs @ weight).view(-1, NODES, CLASSES)

    for _ in range(steps):
        optimizer.zero_grad()
        logits = forward(FLOW, FLOWS[FLOW].constrain(omega), features(world.inputs[data.chosen]))
        torch.nn.functional.cross_entropy(logits, data.labels).backward()
        optimizer.step()
    with torch.no_grad():
        return SmallNetwork(features(world.inputs), FLOWS[FLOW].constrain(omega).detach())


class LinearNetwork(nn.Module):
    """A single linear layer, whose weights are the whole network."""

    def __init__(self, world: World, data: Data, steps: int, seed: int) -> None:
        super().__init__()
        self.linear = nn.Linear(DIMENSION, CLASSES)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(0, 0.1, generator=named_generator("simulate", "linear", seed))
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.cross_entropy(self(world.inputs[data.chosen].float()), data.labels).backward()
            optimizer.step()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits."""
        return self.linear(inputs)

    def true_error(self, world: World) -> float:
        """The risk of the mean classifier."""
        weight, bias = (value.detach().double().numpy() for value in (self.linear.weight, self.linear.bias))
        return error_of(world, world.inputs.numpy() @ weight.T + bias)


def linear_risk(world: World, weights: dense.Array, scales: dense.Array) -> float:
    """The Gibbs risk of independent weights (CLASSES, DIMENSION + 1), the bias last."""
    features = np.hstack([world.inputs.numpy(), np.ones((len(world.inputs), 1))])
    deviation = np.sqrt(features**2 @ (scales**2).T)
    return gibbs_risk(world, features @ weights.T, deviation[:, :, None] * np.eye(CLASSES))


def untrained(num_inputs: int, number: int) -> SmallNetwork:
    """A network that nothing was learned by."""
    generator = named_generator("simulate", "untrained", number)
    features = 4 * torch.randn(num_inputs, NODES, CLASSES, dtype=torch.float64, generator=generator)
    omega = initial_parameter(FLOW, NODES, CLASSES, generator=generator, dtype=torch.float64)
    return SmallNetwork(features, FLOWS[FLOW].constrain(omega).detach())
