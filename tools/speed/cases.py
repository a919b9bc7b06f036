"""What is timed: synthetic priors of any size, and the plain ways of computing that are compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ldaf_bench.theory.bounds import best_lambda, complexity, lambda_value
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.flows import forward, initial_parameter
from ldaf_bench.theory.gaussian import DiagonalRankOne, Gaussian, kl_divergence
from ldaf_bench.theory.integrate import Problem, sobol_normals
from ldaf_bench.theory.integrate.sampling import fill_normal_
from ldaf_bench.theory.posterior import FitSettings, fit
from ldaf_bench.theory.pushforward import Pushforward, class_factor, covariance, push
from ldaf_bench.theory.seeds import named_generator


@dataclass(frozen=True)
class Case:
    """A synthetic prior at a given size: features of a confident network and a random flow."""

    features: Tensor
    labels: Tensor
    omega: Tensor
    prior: Gaussian
    flow: str = "daf"

    def push(self) -> Pushforward:
        """(M, G) of all data."""
        return push(self.flow, self.omega, self.features)


def make_case(n: int, c: int, m: int, device: str, flow: str = "daf") -> Case:
    """Labels stand out at the class node by 4 to 24, which gives a Gibbs risk of a few percent at the paper's size."""
    generator = named_generator("speed", n, c, m)
    labels = torch.randint(c, (m,), generator=generator)
    features = 1.5 * torch.randn(m, n, c, generator=generator)
    features[torch.arange(m), 0, labels] += 4 + 20 * torch.rand(m, generator=generator)
    omega = initial_parameter(flow, n, c, generator=generator)
    prior = initial_covariance("code", n * (c - 1))
    return Case(features.to(device), labels.to(device), omega.to(device), prior, flow)


def forward_all(case: Case) -> None:
    """The deterministic classifier on all data, in batches of 128."""
    with torch.no_grad():
        for part in case.features.split(128):
            forward(case.flow, case.omega, part)


def one_epoch(case: Case, pushed: Pushforward, num_points: int) -> float:
    """Seconds of a posterior epoch on cached (M, G); the start and the final evaluation are not counted."""
    seconds = []
    for epochs in (1, 1, 5):  # the first warms up
        settings = FitSettings(num_points=num_points, epochs=epochs, max_alternations=1)
        seconds.append(fit(pushed, case.labels, case.prior, settings).history[-1].seconds)
    return (seconds[2] - seconds[1]) / 4


def stored_epoch(case: Case, num_points: int) -> None:
    """The same epoch when every batch integrates the flow again and autograd stores all points."""
    assert isinstance(case.prior, DiagonalRankOne)
    d, q = case.prior.d.log().requires_grad_(), case.prior.q.clone().requires_grad_()
    optimizer = torch.optim.Adam([d, q], lr=0.03)
    dimension = case.features.shape[-1] - 1
    power = 1 << math.ceil(math.log2(num_points))
    points = sobol_normals(dimension, power, 0)[:, :num_points].T.to(case.features)
    for part in torch.arange(len(case.labels), device=case.labels.device).split(100):
        optimizer.zero_grad()
        pushed = push(case.flow, case.omega, case.features[part])
        posterior = DiagonalRankOne(d.exp(), q)
        factor = torch.linalg.cholesky(covariance(pushed.rows, posterior).double()).to(points.dtype)
        logits = pushed.mean[:, None] + points @ class_factor(factor).mT
        labels = case.labels[part].repeat_interleave(num_points)
        entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels).to("cpu", torch.float64)
        c = complexity(kl_divergence(posterior, case.prior), len(case.labels), 0.01)
        lambda_value(entropy, c, best_lambda(entropy.detach(), c.detach())).backward()
        optimizer.step()


def generate_normals(count: int, like: Tensor) -> None:
    """Only the normals, into one buffer."""
    buffer = like.new_empty(1 << 20)
    generator = named_generator("speed", "normals", device=like.device)
    for _ in range(count // len(buffer)):
        fill_normal_(buffer, generator)


def plain_risk(integrals: Problem, num_points: int) -> None:
    """One 0-1 risk at Sobol points, written straight down: batches of 100, argmax."""
    power = 1 << math.ceil(math.log2(num_points))
    mean, factor = integrals.gaussian
    points = sobol_normals(integrals.num_classes - 1, power, 0)[:, :num_points].T.to(mean)
    moved = class_factor(factor).to(mean)
    for part in torch.arange(integrals.num_data, device=mean.device).split(100):
        logits = mean[part, None] + points @ moved[part].mT
        (logits.argmax(-1) != integrals.labels[part, None]).double().mean(1)
