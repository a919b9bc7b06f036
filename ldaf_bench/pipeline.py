"""The way from a plan to its artifacts: loads what is there, makes what is missing, starts Ray only if something is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from ldaf_bench.artifacts import if_valid
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Part
from ldaf_bench.messages import printable
from ldaf_bench.methods.pushed import Pushed, load_pushed, origin_of, pushed_path
from ldaf_bench.methods.store import Prior, load_prior, prior_path
from ldaf_bench.methods.training import DivergenceError
from ldaf_bench.models.classifier import LDAFClassifier
from ldaf_bench.plan import Plan, PlannedPosterior, PlannedPrior
from ldaf_bench.results.collect import PRIOR_DATA, Sources, convergence_names, needs_prior_part, tolerance_of
from ldaf_bench.results.store import (
    cell_path,
    convergence_path,
    load_cell,
    load_convergence,
    load_posterior,
    load_search,
    posterior_hash,
    posterior_path,
    save_search,
    search_path,
)
from ldaf_bench.stages.certify import flow_of
from ldaf_bench.stages.push import push
from ldaf_bench.stages.session import RayError
from ldaf_bench.stages.sweep import Job, Key, Shared, Space, share, sweep
from ldaf_bench.stages.train import TrainingError, train

SHARED_BYTES = 2 << 30
"""So much of pushforwards is in the object store at a time."""


@dataclass
class Run:
    """One run of a plan."""

    plan: Plan
    dataset: Dataset
    store: Path
    console: Console
    start_ray: Callable[[], None]
    sources: dict[Key, Sources] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a cell is not there."""
    troubles: list[str] = field(default_factory=list)
    """What else went wrong."""

    def say(self, sentence: str) -> None:
        """Something to a person."""
        self.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def train_and_push(self) -> None:
        """All priors and their pushforwards; what fails costs its own cells only."""
        for number, planned in enumerate(self.plan.priors, 1):
            try:
                prior = self._prior(planned, number)
                for tolerance in self.plan.suite.pushforwards.tolerance:
                    self._sources(planned, prior, tolerance)
            except (DivergenceError, TrainingError, RayError) as error:
                self.say(f"Prior {planned.identity} failed: {error}")
                for cell in self.plan.cells:
                    if cell.prior == planned.identity:
                        self.failures[cell.identity] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"

    def _prior(self, planned: PlannedPrior, number: int) -> Prior:
        config, resources = planned.config, self.plan.suite.resources.train
        if if_valid(load_prior, prior_path(self.store, planned.identity), self.say) is not None:
            # Nothing to train; whoever was killed while tidying up has left something to remove.
            return train(config, self.dataset, self.store, resources, self.console)
        self.start_ray()
        kind = (
            f"{config.backbone} with {config.flow}" if config.method == "ldaf" else f"{config.backbone}, deterministic"
        )
        self.say(f"Training prior {number} of {len(self.plan.priors)}: {kind}, seed {config.seed}.")
        return train(config, self.dataset, self.store, resources, self.console)

    def _sources(self, planned: PlannedPrior, prior: Prior, tolerance: float | None) -> None:
        key = (planned.identity, tolerance)
        certificate, test = (self._pushed(planned, prior, part, tolerance) for part in ("certificate", "test"))
        prior_part = None
        if needs_prior_part(self.plan, planned):
            prior_part = self._pushed(planned, prior, "prior", tolerance, PRIOR_DATA)
        self.sources[key] = Sources(prior, certificate, test, prior_part)

    def _pushed(
        self, planned: PlannedPrior, prior: Prior, part: Part, tolerance: float | None, at_most: int | None = None
    ) -> Pushed:
        origin = origin_of(prior, planned.splits, part, tolerance, at_most)
        found = if_valid(load_pushed, pushed_path(self.store, origin), self.say)
        if found is not None:
            return found
        self.start_ray()
        resources = self.plan.suite.resources.push
        return push(
            prior, self.dataset, part, self.store, resources, self.console, tolerance=tolerance, at_most=at_most
        )

    def jobs(self) -> list[Job]:
        """What the sweep has to do: posteriors and cells that are not there."""
        owners: list[tuple[str, PlannedPosterior | None]] = [(prior.identity, None) for prior in self.plan.priors]
        owners += [(posterior.prior, posterior) for posterior in self.plan.posteriors]
        found = (self._job(*owner) for owner in owners)
        return [job for job in found if job is not None]

    def _job(self, prior: str, posterior: PlannedPosterior | None) -> Job | None:
        cells = self.plan.cells_of(posterior, prior)
        if not cells or cells[0].identity in self.failures:
            return None
        tolerance = tolerance_of(cells[0], self.plan)
        source = self.sources[prior, tolerance].content
        stored, run = None, None
        if posterior is not None:
            path = posterior_path(self.store, posterior.identity)
            stored = if_valid(lambda path: load_posterior(path, source), path, self.say)
            for name in convergence_names(self.plan, posterior):
                path = convergence_path(self.store, name)
                asked = self.plan.suite.convergence
                if asked and if_valid(lambda path: load_convergence(path, source), path, self.say) is None:
                    run = (name, asked)
        there = {}
        for cell in cells:
            path = cell_path(self.store, cell.identity)
            record = if_valid(lambda path: load_cell(path, source), path, self.say)
            if record is not None:
                there[cell.identity] = str(record["posterior"])
        right = "" if posterior is None else posterior_hash(stored.start, stored.gaussian) if stored else None
        complete = run is None and right is not None and all(there.get(cell.identity) == right for cell in cells)
        return Job((prior, tolerance), source, cells, there, complete, posterior, stored, run)

    def shared(self, jobs: Sequence[Job]) -> dict[Key, Shared]:
        """What the jobs need, put into the object store once."""
        found = {}
        for key in dict.fromkeys(job.key for job in jobs):
            prior, certificate, test, data = self.sources[key]
            model = prior.model()
            flow = flow_of(model) if isinstance(model, LDAFClassifier) else None
            found[key] = Shared(share(certificate), share(test), None if data is None else share(data), flow)
        return found

    def sweep(self) -> None:
        """All posteriors and cells that are not there; those that a search comes by, if there is to be one."""
        jobs = self.jobs()
        if self.plan.suite.search is None:
            self._sweep([job for job in jobs if not job.complete])
            return
        tried = if_valid(load_search, search_path(self.store, self.plan), self.say)
        if tried is None:
            fits = [job for job in jobs if job.posterior is not None]
            self._sweep(fits, Space(self.plan, fits))
            jobs = self.jobs()
            failed = {cell.posterior for cell in self.plan.cells if cell.identity in self.failures}
            ended = failed | {job.posterior for job in jobs if job.complete}
            tried = frozenset(posterior.identity for posterior in ended if posterior is not None)
            save_search(self.store, self.plan, tried)
        missing = [job for job in jobs if not job.complete]
        self._sweep([job for job in missing if job.posterior is None or job.posterior.identity in tried])

    def _sweep(self, jobs: list[Job], space: Space | None = None) -> None:
        if not jobs:
            return
        self.start_ray()
        if space is None:
            self.say(f"Fitting and certifying: {len(jobs)} posteriors and mean classifiers.")
        else:
            self.say(f"Searching: {space.asked.samples} times among {len(jobs)} posteriors.")
        # A search may ask for any of them at any time.
        for some in [jobs] if space is not None else self._batches(jobs):
            self._sweep_some(some, space)

    def _batches(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs whose priors' (M, G) fit into the object store together; a prior's jobs are not parted."""
        batch: list[Job] = []
        size = 0
        for key in dict.fromkeys(job.key for job in jobs):
            needs = self.sources[key].num_bytes
            if batch and size + needs > SHARED_BYTES:
                yield batch
                batch, size = [], 0
            batch, size = batch + [job for job in jobs if job.key == key], size + needs
        yield batch

    def _sweep_some(self, jobs: list[Job], space: Space | None) -> None:
        resources, shared = self.plan.suite.resources.cells, self.shared(jobs)
        for failure in sweep(jobs, shared, self.store, resources, self.console, space):
            job = jobs[failure.job]
            for cell in job.cells:
                path = cell_path(self.store, cell.identity)
                if if_valid(lambda path, job=job: load_cell(path, job.source), path, self.say) is None:  # type: ignore[misc]
                    self.failures[cell.identity] = failure.message
            if job.convergence is not None and not convergence_path(self.store, job.convergence[0]).exists():
                self.troubles.append(f"A convergence run failed ({failure.message}).")
