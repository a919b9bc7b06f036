"""The measurements: ratios with targets, peak memory, and growth along every axis."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ldaf_bench.theory.integrate import INTEGRATORS, Integrator, Problem, evaluate, integrate, sobol_normals
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.theory.integrate.conditional import CONDITIONAL
from ldaf_bench.theory.integrate.sampling import MC, QMC, mc
from ldaf_bench.theory.logits import flow_draw, problem
from ldaf_bench.theory.posterior import FitSettings, fit
from tools.speed.cases import (
    Case,
    forward_all,
    generate_normals,
    make_case,
    one_epoch,
    plain_risk,
    stored_epoch,
)

QUOTED_SECONDS = 0.55 / 100
"""What a public implementation needs per datum for one risk at 10,000 Sobol points on two such cores."""


@dataclass(frozen=True)
class Sizes:
    """What is measured; the defaults are the paper's sizes."""

    num_nodes: int = 50
    num_classes: int = 10
    num_data: int = 10_000
    mc_points: int = 10_000
    stored_points: int = 10_000
    fit_points: int = 1024
    qmc_points: tuple[int, int] = (8192, 16384)
    """The powers of 2 on both sides of 10,000."""
    reference_points: int = 16384
    seeds: int = 16
    memory_points: tuple[int, ...] = (1024, 16384)
    nodes: tuple[int, ...] = (25, 50, 100, 200)
    classes: tuple[int, ...] = (5, 10, 20, 50, 100)
    data: tuple[int, ...] = (1000, 2000, 4000, 8000)
    points: tuple[int, ...] = (256, 512, 1024, 2048, 4096)
    corner: tuple[int, int, int] = (200, 100, 8)
    """n, c and m of the largest case."""
    images: tuple[int, int, int] = (3, 32, 32)
    network: str = "speednet"
    batch: int = 500
    steps: int = 10
    """Of an epoch of training; one to warm up, one to measure."""
    large_network: str = "resnet18"
    large_batch: int = 128
    sweep_posteriors: tuple[int, int] = (10, 60)
    """Of a short and a long sweep."""
    light_epochs: int = 200
    """Of small networks that are trained side by side."""
    light_networks: int = 50
    light_posteriors: tuple[int, ...] = (2, 20, 200)
    """Of each of these networks, in one run after the other."""


QUICK = Sizes(
    num_nodes=5, num_classes=4, num_data=60, mc_points=200, stored_points=200, fit_points=64, qmc_points=(64, 128),
    reference_points=1024, seeds=4, memory_points=(64,), nodes=(2, 4), classes=(3, 5), data=(20, 40), points=(32, 64),
    corner=(6, 6, 4), images=(1, 8, 8), network="tinynet", batch=32, steps=4, large_network="tinynet", large_batch=8,
    sweep_posteriors=(1, 3), light_networks=2, light_posteriors=(2, 3), light_epochs=2,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One measurement, one line of the Parquet file."""

    kind: str
    """`ratio`, `memory`, `growth` or `slope`."""
    what: str
    axis: str
    """For growth: which of n, c, m, q varies."""
    x: float
    """Its value."""
    seconds: float
    baseline_seconds: float
    value: float
    """The ratio, the gigabytes or the slope."""
    limit: float
    at_least: bool
    """Whether the value has to be at least the limit, rather than at most."""
    note: str = ""

    @property
    def holds(self) -> bool:
        """Whether the target is met; rows without one always do."""
        return math.isnan(self.limit) or (self.value >= self.limit if self.at_least else self.value <= self.limit)


class Stopwatch:
    """Seconds of a call, the accelerator's work included."""

    def __init__(self, device: str) -> None:
        self.device = device

    def __call__(self, call: Callable[[], object], repeats: int = 1) -> float:
        """The median over repeats, after one call to warm up if there are several."""
        if repeats > 1:
            call()
        return statistics.median(self._once(call) for _ in range(repeats))

    def _once(self, call: Callable[[], object]) -> float:
        self._wait()
        begin = time.perf_counter()
        call()
        self._wait()
        return time.perf_counter() - begin

    def _wait(self) -> None:
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)


