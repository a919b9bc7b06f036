r"""sweep: all posteriors and cells of a plan as trials of Ray Tune. The only user of `ray.tune`.

A trial is one posterior with all its cells, because integrating costs less than starting a process, and processes are
kept from trial to trial. Every prior's (M, G) goes to the cluster once, as arrays of the object store that trials read
without a copy. What a trial computes goes to the one process that writes, and is on disk before the trial ends:
a sweep that was stopped goes on with what is missing.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from rich.console import Console

from ldaf_bench.methods.pushed import Pushed
from ldaf_bench.plan import PlannedCell, PlannedPosterior
from ldaf_bench.results.store import StoredPosterior, posterior_hash, save_cell, save_convergence, save_posterior
from ldaf_bench.stages.certify import (
    Arrays,
    Fitted,
    Flow,
    certify_cell,
    certify_mean,
    convergence,
    fit_posterior,
    peak_bytes,
)
from ldaf_bench.stages.progress import CountView, follow
from ldaf_bench.suite import CellResources, Convergence, Search
from ldaf_bench.theory.posterior import Alternation
from ldaf_bench.theory.pushforward import Pushforward

Key = tuple[str, float | None]
"""A prior and the Krylov tolerance of its pushforward."""


@dataclass(frozen=True)
class Job:
    """What one trial does: a posterior and its cells, or the cells of a prior's mean classifier."""

    key: Key
    source: str
    """The name of the pushforward on the certificate part."""
    cells: tuple[PlannedCell, ...]
    there: Mapping[str, str]
    """Cells that are on disk already, and the hash of the posterior that they are of."""
    posterior: PlannedPosterior | None = None
    stored: StoredPosterior | None = None
    """The posterior, if it is on disk already."""
    convergence: tuple[str, Convergence] | None = None
    """Name and settings of a convergence run."""


@dataclass(frozen=True)
class Shared:
    """What the trials of one prior have in common: references to arrays in the object store."""

    certificate: Any
    test: Any
    prior: Any
    """Prior data, for the covariance `scaled`; or none."""
    flow: Flow | None


@dataclass(frozen=True)
class Failure:
    """A job that could not be done."""

    job: int
    message: str


def share(pushed: Pushed) -> Any:
    """Put a pushforward into the object store."""
    arrays = {**pushed.pushforward._asdict(), "features": pushed.features, "labels": pushed.labels}
    return ray.put({name: tensor.numpy() for name, tensor in arrays.items()})


def _arrays(reference: Any) -> Arrays:
    """The same arrays in a trial, without a copy."""
    found = ray.get(reference)
    with warnings.catch_warnings():
        # They are read-only, and nothing here writes to data.
        warnings.simplefilter("ignore", UserWarning)
        tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    features, labels = tensors.pop("features"), tensors.pop("labels")
    return Arrays(Pushforward(**tensors), features, labels)


@ray.remote(num_cpus=0, max_restarts=0)
class Writer:
    """The one process that writes results; on the driver's node, where the store is."""

    def __init__(self, store: str, total: int) -> None:
        self.store = Path(store)
        self.done, self.total = 0, total
        self.failures: list[Failure] = []

    def posterior(self, job: Job, fitted: Fitted) -> None:
        """Write a posterior."""
        assert job.posterior is not None
        save_posterior(self.store, job.posterior, job.source, *fitted)

    def cell(self, cell: PlannedCell, source: str, posterior: str, rows: list[dict[str, Any]]) -> None:
        """Write a cell."""
        save_cell(self.store, cell, source, posterior, rows)

    def convergence(self, identity: str, source: str, rows: list[dict[str, Any]]) -> None:
        """Write a convergence run."""
        save_convergence(self.store, identity, source, rows)

    def finished(self, job: int, failure: str | None) -> None:
        """Take note of the end of a job."""
        self.done += 1
        if failure is not None:
            self.failures.append(Failure(job, failure))

    def read(self) -> dict[str, Any]:
        """How far the sweep is."""
        return {"done": self.done, "total": self.total, "failed": len(self.failures)}

    def all_failures(self) -> list[Failure]:
        """The jobs that could not be done."""
        return self.failures


def run_job(job: Job, shared: Shared, writer: Any, watch: Callable[[Alternation], None]) -> float:
    """Fit, integrate, certify; each result is written before the next is begun. Returns the smallest certificate."""
    certificate = _arrays(shared.certificate)
    values = []
    if job.posterior is None:
        for cell in job.cells:
            if cell.identity not in job.there:
                rows = certify_mean(cell, certificate)
                ray.get(writer.cell.remote(cell, job.source, "", rows))
                values += [row["value"] for row in rows]
        return min(values, default=1.0)
    assert shared.flow is not None
    if job.stored is None:
        prior_data = None if shared.prior is None else _arrays(shared.prior)
        fitted = fit_posterior(job.posterior, certificate, _arrays(shared.test), prior_data, watch)
        ray.get(writer.posterior.remote(job, fitted))
    else:
        fitted = Fitted(*job.stored)
    posterior = posterior_hash(fitted.start, fitted.gaussian)
    for cell in job.cells:
        if job.there.get(cell.identity) != posterior:
            rows = certify_cell(cell, fitted, certificate, shared.flow)
            rows = [{**row, "peak_bytes": peak_bytes()} for row in rows]
            ray.get(writer.cell.remote(cell, job.source, posterior, rows))
            values += [row["value"] for row in rows]
    if job.convergence is not None:
        identity, asked = job.convergence
        rows = convergence(
            fitted, certificate, asked.integrator, asked.num_points, asked.repeats, asked.reference_points
        )
        ray.get(writer.convergence.remote(identity, job.source, rows))
    return min(values, default=1.0)


