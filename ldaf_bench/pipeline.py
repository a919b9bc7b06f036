"""The way from a plan to its artifacts: loads what is there, makes what is missing, starts Ray only if something is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rich.console import Console

from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.splits import Part, require_different_images
from ldaf_bench.messages import say
from ldaf_bench.models.network import Network
from ldaf_bench.models.training import DivergenceError
from ldaf_bench.plan import DigestOf, Plan, PlannedNetwork, PlannedPosterior
from ldaf_bench.resources import Resources
from ldaf_bench.results.collect import Sources
from ldaf_bench.stages.desk import open_desk
from ldaf_bench.stages.digest import digest
from ldaf_bench.stages.posteriors import Job, Shared, Sweep, share, share_network
from ldaf_bench.stages.progress import POLL_SECONDS, CountView, TrainingView, View
from ldaf_bench.stages.session import RayError, fitted, groups_at_once
from ldaf_bench.stages.threads import Threads
from ldaf_bench.stages.train import TrainingError, run_folder, train
from ldaf_bench.store.digests import digest_key, digest_path, load_digest
from ldaf_bench.store.ledger import note_look
from ldaf_bench.store.networks import load_network, network_path, weights_hash
from ldaf_bench.store.posteriors import (
    convergence_path,
    integration_path,
    load_convergence,
    load_integration,
    load_posterior,
    load_search,
    posterior_path,
    save_search,
    search_path,
)
from ldaf_bench.store.store import Store, find, find_or_make, load_from

PRIOR_DATA = 2000
"""Prior points at most that a prior is made from."""


def digests_of(plan: Plan, planned: DigestOf) -> list[tuple[Part, int | None]]:
    """The parts that a digest is needed of, and how many points at most."""
    some = [posterior for posterior in plan.posteriors if posterior.digest == planned]
    parts: list[tuple[Part, int | None]] = [("certificate", None), ("test", None)]
    if any(planned.entry.fits_on_prior_data(posterior.fit) for posterior in some):
        return [*parts, ("prior", None)]
    needs_prior = any(planned.entry.needs_prior_data(posterior.prior) for posterior in some)
    return [*parts, ("prior", PRIOR_DATA)] if needs_prior else parts


def check_images(plan: Plan, dataset: Dataset) -> None:
    """A `LeakError` if people's own data have one image in two parts; data with a known checksum are as they are."""
    if DATASETS[plan.summary.name].sha256 is None:
        for splits in {network.splits.hash("certificate"): network.splits for network in plan.networks}.values():
            require_different_images(dataset, splits)


