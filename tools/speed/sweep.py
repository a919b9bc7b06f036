"""What a posterior of a sweep costs beyond its own computing: a trial of Ray Tune, processes, files."""

from __future__ import annotations

import io
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from rich.console import Console

from ldaf_bench.data.datasets import load
from ldaf_bench.pipeline import Run
from ldaf_bench.plan import PlannedPosterior, make_plan
from ldaf_bench.stages.fit import fit_posterior, integrate_posterior
from ldaf_bench.stages.session import ray_session
from ldaf_bench.store.posteriors import save_integration, save_posterior
from ldaf_bench.store.store import open_store
from ldaf_bench.suite import Suite
from tools.speed.measure import Row, Sizes
from tools.speed.scale import light_suite


def light_run(count: int, folder: Path) -> Run:
    """A run of so many light posteriors of one network, which is there already."""
    dataset = load("digits")
    suite = light_suite(1, count)
    suite["resources"]["posteriors"] = {"at_once": 1}
    plan = make_plan(Suite.model_validate(suite), dataset.summary)
    return Run(plan, dataset, open_store(folder), Console(file=io.StringIO()), lambda: None)


def plain_seconds(run: Run, posteriors: Sequence[PlannedPosterior]) -> float:
    """All of them in this process, one after the other, written as well."""
    with tempfile.TemporaryDirectory() as folder:
        begin, store = time.perf_counter(), open_store(folder)
        for one in posteriors:
            source = run.sources[one.digest]
            certificate, test = (part.data(source.network) for part in (source.certificate, source.test))
            posterior = fit_posterior(one, certificate, test)
            save_posterior(store, one.identity, one.determines, source.content, posterior)
            for planned in run.plan.of_posterior[one.identity]:
                found, about = integrate_posterior(planned, posterior, certificate)
                save_integration(store, planned.identity, source.content, posterior.hash, found, about)
        return time.perf_counter() - begin


def sweep_seconds(run: Run, posteriors: Sequence[PlannedPosterior]) -> float:
    """The same as a sweep of one process at a time, with its start and its end."""
    begin = time.perf_counter()
    run.sweep(posteriors)
    if run.failures:
        raise RuntimeError(f"A posterior of the speed test failed: {next(iter(run.failures.values()))}")
    return time.perf_counter() - begin


def overhead(sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds per posterior beyond its own computing, once running: the difference of a long and a short sweep."""
    few, many = sizes.sweep_posteriors
    with tempfile.TemporaryDirectory() as folder, ray_session():
        run = light_run(2 * few + many, Path(folder))
        run.make_networks()
        some = run.plan.posteriors
        sweep_seconds(run, some[:few])  # starts processes
        short = sweep_seconds(run, some[few : 2 * few])
        each = (sweep_seconds(run, some[2 * few :]) - short) / (many - few)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        plain_seconds(run, some[:few])  # warms up
        plain = plain_seconds(run, some[2 * few :]) / many
        torch.set_num_threads(threads)
    note = f"seconds per posterior of a sweep of {many} with one process, less those of a plain loop"
    yield Row("ratio", "sweep overhead per posterior, s", "", math.nan, each, plain, each - plain, 0.3, False, note)
