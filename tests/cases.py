"""Random problems of any size, for the tests: everything from one integer seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import strategies as st
from torch import Tensor

from ldaf_bench.theory.flows import initial_parameter
from ldaf_bench.theory.gaussian import DiagonalRankOne
from ldaf_bench.theory.integrate import Integrator, Problem
from ldaf_bench.theory.pushforward import class_factor
from tools.selfcheck import shipped

SHARED = Path(__file__).parents[2] / "shared" / "fixtures"

nodes = st.integers(1, 5)
classes = st.integers(2, 5)
seeds = st.integers(0, 10_000)


def ground_truth() -> list[Path]:
    """All files of ground truth there are: the shared ones where they exist, else those in tools/fixtures."""
    return sorted(SHARED.glob("*.npz")) or shipped()


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=rng(seed))


def parameter(flow: str, n: int, c: int, seed: int, scale: float = 1.0) -> Tensor:
    return scale * initial_parameter(flow, n, c, generator=rng(seed), dtype=torch.float64)


def gaussian(size: int, seed: int) -> DiagonalRankOne:
    d, q = normal(2, size, seed=seed)
    return DiagonalRankOne(0.1 + d.abs(), 0.3 * q)


def logits_problem(m: int, c: int, seed: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Problem:
    """Gaussian logits with correlated noise; labels mostly, but not always, at the largest mean."""
    mean = 2 * normal(m, c, seed=seed)
    noise = scale * normal(m, c - 1, c + 1, seed=seed + 1)
    factor = torch.linalg.cholesky(noise @ noise.mT / (c + 1))
    flip = torch.rand(m, generator=rng(seed + 2)) < 0.2
    labels = torch.where(flip, torch.randint(c, (m,), generator=rng(seed + 3)), mean.argmax(-1))
    return Problem(mean.to(dtype), factor.to(dtype), labels)


def with_draws(problem: Problem) -> Problem:
    """The same integrals, which offer drawn logits as well: every integrator can be given them."""
    mean, factor = problem.gaussian
    logits_factor = class_factor(factor)

    def draw(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
        shape = (len(mean[part]), num_samples, factor.shape[-1])
        noise = torch.randn(shape, dtype=mean.dtype, generator=generator)
        return mean[part, None] + noise @ logits_factor[part].mT

    def shared(generator: torch.Generator) -> Tensor:
        noise = torch.randn(factor.shape[-1], dtype=mean.dtype, generator=generator)
        return mean + logits_factor @ noise

    return replace(problem, draw=draw, shared=shared)


def points_for(entry: Integrator) -> int:
    """Points per datum with which an integrator is accurate in a test; from what it says about itself."""
    if not entry.least_points:
        return 1
    wanted = 8192 if entry.sobol else 4096 if entry.needs == "gaussian" else 256
    return max(wanted, 1 << (entry.least_points - 1).bit_length())


def few_points_for(entry: Integrator) -> int:
    """As few as is worth looking at."""
    return max(64, 1 << max(0, entry.least_points - 1).bit_length())
