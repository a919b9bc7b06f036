r"""sweep: all posteriors and cells of a plan as trials of Ray Tune. The only user of `ray.tune`.

A trial is one posterior with all its cells, because integrating costs less than starting a process, and processes are
kept from trial to trial. Every prior's (M, G) goes to the cluster once, as arrays of the object store that trials read
without a copy. What a trial computes goes to the one process that writes, and is on disk before the trial ends:
a sweep that was stopped goes on with what is missing.
"""

from __future__ import annotations

import contextlib
import math
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
from ray.tune.search import BasicVariantGenerator
from rich.console import Console

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.methods.pushed import Pushed
from ldaf_bench.plan import Plan, PlannedCell, PlannedPosterior
from ldaf_bench.results.store import (
    StoredPosterior,
    cell_path,
    load_cell,
    posterior_hash,
    save_cell,
    save_convergence,
    save_posterior,
)
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
from ldaf_bench.stages.session import most_cpus, this_node
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
    """The content of the pushforwards that it rests on."""
    cells: tuple[PlannedCell, ...]
    there: Mapping[str, str]
    """Cells that are on disk already, and the hash of the posterior that they are of."""
    complete: bool
    """Whether all is on disk already."""
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


def share(pushed: Pushed | Arrays) -> Any:
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


@dataclass(frozen=True)
class Space:
    """The grid of posteriors as a space to search."""

    plan: Plan
    jobs: Sequence[Job]
    """The posteriors that can be tried: those of priors that failed are none."""

    @property
    def asked(self) -> Search:
        """What the suite says about the search."""
        assert self.plan.suite.search is not None
        return self.plan.suite.search

    @property
    def max_reports(self) -> int:
        """Of one fit: its start and every alternation; and the certificate."""
        return self.plan.suite.posteriors.max_alternations + 2

    def axes(self) -> dict[str, Any]:
        """For Ray Tune."""
        there = {job.key[0] for job in self.jobs}
        values = {**self.plan.posterior_axes(), "prior": sorted(there)}
        return {name: tune.choice(list(some)) for name, some in values.items()}

    def place(self, point: Mapping[str, Any]) -> int:
        """The number of the job at a point."""
        wanted = self.plan.posterior_at(point)
        return next(number for number, job in enumerate(self.jobs) if job.posterior == wanted)


@dataclass(frozen=True)
class Work:
    """What all trials have in common."""

    jobs: tuple[Any, ...]
    """References to the jobs: a trial reads its own only."""
    shared: Mapping[Key, Shared]
    writer: Any
    threads: int
    search: Space | None


@ray.remote(num_cpus=0, max_restarts=0)
class Writer:
    """The one process that writes results; on the driver's node, where the store is."""

    def __init__(self, store: str, jobs: list[Job], total: int) -> None:
        self.store, self.jobs = Path(store), jobs
        self.done, self.total = 0, total
        self.ended: set[int] = set()
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

    def has(self, job: int) -> bool:
        """Whether a job has ended before: searches may ask for one twice."""
        return job in self.ended

    def finished(self, job: int, failure: str | None) -> None:
        """Take note of the end of a job."""
        self.done += 1
        self.ended.add(job)
        if failure is not None:
            self.failures.append(Failure(job, failure))

    def value(self, job: int) -> float:
        """The smallest certificate of a job, 1 if it failed."""
        found = [1.0]
        for cell in self.jobs[job].cells:
            with contextlib.suppress(ArtifactError):
                rows = load_cell(cell_path(self.store, cell.identity), self.jobs[job].source)["rows"]
                found += [row["value"] for row in rows if row["certified"]]
        return min(found)

    def read(self) -> dict[str, Any]:
        """How far the sweep is."""
        return {"done": self.done, "total": self.total, "failed": len(self.failures)}

    def all_failures(self) -> list[Failure]:
        """The jobs that could not be done."""
        return self.failures


