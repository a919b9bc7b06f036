"""From (M, G) and a Gaussian start to the integrals that integrators take."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.flows import check_inputs
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import Draw, Problem
from ldaf_bench.theory.pushforward import Pushforward, logit_factor
from ldaf_bench.theory.simplex import expand


def problem(
    pushed: Pushforward, gaussian: Gaussian, labels: Tensor, draw: Callable[[Gaussian], Draw] | None = None
) -> Problem:
    """The integrals of a pushforward under a Gaussian start; Σ̂ and its factor in float64.

    `draw`, from `flow_draw`, is for integrators that need drawn logits, and gets the same Gaussian.
    """
    factor = logit_factor(pushed.rows, gaussian)
    return Problem(pushed.mean, factor, labels, None if draw is None else draw(gaussian))


def flow_draw(
    flow: str, parameter: Tensor, features: Tensor, horizon: float = 1.0, tolerance: float | None = None
) -> Callable[[Gaussian], Draw]:
    """Draws that know no pushforward: a fresh v₀ = (I ⊗ P)Bξ and a full flow integration for each."""
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
