"""From cached data and Gaussian coordinates to the integrals that integrators take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.flows import check_inputs
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import Draw, Problem
from ldaf_bench.theory.pushforward import Affine, logit_factor, logit_mean
from ldaf_bench.theory.simplex import expand


def problem(
    cache: Affine, gaussian: Gaussian, labels: Tensor, draw: Callable[[Gaussian], Draw] | None = None
) -> Problem:
    """The integrals of cached data under a Gaussian; Σ̂, its factor and a mean that moves M in float64.

    `draw`, from `flow_draw` or `layer_draw`, is for integrators that need drawn logits, and gets the same Gaussian.
    """
    factor = logit_factor(cache, gaussian)
    parts = list(chunks(len(cache.mean), cache.numbers))
    mean = torch.cat([logit_mean(cache, gaussian, part, torch.float64) for part in parts])

    def shared(generator: torch.Generator) -> Tensor:
        """Logits of all data from one draw of the coordinates."""
        noise = torch.empty(gaussian.size, dtype=torch.float64, device=cache.mean.device).normal_(generator=generator)
        drawn = gaussian.act(noise)
        moved = [cache.mean[part].double() + cache.shift(drawn, part, torch.float64) for part in parts]
        return torch.cat(moved)

    return Problem(mean, factor, labels, None if draw is None else draw(gaussian), shared=shared)


def flow_draw(
    flow: str, parameter: Tensor, features: Tensor, horizon: float = 1.0, tolerance: float | None = None
) -> Callable[[Gaussian], Draw]:
    """Draws that know no pushforward: a fresh v₀ = (I ⊗ P)(μ + Bξ) and a full flow integration for each."""
    entry = check_inputs(flow, parameter, features, horizon)
    num_nodes, num_classes = features.shape[1:]

    def bind(gaussian: Gaussian) -> Draw:
        expected = num_nodes * (num_classes - 1)
        require(gaussian.size == expected, "gaussian", f"of size n(c−1) = {expected}", gaussian.size)

        def draw(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            logits = []
            chosen = features[part]
            for some in chunks(len(chosen), num_samples * num_nodes * num_classes):
                noise = chosen.new_empty(some.stop - some.start, num_samples, expected).normal_(generator=generator)
                start = expand(gaussian.act(noise).unflatten(-1, (num_nodes, num_classes - 1)))
                logits.append(entry.integrate(parameter, chosen[some], start, horizon, tolerance).value)
            return torch.cat(logits)

        return draw

    return bind
