r"""sweep: all posteriors and integrations of a plan as trials of Ray Tune. The only user of `ray.tune`.

A trial is one posterior with all its integrations, because integrating costs less than starting a process, and
processes are kept from trial to trial. Every digest goes to the cluster once, as arrays of the object store that trials
read without a copy. What a trial computes goes to the one process that writes, and is on disk before the trial ends: a
sweep that was stopped resumes with what is missing.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator
from rich.console import Console

from ldaf_bench.methods.method import Data, Watch
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, Plan, PlannedIntegration, PlannedPosterior
from ldaf_bench.stages.fit import convergence, fit_posterior, integrate_posterior
from ldaf_bench.stages.progress import CountView, follow
from ldaf_bench.stages.session import most_cpus, this_node
from ldaf_bench.store.digests import Digested, mean_mistakes
from ldaf_bench.store.posteriors import Posterior, save_convergence, save_integration, save_posterior
from ldaf_bench.suite import Convergence, PosteriorResources, Search
from ldaf_bench.theory.certificate import certify, evidence
from ldaf_bench.theory.integrate import INTEGRATORS, Integration


@dataclass(frozen=True)
class Job:
    """What one trial does: a posterior and its integrations."""

    posterior: PlannedPosterior
    source: str
    """The content of the digests that it rests on."""
    integrations: tuple[PlannedIntegration, ...]
    there: Mapping[str, tuple[str, Integration]]
    """Integrations that are on disk already, each with the hash of its posterior."""
    stored: Posterior | None = None
    """The posterior, if it is on disk already."""
    convergence: tuple[str, Convergence] | None = None
    """Name and settings of a convergence run that is missing."""

    @property
    def complete(self) -> bool:
        """Whether all is on disk already."""
        if self.stored is None or self.convergence is not None:
            return False
        right = self.stored.hash
        return all(self.there.get(asked.identity, ("",))[0] == right for asked in self.integrations)


@dataclass(frozen=True)
class Shared:
    """What the trials of one digest have in common: references to the object store."""

    certificate: Any
    test: Any
    prior: Any
    """Some prior data, if a prior is made from them; or none."""
    network: Any


@dataclass(frozen=True)
class Failure:
    """A job that could not be done."""

    job: int
    message: str


def share(digested: Digested) -> Any:
    """Put a digest into the object store."""
    return ray.put({name: tensor.numpy() for name, tensor in {**digested.tensors, "labels": digested.labels}.items()})


def share_network(network: Network) -> Any:
    """Put a network into the object store."""
    return ray.put(network)


def _data(reference: Any, network: Network) -> Data:
    """The same arrays in a trial, without a copy."""
    found = ray.get(reference)
    with warnings.catch_warnings():
        # They are read-only, and nothing here writes to data.
        warnings.simplefilter("ignore", UserWarning)
        tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    labels = tensors.pop("labels")
    return Data(tensors, labels, network)


@dataclass(frozen=True)
class Space:
    """The posteriors of a plan as a space to search: a method, a digest of one of its networks, and its axes."""

    plan: Plan
    jobs: Sequence[Job]
    """The posteriors that can be tried; those of networks that failed cannot."""

    @property
    def asked(self) -> Search:
        """What the suite says about the search."""
        assert self.plan.suite.search is not None
        return self.plan.suite.search

    def axes(self) -> dict[str, Any]:
        """For Ray Tune."""
        values: dict[str, dict[Any, None]] = {}
        for job in self.jobs:
            for name, value in self._point(job.posterior).items():
                values.setdefault(name, {})[value] = None
        return {name: tune.choice(list(some)) for name, some in values.items()}

    def place(self, point: Mapping[str, Any]) -> int:
        """The number of the job at a point, which has a value for every axis of every method."""
        for number, job in enumerate(self.jobs):
            if all(point[name] == value for name, value in self._point(job.posterior).items()):
                return number
        raise KeyError(f"No posterior of the plan is at {dict(point)}.")

    @staticmethod
    def _point(posterior: PlannedPosterior) -> dict[str, Any]:
        """Its method, its digest, and those of its axes that have an effect."""
        digest = posterior.digest
        own = {"digest": f"{digest.network} {digest.spec}", **posterior.prior.used(), **posterior.fit.used()}
        return {"method": digest.method, **{f"{digest.method}.{name}": value for name, value in own.items()}}


@dataclass(frozen=True)
class Work:
    """What all trials have in common."""

    jobs: tuple[Any, ...]
    """References to the jobs: a trial reads its own only."""
    shared: Mapping[DigestOf, Shared]
    writer: Any
    threads: int
    search: Space | None


@ray.remote(num_cpus=0, max_restarts=0)
class Writer:
    """The one process that writes results; on the driver's node, where the store is."""

    def __init__(self, store: str, total: int) -> None:
        self.store = Path(store)
        self.done, self.total = 0, total
        self.values: dict[int, float] = {}
        self.failures: list[Failure] = []

    def posterior(self, job: Job, posterior: Posterior) -> None:
        """Write a posterior."""
        save_posterior(self.store, job.posterior.identity, job.posterior.determines, job.source, posterior)

    def integration(
        self, identity: str, source: str, posterior: str, integration: Integration, about: dict[str, Any]
    ) -> None:
        """Write an integration."""
        save_integration(self.store, identity, source, posterior, integration, about)

    def convergence(self, identity: str, source: str, rows: list[dict[str, Any]]) -> None:
        """Write a convergence run."""
        save_convergence(self.store, identity, source, rows)

    def value(self, job: int) -> float | None:
        """The smallest certificate of a job that has ended before: searches may ask for one twice."""
        return self.values.get(job)

    def finished(self, job: int, value: float, failure: str | None) -> None:
        """Take note of the end of a job."""
        self.done += 1
        self.values[job] = value
        if failure is not None:
            self.failures.append(Failure(job, failure))

    def read(self) -> dict[str, Any]:
        """How far the sweep is."""
        return {"done": self.done, "total": self.total, "failed": len(self.failures)}

    def all_failures(self) -> list[Failure]:
        """The jobs that could not be done."""
        return self.failures


