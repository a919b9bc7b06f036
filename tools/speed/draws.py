"""What an integration costs where every draw runs the network: fresh weights, shared weights, and LDAF beside them.

At equal charge: N fresh draws prove kl⁻¹(r̂, ln(1/δ′)/N). The same from draws that all data share takes
N·ln(2/δ′)/ln(1/δ′) of them, each with a pass over all m data.
"""

from __future__ import annotations

import math

import torch

from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.stochastic import StochasticClassifier
from ldaf_bench.theory.integrate import integrate
from ldaf_bench.theory.integrate.sampling import MC
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.seeds import named_generator
from tools.speed.cases import make_case
from tools.speed.measure import Row, Sizes, Stopwatch

SAMPLES = 10
"""q of fresh weights: N = m·q."""
DELTA = 1e-4
MEASURED = 40
"""Draws that are timed; the rest is multiplication."""


def draws(sizes: Sizes, device: str) -> list[Row]:
    """Passes and seconds for one charge, as ratios."""
    watch, m = Stopwatch(device), sizes.num_data
    model = Classifier(sizes.network, LinearHead(), sizes.images, sizes.num_classes).to(device)
    model.backbone.to(memory_format=torch.channels_last)
    stochastic = StochasticClassifier(model)
    generator = named_generator("speed", "draws", device=device)
    images = torch.randint(0, 256, (min(m, 500), *sizes.images), dtype=torch.uint8).to(device)
    mean, scale = stochastic.weights, torch.full_like(stochastic.weights, 0.01)
    fresh = watch(lambda: stochastic.fresh(mean, scale, images[:MEASURED], 1, generator), 3) / MEASURED
    shared = watch(lambda: stochastic.shared(mean, scale, images, generator), 3)
    pass_over = shared * m / len(images)
    number = m * SAMPLES
    same_charge = number * math.log(2 / DELTA) / math.log(1 / DELTA)
    case = make_case(sizes.num_nodes, sizes.num_classes, m, device)
    integrals = problem(case.push(), case.prior, case.labels)
    closed = watch(lambda: integrate(MC.name, integrals, num_points=SAMPLES), 3)
    size = f"{sizes.network}, {len(mean)} weights, m = {m}, N = {number}: {same_charge * m:.2g} passes"
    seconds = f"{1e3 * fresh:.2g} ms for a fresh draw, {pass_over:.2g} s for a pass over all data"
    return [
        _row("shared / fresh weights, passes", same_charge * m, number, size),
        _row("shared / fresh weights, time", same_charge * pass_over, number * fresh, seconds),
        _row("fresh weights / LDAF's mc, time", number * fresh, closed, f"the same N = {number} draws"),
    ]


def _row(what: str, cost: float, against: float, note: str) -> Row:
    return Row("ratio", what, "", math.nan, cost, against, cost / against, math.nan, True, note)