@dataclass
class Run:
    """One run of a plan."""

    plan: Plan
    dataset: Dataset
    store: Store
    console: Console
    start_ray: Callable[[], None]
    trained: set[str] = field(default_factory=set)
    """Networks that are there at the start; their digests may be missing."""
    sources: dict[DigestOf, Sources] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why an integration, or a mean classifier, is not there."""
    troubles: list[str] = field(default_factory=list)
    """What else went wrong."""
    retries: int = 0
    """Posteriors that were begun again because their process or node was lost."""

    def __post_init__(self) -> None:
        self.say: Callable[[str], None] = partial(say, self.console)

    def make(self) -> None:
        """All that is missing: networks side by side, and the posteriors of each as soon as it is there.

        Ray is started only if something is missing. What fails costs its own results only.
        """
        missing = [planned for planned in self.plan.networks if not self._find(planned)]
        searching = self.plan.suite.search is not None
        jobs = [] if searching else [job for job in self.jobs() if not job.complete]
        if missing or jobs:
            self.start_ray()
            self._make(missing, jobs)
        if searching:
            self._search()

    def _make(self, missing: list[PlannedNetwork], jobs: list[Job]) -> None:
        """Train and digest, fit and integrate, all at a time as far as there is room."""
        with View(self.console) as view, open_desk(self.store) as desk:
            self.say = view.say
            try:
                self._make_on(missing, jobs, view, desk)
            finally:
                self.say = partial(say, self.console)

    def _make_on(self, missing: list[PlannedNetwork], jobs: list[Job], view: View, desk: Any) -> None:
        resources = self.plan.suite.resources
        # Shared among all networks of the plan, also if some are there: a run that resumes computes the same bits.
        groups = groups_at_once(resources.train, resources.train.at_once or len(self.plan.networks))
        training, digesting = fitted(resources.train, groups), fitted(resources.digest, groups)
        cpus = max(one.workers * one.cpus_per_worker for one in (training, digesting))
        gpus = max(one.workers * one.gpus_per_worker for one in (training, digesting))
        untrained = [one for one in missing if one.identity not in self.trained]
        networks = TrainingView(view, len(self.plan.networks), {self._number(one): images_of(one) for one in untrained})
        if untrained:
            several = f", {groups} at a time" if min(groups, len(untrained)) > 1 else ""
            self.say(f"Training {len(untrained)} of {len(self.plan.networks)} networks{several}.")
        prepare = partial(self._prepare, training=training, digesting=digesting, networks=networks, desk=desk)
        trainers = Threads(prepare, missing, groups)
        posteriors, sweep = CountView(view, "posteriors"), Sweep(desk, resources.posteriors)
        self._add(sweep, jobs)
        while trainers.left or not sweep.idle:
            for planned, found in trainers.ended(0 if sweep.running else POLL_SECONDS):
                self._arrived(planned, found, sweep)
            # Trainings take longest, so they come first: posteriors get what no training will need.
            soon = min(groups, trainers.left)
            sweep.step(POLL_SECONDS, cpus * soon, gpus * soon)
            if sweep.total:
                posteriors.show(sweep.done, sweep.total, len(sweep.failures))
        self.retries += sweep.losses
        self._note_failures(sweep.failures)

    def _arrived(self, planned: PlannedNetwork, found: Future[dict[DigestOf, Sources]], sweep: Sweep) -> None:
        """A network and its digests are there, or never will be."""
        error = found.exception()
        if error is None:
            self.sources.update(found.result())
            if self.plan.suite.search is None:
                self._add(sweep, [job for job in self.jobs(planned.identity) if not job.complete])
            return
        if not isinstance(error, DivergenceError | TrainingError | RayError):
            raise error
        self.say(f"Network {planned.identity} failed: {error}")
        message = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        for one in self.plan.means:
            if one.network == planned.identity:
                self.failures[one.mean] = message
        for integration in self.plan.integrations:
            if integration.posterior.digest.network == planned.identity:
                self.failures[integration.identity] = message

    def _add(self, sweep: Sweep, jobs: list[Job]) -> None:
        sweep.add(jobs, self._share, lambda one: sum(part.num_bytes for part in self.sources[one].parts))

    def _number(self, planned: PlannedNetwork) -> int:
        return 1 + self.plan.networks.index(planned)

    def _find(self, planned: PlannedNetwork) -> bool:
        """Whether a network and all its digests are there; then they are among the sources."""
        network = find(self.store, load_network, network_path(planned.identity), self.say)
        if network is None:
            return False
        self.trained.add(planned.identity)
        # A run that was killed while tidying up has left its checkpoints.
        self.store.remove(run_folder(planned.identity))
        found = self._digests(planned, network, None)
        self.sources.update(found or {})
        return found is not None

    def _digests(
        self, planned: PlannedNetwork, network: Network, make: Callable[[DigestOf, Part, int | None], None] | None
    ) -> dict[DigestOf, Sources] | None:
        """The digests of a network. Missing ones are made; if nothing makes them, there are none."""
        sources = {}
        for one in self.plan.digests:
            if one.network != planned.identity:
                continue
            parts = []
            for part in digests_of(self.plan, one):
                path = digest_path(digest_key(network, planned.splits, one.method, one.spec, *part))
                if make is None:
                    found = find(self.store, load_digest, path, self.say)
                else:
                    found = find_or_make(self.store, load_digest, path, partial(make, one, *part), self.say)
                if found is None:
                    return None
                parts.append(found)
            sources[one] = Sources(network, *parts)
        return sources

    def _prepare(
        self, planned: PlannedNetwork, *, training: Resources, digesting: Resources, networks: TrainingView, desk: Any
    ) -> dict[DigestOf, Sources]:
        """Train a network and make its digests, unless they are there; in a thread."""
        number, view = self._number(planned), networks.view

        def make_network() -> None:
            show = partial(networks.show, number)
            train(planned.config, self.dataset, self.store, training, desk, show, view.say)
            made = load_from(self.store, load_network, network_path(planned.identity))
            networks.ended(number, made.record["training"]["curve"])

        def make_digest(one: DigestOf, part: Part, at_most: int | None) -> None:
            row = f"network {number}, {one.method}, {part} part"
            try:
                show = partial(view.move, row)
                digest(one, network, self.dataset, part, self.store, digesting, at_most, show)
            finally:
                view.drop(row)

        try:
            path = network_path(planned.identity)
            network = find_or_make(self.store, load_network, path, make_network, view.say)
        finally:
            networks.dropped(number)
        return self._digests(planned, network, make_digest) or {}

    def note_looks(self) -> None:
        """Tell the ledger which trained networks and priors results are collected of."""
        for part in self.plan.certificate_parts:
            here = {one: found for one, found in self.sources.items() if self._part(one) == part}
            weights = {found.network.identity: weights_hash(found.network) for found in here.values()}
            priors = {one.prior_identity for one in self.plan.posteriors if one.digest in here}
            note_look(self.store, part, self.plan.identity, self.plan.suite.suite, weights, len(priors))

    def _part(self, one: DigestOf) -> str:
        return self.plan.network[one.network].splits.hash("certificate")

    def jobs(self, network: str | None = None) -> list[Job]:
        """Every posterior with integrations, and what of it is on disk; of one network, or of all that are there."""
        contents = {one: found.content for one, found in self.sources.items() if network in (None, one.network)}
        wanted = [posterior for posterior in self.plan.posteriors if posterior.identity in self.plan.of_posterior]
        return [self._job(one, contents[one.digest]) for one in wanted if one.digest in contents]

    def _job(self, posterior: PlannedPosterior, source: str) -> Job:
        restore = posterior.digest.entry.restore
        assert restore is not None
        load = partial(load_posterior, source=source, restore=restore)
        stored = find(self.store, load, posterior_path(posterior.identity), self.say)
        asked, convergence = self.plan.suite.convergence, None
        name = self.plan.convergence_of(posterior)
        if name is not None and asked is not None:
            load_curve = partial(load_convergence, source=source)
            if find(self.store, load_curve, convergence_path(name), self.say) is None:
                convergence = (name, asked)
        there = {}
        integrations = self.plan.of_posterior[posterior.identity]
        for planned in integrations:
            load_one = partial(load_integration, source=source)
            found = find(self.store, load_one, integration_path(planned.identity), self.say)
            if found is not None:
                there[planned.identity] = str(found.record["posterior"])
        return Job(posterior, source, integrations, there, None if stored is None else stored.hash, convergence)

    def _share(self, one: DigestOf) -> Shared:
        """Put what the posteriors of a digest need into the object store."""
        network, certificate, test, prior = self.sources[one]
        parts = share(certificate), share(test), None if prior is None else share(prior)
        return Shared(*parts, share_network(network))

    def _search(self) -> None:
        """The posteriors that a search tries. What it tried is remembered: a second run only makes what is lost."""
        # Here, because nobody who does not search should wait for Ray Tune.
        from ldaf_bench.stages.search import Space, search

        tried = find(self.store, load_search, search_path(self.plan.identity), self.say)
        if tried is None:
            self.start_ray()
            space = Space(self.plan, self.jobs())
            self.say(f"Searching: {space.asked.searcher} tries {space.asked.samples} of {len(space.jobs)} posteriors.")
            shared = {one: self._share(one) for one in dict.fromkeys(job.posterior.digest for job in space.jobs)}
            with View(self.console) as view, open_desk(self.store) as desk:
                show = CountView(view, "posteriors").show
                failures = search(space, shared, desk, self.plan.suite.resources.posteriors, show)
            self._note_failures(failures)
            failed = {one.posterior.identity for one in self.plan.integrations if one.identity in self.failures}
            tried = frozenset(failed | {job.posterior.identity for job in self.jobs() if job.complete})
            save_search(self.store, self.plan.identity, tried)
        if jobs := [job for job in self.jobs() if not job.complete and job.posterior.identity in tried]:
            self.start_ray()
            self._make([], jobs)

    def _note_failures(self, failures: Sequence[tuple[Job, str]]) -> None:
        for job, message in failures:
            for planned in job.integrations:
                if not self.store.exists(integration_path(planned.identity)):
                    self.failures[planned.identity] = message
            if job.convergence is not None and not self.store.exists(convergence_path(job.convergence[0])):
                self.troubles.append(f"A convergence run failed ({message}).")


def images_of(planned: PlannedNetwork) -> int:
    """The images that training looks at, epoch by epoch."""
    recipe = planned.config.recipe
    return recipe.epochs * (len(planned.splits.prior) // recipe.batch_size) * recipe.batch_size