def run_job(job: Job, shared: Shared, writer: Any, watch: Watch) -> tuple[Posterior, dict[str, Integration]]:
    """Fit and integrate; each result is written before the next is begun."""
    network = ray.get(shared.network)
    certificate = _data(shared.certificate, network)
    posterior = job.stored
    if posterior is None:
        prior_data = None if shared.prior is None else _data(shared.prior, network)
        posterior = fit_posterior(job.posterior, certificate, _data(shared.test, network), prior_data, watch)
        ray.get(writer.posterior.remote(job, posterior))
    found, right = {}, posterior.hash
    for asked in job.integrations:
        there = job.there.get(asked.identity)
        if there is not None and there[0] == right:
            found[asked.identity] = there[1]
            continue
        integration, about = integrate_posterior(asked, posterior, certificate)
        ray.get(writer.integration.remote(asked.identity, job.source, right, integration, about))
        found[asked.identity] = integration
    if job.convergence is not None:
        identity, settings = job.convergence
        rows = convergence(job.posterior, posterior, certificate, settings)
        ray.get(writer.convergence.remote(identity, job.source, rows))
    return posterior, found


def smallest_certificate(
    plan: Plan, job: Job, posterior: Posterior, found: Mapping[str, Integration], mistakes: torch.Tensor | None
) -> float:
    """What a search minimizes: the smallest certified value of a posterior, at the price that the plan pays."""
    kind, kl, values = job.posterior.classifier, posterior.about["kl_divergence"], [1.0]
    for asked in job.integrations:
        integration, entry = found[asked.identity], INTEGRATORS[asked.integrator]
        for bound in plan.bounds_of(asked) if entry.certifies else ():
            for budget in plan.budgets(kind, asked.integrator, bound.takes):
                taken = evidence(bound, entry, [integration], mistakes, budget.delta_each)
                values.append(float(certify(bound, kind, taken, kl, len(integration.per_datum), budget)))
    return min(values)


def trial(config: dict[str, Any], *, work: Work) -> None:
    """A trial of Ray Tune: the job of this number, or at this point of a search."""
    torch.set_num_threads(work.threads)
    number = config["job"] if work.search is None else work.search.place(config)
    surrogate = math.inf

    def watch(objective: float) -> None:
        nonlocal surrogate
        surrogate = objective
        if work.search is not None:
            # For schedulers that stop early; the certificate is not known yet.
            tune.report({"surrogate": surrogate, "value": 1.0})

    job: Job = ray.get(work.jobs[number])
    value = None if work.search is None else ray.get(work.writer.value.remote(number))
    failure = None
    if value is None:
        value = 1.0
        try:
            posterior, found = run_job(job, work.shared[job.posterior.digest], work.writer, watch)
            if work.search is not None:
                shared = work.shared[job.posterior.digest]
                certificate = _data(shared.certificate, ray.get(shared.network))
                mistakes = mean_mistakes(job.posterior.digest.entry, certificate.digest, certificate.labels)
                value = smallest_certificate(work.search.plan, job, posterior, found, mistakes)
        except Exception as error:
            # A posterior that cannot be computed is a row of the results that says so, and no reason to stop.
            cause = getattr(error, "cause", None) or error  # what a remote call raised there
            failure = f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"
    ray.get(work.writer.finished.remote(number, value, failure))
    tune.report({"surrogate": surrogate, "value": value})


def sweep(
    jobs: Sequence[Job],
    shared: Mapping[DigestOf, Shared],
    store: Path,
    resources: PosteriorResources,
    console: Console,
    search: Space | None = None,
) -> list[Failure]:
    """Run all jobs, or those that a search tries; returns those that failed."""
    total = len(jobs) if search is None else search.asked.samples
    if not jobs or total == 0:
        return []
    writer = Writer.options(scheduling_strategy=this_node()).remote(str(store.resolve()), total)  # type: ignore[attr-defined]
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
        results, _ = follow(tuner.fit, writer, CountView(console, "posteriors"))
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


MOST_REPORTS = 10_000
"""Of one fit; more than any fit has steps."""


def _strategy(resources: PosteriorResources, search: Space | None) -> tune.TuneConfig:
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
        scheduler = ASHAScheduler(metric="surrogate", mode="min", max_t=MOST_REPORTS, grace_period=2)
    return tune.TuneConfig(
        num_samples=search.asked.samples,
        reuse_actors=True,
        max_concurrent_trials=at_once,
        search_alg=searcher,
        scheduler=scheduler,
    )