def run_job(job: Job, shared: Shared, writer: Any, watch: Callable[[Alternation], None]) -> None:
    """Fit, integrate, certify; each result is written before the next is begun."""
    certificate = _arrays(shared.certificate)
    if job.posterior is None:
        for cell in job.cells:
            if cell.identity not in job.there:
                ray.get(writer.cell.remote(cell, job.source, "", certify_mean(cell, certificate)))
        return
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
    if job.convergence is not None:
        identity, asked = job.convergence
        rows = convergence(
            fitted, certificate, asked.integrator, asked.num_points, asked.repeats, asked.reference_points
        )
        ray.get(writer.convergence.remote(identity, job.source, rows))


def trial(config: dict[str, Any], *, work: Work) -> None:
    """A trial of Ray Tune: the job of this number, or at this point of a search."""
    torch.set_num_threads(work.threads)
    number = config["job"] if work.search is None else work.search.place(config)
    surrogate = math.inf

    def watch(alternation: Alternation) -> None:
        nonlocal surrogate
        surrogate = alternation.bound
        if work.search is not None:
            # For schedulers that stop early; the certificate is not known yet.
            tune.report({"surrogate": surrogate, "value": 1.0})

    job: Job = ray.get(work.jobs[number])
    failure = None
    try:
        if work.search is None or not ray.get(work.writer.has.remote(number)):
            run_job(job, work.shared[job.key], work.writer, watch)
    except Exception as error:
        # A cell that cannot be computed is a row of the results that says so, and no reason to stop.
        cause = getattr(error, "cause", None) or error  # what a remote call raised there
        failure = f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"
    ray.get(work.writer.finished.remote(number, failure))
    value = 1.0 if work.search is None else ray.get(work.writer.value.remote(number))
    tune.report({"surrogate": surrogate, "value": value})


def sweep(
    jobs: Sequence[Job],
    shared: Mapping[Key, Shared],
    store: Path,
    resources: CellResources,
    console: Console,
    search: Space | None = None,
) -> list[Failure]:
    """Run all jobs, or those that a search comes by; returns those that failed."""
    total = len(jobs) if search is None else search.asked.samples
    if not jobs or total == 0:
        return []
    writer = Writer.options(scheduling_strategy=this_node()).remote(str(store.resolve()), list(jobs), total)  # type: ignore[attr-defined]
    cpus = min(resources.cpus, most_cpus())
    work = Work(tuple(ray.put(job) for job in jobs), shared, writer, cpus, search)
    trainable = tune.with_resources(tune.with_parameters(trial, work=work), {"CPU": cpus})
    place = Path(tempfile.mkdtemp(prefix="ldaf_bench_tune_"))
    try:
        tuner = tune.Tuner(
            trainable,
            param_space={"job": tune.grid_search(list(range(len(jobs))))} if search is None else search.axes(),
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
            number = result.config["job"] if search is None else search.place(result.config)
            if result.error is not None and number not in known:
                reason = str(result.error).strip().splitlines()[-1]
                failures.append(Failure(number, f"The process was lost: {reason}"))
        return sorted(failures, key=lambda failure: failure.job)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if ray.is_initialized():
            ray.kill(writer)


def _strategy(resources: CellResources, search: Space | None) -> tune.TuneConfig:
    at_once = resources.at_once or None
    if search is None:
        return tune.TuneConfig(reuse_actors=True, max_concurrent_trials=at_once)
    searcher: Any = BasicVariantGenerator(random_state=0)
    if search.asked.searcher == "optuna":
        # Imported here: nobody who does not search should wait for it.
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        searcher = OptunaSearch(metric="value", mode="min", sampler=optuna.samplers.TPESampler(seed=0))
    scheduler = None
    if search.asked.scheduler == "asha":
        scheduler = ASHAScheduler(metric="surrogate", mode="min", max_t=search.max_reports, grace_period=2)
    return tune.TuneConfig(
        num_samples=search.asked.samples,
        reuse_actors=True,
        max_concurrent_trials=at_once,
        search_alg=searcher,
        scheduler=scheduler,
    )
