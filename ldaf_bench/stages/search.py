r"""search: some posteriors of a plan instead of all, found by Ray Tune. The only user of `ray.tune`.

A trial is one posterior with all its integrations. Processes are kept from trial to trial.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator

from ldaf_bench.artifacts import StoreError, store_error
from ldaf_bench.messages import clean_reason
from ldaf_bench.methods.method import Watch
from ldaf_bench.plan import DigestOf, Plan, PlannedPosterior
from ldaf_bench.stages.posteriors import Job, Shared, data_of, reason_of, run_job
from ldaf_bench.stages.progress import POLL_SECONDS, in_thread
from ldaf_bench.stages.session import device_of, most_cpus
from ldaf_bench.store.digests import mean_mistakes
from ldaf_bench.store.posteriors import Posterior
from ldaf_bench.suite import PosteriorResources, Search
from ldaf_bench.theory.certificate import certify, evidence
from ldaf_bench.theory.integrate import INTEGRATORS, Integration


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

    space: Space
    jobs: tuple[Any, ...]
    """References to the jobs: a trial reads its own only."""
    shared: Mapping[DigestOf, Shared]
    desk: Any
    notes: Any
    resources: PosteriorResources


@ray.remote(num_cpus=0, max_restarts=0)
class Notes:
    """What the trials have found so far."""

    def __init__(self) -> None:
        self.values: dict[int, float] = {}
        self.failures: dict[int, str] = {}
        self.done = 0

    def value(self, job: int) -> float | None:
        """The smallest certificate of a job that has ended before: searches may ask for one twice."""
        return self.values.get(job)

    def finished(self, job: int, value: float, failure: str | None) -> None:
        """Take note of the end of a job."""
        self.done += 1
        self.values[job] = value
        if failure is not None:
            self.failures[job] = failure

    def read(self) -> tuple[int, dict[int, str]]:
        """How many trials are done, and the jobs that could not be done."""
        return self.done, self.failures


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


def value_of(work: Work, job: Job, watch: Watch) -> float:
    """The smallest certificate of a job, which is done first unless it is there."""
    shared = work.shared[job.posterior.digest]
    posterior, made = run_job(job, shared, work.desk, device_of(work.resources.cpus, work.resources.gpus), watch)
    there = [asked.identity for asked in job.integrations if asked.identity not in made]
    read = ray.get([work.desk.integration.remote(identity, job.source) for identity in there])
    certificate = data_of(shared.certificate, ray.get(shared.network))
    mistakes = mean_mistakes(job.posterior.digest.entry, certificate.digest, certificate.labels)
    found = {**made, **dict(zip(there, read, strict=True))}
    return smallest_certificate(work.space.plan, job, posterior, found, mistakes)


def trial(config: dict[str, Any], *, work: Work) -> None:
    """A trial of Ray Tune: the job at this point of the space."""
    number = work.space.place(config)
    surrogate = math.inf

    def watch(objective: float) -> None:
        """For schedulers that stop early; the certificate is not known yet."""
        nonlocal surrogate
        surrogate = objective
        tune.report({"surrogate": surrogate, "value": 1.0})

    value, failure = ray.get(work.notes.value.remote(number)), None
    if value is None:
        value = 1.0
        try:
            value = value_of(work, ray.get(work.jobs[number]), watch)
        except Exception as error:
            # A posterior that cannot be computed is a row of the results that says so, and no reason to stop.
            failure = reason_of(store_error(error) or error)
    ray.get(work.notes.finished.remote(number, value, failure))
    tune.report({"surrogate": surrogate, "value": value})


def search(
    space: Space,
    shared: Mapping[DigestOf, Shared],
    desk: Any,
    resources: PosteriorResources,
    show: Callable[[int, int, int], None],
) -> list[tuple[Job, str]]:
    """Try posteriors; returns those that failed, and why. `show` gets trials done, all of them, and failed ones."""
    notes = Notes.remote()  # type: ignore[attr-defined]
    resources = resources.model_copy(update={"cpus": min(resources.cpus, most_cpus())})
    work = Work(space, tuple(ray.put(job) for job in space.jobs), shared, desk, notes, resources)
    place = Path(tempfile.mkdtemp(prefix="ldaf_bench_tune_"))
    try:
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(trial, work=work), {"CPU": resources.cpus, "GPU": resources.gpus}),
            param_space=space.axes(),
            tune_config=_strategy(resources, space.asked),
            run_config=tune.RunConfig(
                name="search",
                storage_path=str(place),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=2),
            ),
        )
        future = in_thread(tuner.fit)
        while not future.done():
            done, failed = ray.get(notes.read.remote())
            show(done, space.asked.samples, len(failed))
            wait([future], POLL_SECONDS)
        _, failures = ray.get(notes.read.remote())
        lost = next((why for why in failures.values() if why.startswith(StoreError.__name__)), None)
        if lost is not None:  # it is not the posterior that failed
            raise StoreError(lost.partition(": ")[2])
        # What ended without a word: a process that was killed too often.
        for result in future.result():
            if result.error is not None:
                why = f"The process was lost: {clean_reason(result.error)}"
                failures.setdefault(space.place(result.config), why)
        return [(space.jobs[number], failures[number]) for number in sorted(failures)]
    finally:
        shutil.rmtree(place, ignore_errors=True)
        if ray.is_initialized():
            ray.kill(notes)


MOST_REPORTS = 10_000
"""Of one fit; more than any fit has steps."""


def _strategy(resources: PosteriorResources, asked: Search) -> tune.TuneConfig:
    searcher: Any = BasicVariantGenerator(random_state=0)
    if asked.searcher == "optuna":
        # Imported here: nobody who does not search should wait for it.
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        searcher = OptunaSearch(metric="value", mode="min", sampler=optuna.samplers.TPESampler(seed=0))
    scheduler = None
    if asked.scheduler == "asha":
        scheduler = ASHAScheduler(metric="surrogate", mode="min", max_t=MOST_REPORTS, grace_period=2)
    return tune.TuneConfig(
        num_samples=asked.samples,
        reuse_actors=True,
        max_concurrent_trials=resources.at_once or None,
        search_alg=searcher,
        scheduler=scheduler,
    )
