"""What a cell of a sweep costs beyond its own computing: Ray Tune, processes, the writer."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from ldaf_bench.plan import PlannedCell, PlannedPosterior
from ldaf_bench.results.store import posterior_hash, save_cell, save_posterior
from ldaf_bench.speed.cases import make_case
from ldaf_bench.speed.measure import Row, Sizes
from ldaf_bench.stages.certify import Arrays, Flow, certify_cell, fit_posterior
from ldaf_bench.stages.session import ray_session
from ldaf_bench.stages.sweep import Job, Key, Shared, share, sweep
from ldaf_bench.suite import CellResources

PRIOR: Key = ("speed", None)


def small_jobs(count: int) -> list[Job]:
    """Posteriors with one small cell each: as many starts and ends as cells, the most that a sweep could have."""
    jobs = []
    for number in range(count):
        posterior = PlannedPosterior(
            prior=PRIOR[0], tolerance=None, covariance="code", scale=0.1, seed=number, objective="prior", num_points=0,
            optimizer="", learning_rate=None, epochs=0, max_alternations=0, batch_size=0, rise=0.005, epsilon=0.01,
        )  # fmt: skip
        cell = PlannedCell(PRIOR[0], posterior, "mc", 16, ("kl",), (0.01,), 0.01, 1, 1)
        jobs.append(Job(PRIOR, "speed", (cell,), {}, False, posterior))
    return jobs


def plain_seconds(jobs: Sequence[Job], arrays: Arrays, flow: Flow) -> float:
    """All of it in this process, one after the other, written as well."""
    with tempfile.TemporaryDirectory() as store:
        begin = time.perf_counter()
        for job in jobs:
            assert job.posterior is not None
            fitted = fit_posterior(job.posterior, arrays, arrays)
            save_posterior(Path(store), job.posterior, job.source, *fitted)
            for cell in job.cells:
                rows = certify_cell(cell, fitted, arrays, flow)
                save_cell(Path(store), cell, job.source, posterior_hash(fitted.start, fitted.gaussian), rows)
        return time.perf_counter() - begin


def sweep_seconds(jobs: Sequence[Job], arrays: Arrays, flow: Flow) -> float:
    """The same as a sweep of one process at a time, with its start and its end."""
    reference = share(arrays)
    shared = {PRIOR: Shared(reference, reference, None, flow)}
    with tempfile.TemporaryDirectory() as store:
        begin = time.perf_counter()
        failures = sweep(jobs, shared, Path(store), CellResources(at_once=1), Console(quiet=True))
        seconds = time.perf_counter() - begin
    if failures:
        raise RuntimeError(f"A cell of the speed test failed: {failures[0].message}")
    return seconds


def overhead(sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds per cell beyond its own computing, once running: from the difference of a long and a short sweep."""
    case = make_case(5, sizes.num_classes, 200, "cpu")
    arrays, flow = Arrays(case.push(), case.features, case.labels), Flow(case.flow, case.omega, 1.0)
    few, many = (small_jobs(count) for count in sizes.sweep_cells)
    more = len(many) - len(few)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain_seconds(few, arrays, flow)  # warms up
    plain = plain_seconds(many, arrays, flow) / len(many)
    torch.set_num_threads(threads)
    with ray_session():
        sweep_seconds(few, arrays, flow)  # starts processes
        short = sweep_seconds(few, arrays, flow)
        each = (sweep_seconds(many, arrays, flow) - short) / more
    note = f"seconds per cell of a sweep of {len(many)} with one process, less those of the same cells in a plain loop"
    yield Row("ratio", "sweep overhead per cell, s", "", math.nan, each, plain, each - plain, 0.3, False, note)