def trial(
    config: dict[str, Any],
    jobs: Sequence[Job],
    places: Mapping[str, int],
    shared: Mapping[Key, Shared],
    writer: Any,
    threads: int,
) -> None:
    """A trial of Ray Tune: the job of this number, or at this point of a search."""
    torch.set_num_threads(threads)
    number = config["job"] if "job" in config else places[_point(config)]
    job, failure, value = jobs[number], None, 1.0

    def watch(alternation: Alternation) -> None:
        # For schedulers that stop early. Only the surrogate is known yet, and it may exceed 1.
        if "job" not in config:
            tune.report({"value": alternation.bound})

    try:
        value = run_job(job, shared[job.key], writer, watch)
    except Exception as error:
        # A cell that cannot be computed is a row of the results that says so, and no reason to stop.
        cause = getattr(error, "cause", None) or error  # what a remote call raised there
        failure = f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"
    ray.get(writer.finished.remote(number, failure))
    tune.report({"value": value})


def _axes(job: Job) -> dict[str, str]:
    """The place of a posterior in its suite's grid."""
    assert job.posterior is not None
    free = ("prior", "tolerance", "covariance", "scale", "objective", "num_points", "optimizer")
    return {name: str(getattr(job.posterior, name)) for name in free}


def _point(axes: Mapping[str, str]) -> str:
    return json.dumps(dict(sorted(axes.items())))


def sweep(
    jobs: Sequence[Job],
    shared: Mapping[Key, Shared],
    store: Path,
    resources: CellResources,
    console: Console,
    search: Search | None = None,
) -> list[Failure]:
    """Run all jobs, or those that a search comes by; returns those that failed."""
    if not jobs:
        return []
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    total = len(jobs) if search is None else search.samples
    writer = Writer.options(scheduling_strategy=here).remote(str(store.resolve()), total)  # type: ignore[attr-defined]
    places = {_point(_axes(job)): number for number, job in enumerate(jobs) if job.posterior is not None}
    parameters = {"jobs": list(jobs), "places": places, "shared": dict(shared), "writer": writer}
    trainable = tune.with_resources(
        tune.with_parameters(trial, **parameters, threads=resources.cpus),
        {"CPU": resources.cpus, "GPU": resources.gpus},
    )
    place = Path(tempfile.mkdtemp(prefix="ldaf_bench_tune_"))
    try:
        tuner = tune.Tuner(
            trainable,
            param_space=_space(jobs, search),
            tune_config=_strategy(resources, search),
            run_config=tune.RunConfig(
                name="sweep",
                storage_path=str(place),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=2),
            ),
        )
        results, _ = follow(tuner.fit, writer, CountView(console, "posteriors and mean classifiers"))
        failures = ray.get(writer.all_failures.remote())
        known = {failure.job for failure in failures}
        # What ended without a word: a process that was killed too often.
        for result in results:
            number = result.config["job"] if "job" in result.config else places[_point(result.config)]
            if result.error is not None and number not in known:
                reason = str(result.error).strip().splitlines()[-1]
                failures.append(Failure(number, f"The process was lost: {reason}"))
        return sorted(failures, key=lambda failure: failure.job)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if ray.is_initialized():
            ray.kill(writer)


def _space(jobs: Sequence[Job], search: Search | None) -> dict[str, Any]:
    """What Tune chooses from: every job once, or every axis that has a choice."""
    if search is None:
        return {"job": tune.grid_search(list(range(len(jobs))))}
    points = [_axes(job) for job in jobs if job.posterior is not None]
    return {name: tune.choice(sorted({point[name] for point in points})) for name in points[0]}


def _strategy(resources: CellResources, search: Search | None) -> tune.TuneConfig:
    at_once = resources.at_once or None
    if search is None:
        return tune.TuneConfig(reuse_actors=True, max_concurrent_trials=at_once)
    return tune.TuneConfig(
        metric="value",
        mode="min",
        num_samples=search.samples,
        reuse_actors=True,
        max_concurrent_trials=at_once,
        search_alg=OptunaSearch(seed=0) if search.searcher == "optuna" else None,
        scheduler=ASHAScheduler() if search.scheduler == "asha" else None,
    )
