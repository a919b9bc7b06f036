"""The way from a plan to its artifacts: loads what is there, makes what is missing, starts Ray only if something is."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rich.console import Console

from ldaf_bench.artifacts import find, find_or_make
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Part
from ldaf_bench.messages import say
from ldaf_bench.models.network import Network
from ldaf_bench.models.training import DivergenceError
from ldaf_bench.plan import DigestOf, Plan, PlannedNetwork, PlannedPosterior
from ldaf_bench.results.collect import Sources
from ldaf_bench.stages.digest import digest
from ldaf_bench.stages.session import RayError
from ldaf_bench.stages.sweep import Job, Shared, Space, share, share_network, sweep
from ldaf_bench.stages.train import TrainingError, run_folder, train
from ldaf_bench.store.digests import Digested, digest_key, digest_path, load_digest
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

SHARED_BYTES = 2 << 30
"""Digests that are in the object store at a time."""
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


@dataclass
class Run:
    """One run of a plan."""

    plan: Plan
    dataset: Dataset
    store: Path
    console: Console
    start_ray: Callable[[], None]
    sources: dict[DigestOf, Sources] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why an integration, or a mean classifier, is not there."""
    troubles: list[str] = field(default_factory=list)
    """What else went wrong."""

    def __post_init__(self) -> None:
        self.say = partial(say, self.console)

    def train_and_digest(self) -> None:
        """All networks and their digests; what fails costs its own results only."""
        for number, planned in enumerate(self.plan.networks, 1):
            digests = [one for one in self.plan.digests if one.network == planned.identity]
            try:
                network = self._network(planned, number)
                for one in digests:
                    parts = [self._digest(planned, network, one, *part) for part in digests_of(self.plan, one)]
                    self.sources[one] = Sources(network, *parts)
            except (DivergenceError, TrainingError, RayError) as error:
                self.say(f"Network {planned.identity} failed: {error}")
                message = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
                for one in digests:
                    self.sources.pop(one, None)
                    if one in self.plan.means:
                        self.failures[one.mean] = message
                for integration in self.plan.integrations:
                    if integration.posterior.digest.network == planned.identity:
                        self.failures[integration.identity] = message

    def _network(self, planned: PlannedNetwork, number: int) -> Network:
        config, resources = planned.config, self.plan.suite.resources.train

        def make() -> None:
            self.start_ray()
            head = ", ".join(str(value) for value in config.head.to_json().values())
            what = f"{config.backbone} with the head {head}; seed {config.seed}"
            self.say(f"Training network {number} of {len(self.plan.networks)}: {what}.")
            train(config, self.dataset, self.store, resources, self.console)

        found = find_or_make(load_network, network_path(self.store, planned.identity), make, self.say)
        # A run that was killed while tidying up has left its checkpoints.
        shutil.rmtree(run_folder(self.store, planned.identity), ignore_errors=True)
        return found

    def _digest(
        self, planned: PlannedNetwork, network: Network, one: DigestOf, part: Part, at_most: int | None
    ) -> Digested:
        def make() -> None:
            self.start_ray()
            resources = self.plan.suite.resources.digest
            digest(one, network, self.dataset, part, self.store, resources, self.console, at_most)

        key = digest_key(network, planned.splits, one.method, one.spec, part, at_most)
        return find_or_make(load_digest, digest_path(self.store, key), make, self.say)

    def note_looks(self) -> None:
        """Tell the ledger which trained networks and priors results are collected of."""
        for part in self.plan.certificate_parts:
            here = {one: found for one, found in self.sources.items() if self._part(one) == part}
            weights = {found.network.identity: weights_hash(found.network) for found in here.values()}
            priors = {one.prior_identity for one in self.plan.posteriors if one.digest in here}
            note_look(self.store, part, self.plan.identity, self.plan.suite.suite, weights, len(priors))

    def _part(self, one: DigestOf) -> str:
        return self.plan.network[one.network].splits.hash("certificate")

    def jobs(self) -> list[Job]:
        """What the sweep is about: every posterior with integrations, and what of it is on disk."""
        contents = {one: found.content for one, found in self.sources.items()}
        wanted = [posterior for posterior in self.plan.posteriors if posterior.identity in self.plan.of_posterior]
        return [self._job(one, contents[one.digest]) for one in wanted if one.digest in contents]

    def _job(self, posterior: PlannedPosterior, source: str) -> Job:
        restore = posterior.digest.entry.restore
        assert restore is not None
        load = partial(load_posterior, source=source, restore=restore)
        stored = find(load, posterior_path(self.store, posterior.identity), self.say)
        asked, convergence = self.plan.suite.convergence, None
        name = self.plan.convergence_of(posterior)
        if name is not None and asked is not None:
            load_curve = partial(load_convergence, source=source)
            if find(load_curve, convergence_path(self.store, name), self.say) is None:
                convergence = (name, asked)
        there = {}
        integrations = self.plan.of_posterior[posterior.identity]
        for planned in integrations:
            load_one = partial(load_integration, source=source)
            found = find(load_one, integration_path(self.store, planned.identity), self.say)
            if found is not None:
                there[planned.identity] = (str(found.record["posterior"]), found.integration)
        return Job(posterior, source, integrations, there, stored, convergence)

    def shared(self, jobs: Sequence[Job]) -> dict[DigestOf, Shared]:
        """What the jobs need, put into the object store once."""
        found: dict[DigestOf, Shared] = {}
        for one in dict.fromkeys(job.posterior.digest for job in jobs):
            network, certificate, test, prior = self.sources[one]
            parts = share(certificate), share(test), None if prior is None else share(prior)
            found[one] = Shared(*parts, share_network(network))
        return found

    def sweep(self) -> None:
        """All posteriors and integrations that are not there; those that a search tries, if there is to be one."""
        jobs = self.jobs()
        if self.plan.suite.search is None:
            self._sweep([job for job in jobs if not job.complete])
            return
        tried = find(load_search, search_path(self.store, self.plan.identity), self.say)
        if tried is None:
            self._sweep(jobs, Space(self.plan, jobs))
            jobs = self.jobs()
            failed = {one.posterior.identity for one in self.plan.integrations if one.identity in self.failures}
            tried = frozenset(failed | {job.posterior.identity for job in jobs if job.complete})
            save_search(self.store, self.plan.identity, tried)
        self._sweep([job for job in jobs if not job.complete and job.posterior.identity in tried])

    def _sweep(self, jobs: list[Job], space: Space | None = None) -> None:
        if not jobs:
            return
        self.start_ray()
        if space is None:
            self.say(f"Fitting and integrating {len(jobs)} posteriors.")
        else:
            self.say(f"Searching: {space.asked.searcher} tries {space.asked.samples} of {len(jobs)} posteriors.")
        # A search may ask for any of them at any time.
        for some in [jobs] if space is not None else self._batches(jobs):
            self._sweep_some(some, space)

    def _batches(self, jobs: list[Job]) -> Iterator[list[Job]]:
        """Jobs whose digests fit into the object store together; the jobs of one digest stay together."""
        batch: list[Job] = []
        size = 0
        for one in dict.fromkeys(job.posterior.digest for job in jobs):
            needs = sum(part.num_bytes for part in self.sources[one].parts)
            if batch and size + needs > SHARED_BYTES:
                yield batch
                batch, size = [], 0
            batch, size = batch + [job for job in jobs if job.posterior.digest == one], size + needs
        yield batch

    def _sweep_some(self, jobs: list[Job], space: Space | None) -> None:
        resources = self.plan.suite.resources.posteriors
        for failure in sweep(jobs, self.shared(jobs), self.store, resources, self.console, space):
            job = jobs[failure.job]
            for planned in job.integrations:
                if not integration_path(self.store, planned.identity).exists():
                    self.failures[planned.identity] = failure.message
            if job.convergence is not None and not convergence_path(self.store, job.convergence[0]).exists():
                self.troubles.append(f"A convergence run failed ({failure.message}).")