def root_mean_square(integrals: Problem, integrator: Integrator, num_points: int, truth: float, seeds: int) -> float:
    """Error of the overall risk over seeds."""
    name = integrator.name
    values = [float(integrate(name, integrals, num_points=num_points, seed=seed).value) for seed in range(seeds)]
    return math.sqrt(statistics.fmean((value - truth) ** 2 for value in values))


def ratios(sizes: Sizes, device: str) -> Iterator[Row]:
    """The targets, one after the other."""
    clock = Stopwatch(device)
    c, m = sizes.num_classes, sizes.num_data

    def row(what: str, seconds: float, base: float, value: float, limit: float, at_least: bool, note: str) -> Row:
        return Row("ratio", what, "", math.nan, seconds, base, value, limit, at_least, note)

    case = make_case(sizes.num_nodes, c, m, device)
    base = clock(lambda: forward_all(case), 3)
    seconds = clock(case.push, 3)
    yield row("push / forward pass", seconds, base, seconds / base, 1.5 * c, False, f"all {c - 1} rows batched")

    pushed = case.push()
    integrals = problem(pushed, case.prior, case.labels)
    normals = m * sizes.mc_points * (c - 1)
    base = clock(lambda: generate_normals(normals, integrals.gaussian[1]))
    seconds = clock(lambda: mc(integrals, num_points=sizes.mc_points, seed=0, negligible=0.0))
    note = f"N = {m * sizes.mc_points:.0e} draws"
    yield row("mc / its normals", seconds, base, seconds / base, 2.5, False, note)
    skipping = clock(lambda: mc(integrals, num_points=sizes.mc_points, seed=0))
    note = "skipping the data that cannot matter"
    yield row("mc, all sampled / skipping", skipping, seconds, seconds / skipping, math.nan, True, note)

    base = clock(lambda: stored_epoch(case, sizes.stored_points))
    seconds = one_epoch(case, pushed, sizes.fit_points)
    note = f"q = {sizes.fit_points} cached against {sizes.stored_points} stored"
    yield row("epoch, flow again / cached", seconds, base, base / seconds, 50, True, note)

    truth = float(integrate(CONDITIONAL.name, integrals, num_points=sizes.reference_points, seed=-1).value)
    low, high = sizes.qmc_points
    base = clock(lambda: integrate(QMC.name, integrals, num_points=low), 3)
    goal = root_mean_square(integrals, QMC, high, truth, sizes.seeds)
    enough = 4
    while root_mean_square(integrals, CONDITIONAL, enough, truth, sizes.seeds) > goal and enough < high:
        enough *= 2
    seconds = clock(lambda: integrate(CONDITIONAL.name, integrals, num_points=enough), 5)
    note = f"{enough} points for the error {goal:.0e} of qmc at {high}; cost of qmc at {low}"
    yield row("conditional / qmc, cost", seconds, base, seconds / base, 0.1, False, note)

    def whole() -> None:
        again = problem(pushed, case.prior, case.labels)
        integrate(CONDITIONAL.name, again, num_points=128)
        integrate(BONFERRONI.name, again)

    seconds = clock(whole, 3)
    quoted = QUOTED_SECONDS * m
    note = "conditional and bonferroni, all data; quoted figure"
    yield row("public code / certificate", seconds, quoted, quoted / seconds, 30, True, note)
    base = clock(lambda: plain_risk(integrals, sizes.stored_points))
    note = f"one risk at {sizes.stored_points} points, written straight down here"
    yield row("plain code / certificate", seconds, base, base / seconds, math.nan, True, note)


def peak_gigabytes(sizes: Sizes, num_points: int, device: str) -> float:
    """Peak memory above (M, G) over push, fit and all integrators, in this process; NaN where it cannot be told."""
    case = make_case(sizes.num_nodes, sizes.num_classes, sizes.num_data, device)
    before = _reset_peak(device)
    pushed = case.push()
    draw = flow_draw(case.flow, case.omega, case.features)
    integrals = problem(pushed, case.prior, case.labels, draw)
    fit(pushed, case.labels, case.prior, FitSettings(num_points=num_points, epochs=1, max_alternations=1))
    for integrator in INTEGRATORS.values():
        points = num_points if integrator.needs == "gaussian" else 2
        integrate(integrator.name, integrals, num_points=points)
    evaluate(integrals, sobol_normals(sizes.num_classes - 1, num_points, 0), "cross_entropy")
    kept = sum(part.numel() * part.element_size() for part in pushed)
    return (_peak(device) - before - kept) / 2**30


def _reset_peak(device: str) -> float:
    """Bytes in use now, from where the peak is counted."""
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return float(torch.cuda.memory_allocated(device))
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux
        return math.nan
    return _peak(device)


def _peak(device: str) -> float:
    if torch.device(device).type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return math.nan
    return 1024 * float(status.split("VmHWM:")[1].split()[0])


def memory(sizes: Sizes, device: str) -> Iterator[Row]:
    """The peak for several q, each in a fresh process."""
    context = multiprocessing.get_context("spawn")
    for num_points in sizes.memory_points:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            value = pool.submit(peak_gigabytes, sizes, num_points, device).result()
        note = "GB above (M, G), over push, fit and all integrators"
        yield Row(
            "memory", f"peak memory, q = {num_points}", "q", num_points, math.nan, math.nan, value, 1.0, False, note
        )


def growth(sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds of push, fit and integration along every axis."""
    clock = Stopwatch(device)
    n, c, q = sizes.num_nodes, sizes.num_classes, sizes.fit_points
    some, few = min(1000, sizes.num_data), min(64, sizes.num_data)
    grid = [("n", x, (x, c, some, q)) for x in sizes.nodes]
    grid += [("c", x, (n, x, few, q)) for x in sizes.classes]
    grid += [("m", x, (n, c, x, q)) for x in sizes.data]
    grid += [("q", x, (n, c, some, x)) for x in sizes.points]
    for axis, x, (nodes, classes, data, points) in grid:
        for what, seconds in _stages(make_case(nodes, classes, data, device), points, clock, 3):
            if not (axis == "q" and what == "push"):
                yield Row("growth", what, axis, x, seconds, math.nan, math.nan, math.nan, False)
    nodes, classes, data = sizes.corner
    for flow in ("daf", "sflow"):
        for what, seconds in _stages(make_case(nodes, classes, data, device, flow), q, clock, 1):
            note = f"{flow} at n = {nodes}, c = {classes}, m = {data}"
            yield Row("growth", what, "corner", math.nan, seconds, math.nan, math.nan, math.nan, False, note)


def _stages(case: Case, num_points: int, clock: Stopwatch, repeats: int) -> Iterator[tuple[str, float]]:
    yield "push", clock(case.push, repeats)
    pushed = case.push()
    yield "fit, an epoch", one_epoch(case, pushed, num_points)
    integrals = problem(pushed, case.prior, case.labels)
    yield QMC.name, clock(lambda: integrate(QMC.name, integrals, num_points=num_points), repeats)
    yield CONDITIONAL.name, clock(lambda: integrate(CONDITIONAL.name, integrals, num_points=num_points), repeats)
    yield MC.name, clock(lambda: mc(integrals, num_points=num_points, seed=0, negligible=0.0), repeats)


def slopes(points: Sequence[Row]) -> Iterator[Row]:
    """Log-log slopes of the growth, by least squares."""
    for what in dict.fromkeys(row.what for row in points):
        for axis in ("n", "c", "m", "q"):
            chosen = [row for row in points if row.what == what and row.axis == axis]
            if len(chosen) > 1:
                x, y = np.log([row.x for row in chosen]), np.log([max(row.seconds, 1e-9) for row in chosen])
                slope = float(np.polyfit(x, y, 1)[0])
                yield Row("slope", what, axis, math.nan, math.nan, math.nan, slope, math.nan, False)
