"""The way from a plan to its artifacts: two runs of Ray Tune, networks and then posteriors, for what is missing.

The store is the truth. At the start of a run only networks and digests are read, and of posteriors and integrations the
names: whoever reads one later and finds it damaged or made from other digests sets it aside, and it is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from ldaf_bench.data.dataset import Dataset, Summary
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.splits import Part, require_different_images
from ldaf_bench.messages import counted, say
from ldaf_bench.models.effort import training_seconds
from ldaf_bench.plan import DigestOf, Plan, PlannedNetwork, PlannedPosterior
from ldaf_bench.results.collect import DamagedError, Sources, Tables, collect
from ldaf_bench.stages.networks import make_networks
from ldaf_bench.stages.posteriors import Source, make_posteriors, posterior_at, search_posteriors, work_of
from ldaf_bench.stages.progress import CountView, TrainingView, View
from ldaf_bench.stages.session import Node, Placement, ResourceError, nodes, num_places, place
from ldaf_bench.stages.train import run_folder
from ldaf_bench.stages.trials import Ended
from ldaf_bench.stages.writer import open_access
from ldaf_bench.store.digests import digest_key, digest_path, load_digest
from ldaf_bench.store.ledger import note_look
from ldaf_bench.store.networks import load_network, network_path, weights_hash
from ldaf_bench.store.posteriors import (
    convergence_path,
    integration_path,
    load_search,
    posterior_path,
    save_search,
    search_path,
)
from ldaf_bench.store.store import Store, find

PRIOR_DATA = 2000
"""Prior points at most that a prior is made from."""
MOST_DAMAGED = 2
"""Times that artifacts are made again which turn out damaged when results are collected."""
LONG_HOURS = 0.5
"""From so many hours on, people are told how long training takes without a GPU."""


def digests_of(plan: Plan, planned: DigestOf) -> list[tuple[Part, int | None]]:
    """The parts that a digest is needed of, and how many points at most."""
    some = plan.of_digest.get(planned, ())
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


def placement_on(some: Sequence[Node], plan: Plan) -> Placement:
    """Where the plan's networks are trained on these machines; a `ResourceError` if these cannot hold the plan.

    Shared among all networks of the plan, also if some are there: a run that resumes computes the same bits.
    """
    asked, own = plan.suite.resources, plan.suite.resources.posteriors
    gpus = 0.0 if own.gpus == "auto" else own.gpus
    if gpus and not num_places(some, 1, gpus):
        raise ResourceError(f"No machine of the cluster has the {gpus:g} GPUs of resources.posteriors: lower gpus.")
    return place(some, asked.train, asked.digest, len(plan.networks), plan.suite.networks.recipe.batch_size)


@dataclass
class Run:
    """One run of a plan."""

    plan: Plan
    dataset: Dataset
    store: Store
    console: Console
    start_ray: Callable[[], None]
    joined: bool = False
    """Whether the Ray is one that was there, with machines that come and go."""
    callbacks: Sequence[Any] = ()
    """People's own callbacks of Ray Tune."""
    notes: Path | None = None
    """Where these may write."""
    sources: dict[DigestOf, Sources] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why an integration, or a mean classifier, is not there."""
    troubles: list[str] = field(default_factory=list)
    """What else went wrong."""
    retries: int = 0
    """Posteriors that were begun again because their process or machine was lost."""

    def __post_init__(self) -> None:
        self.say: Callable[[str], None] = partial(say, self.console)

    def make(self) -> None:
        """All that is missing. Ray is started only if something is; what fails costs its own results only."""
        self.make_networks()
        if self.plan.suite.search is not None:
            self._search()
        elif missing := self.missing():
            self.sweep(missing)

    # Networks and digests

    def make_networks(self) -> None:
        """Networks and digests that are missing."""
        missing = [planned for planned in self.plan.networks if not self._find(planned)]
        if not missing:
            return
        self.start_ray()
        placement = placement_on(nodes(), self.plan)
        untrained = [one for one in missing if not self.store.exists(network_path(one.identity))]
        if untrained:
            several = f", {placement.groups} at a time" if min(placement.groups, len(untrained)) > 1 else ""
            self.say(f"Training {len(untrained)} of {counted(len(self.plan.networks), 'network')}{several}.")
            if not placement.train.gpus_per_worker and (hours := hours_of(untrained, self.plan.summary)) >= LONG_HOURS:
                self.say(
                    f"Without a GPU this takes about {hours:.1f} hours of a machine like this one, by the networks' "
                    "operations."
                )
        number = {one.identity: 1 + self.plan.networks.index(one) for one in missing}
        with ExitStack() as stack:
            # In one order, so that two runs never wait for each other.
            for one in sorted(untrained, key=lambda planned: planned.identity):
                run = run_folder(one.identity)
                stack.enter_context(self.store.lock(run, "Another process is training this network", self.say))
            view = stack.enter_context(self._view())
            access = stack.enter_context(open_access(self.store, self.joined))
            shown = TrainingView(
                view, len(self.plan.networks), {number[one.identity]: images_of(one) for one in untrained}
            )
            digests = {
                one.identity: [
                    (digest, *part) for digest in self.plan.digests if digest.network == one.identity
                    for part in digests_of(self.plan, digest)
                ]
                for one in missing
            }  # fmt: skip
            ended = make_networks(
                missing, self.dataset, digests, placement, access,
                see=lambda config, told: shown.show(number[config["network"]], told),
                at_end=lambda config: shown.dropped(number[config["network"]]),
                **self._following(),
            )  # fmt: skip
        for config, why in ended.failures:
            self._note_lost_network(str(config["network"]), why)
        lost = {str(config["network"]) for config, _ in ended.failures}
        for one in missing:
            if one.identity not in lost and not self._find(one):
                why = "ArtifactError: it is not in the store after its training."
                self.say(f"Network {one.identity} failed: {why}")
                self._note_lost_network(one.identity, why)

    def _note_lost_network(self, identity: str, why: str) -> None:
        for one in self.plan.means:
            if one.network == identity:
                self.failures[one.mean] = why
        for integration in self.plan.integrations:
            if integration.posterior.digest.network == identity:
                self.failures[integration.identity] = why

    def _find(self, planned: PlannedNetwork) -> bool:
        """Whether a network and all its digests are there and whole; then they are among the sources."""
        network = find(self.store, load_network, network_path(planned.identity), self.say)
        if network is None:
            return False
        # A run that was killed while tidying up has left its checkpoints.
        self.store.remove(run_folder(planned.identity))
        sources = {}
        for one in self.plan.digests:
            if one.network == planned.identity:
                keys = (
                    digest_key(network, planned.splits, one.method, one.spec, *part)
                    for part in digests_of(self.plan, one)
                )
                parts = [find(self.store, load_digest, digest_path(key), self.say) for key in keys]
                found = [part for part in parts if part is not None]
                if len(found) < len(parts):
                    return False
                sources[one] = Sources(network, *found)
        self.sources.update(sources)
        return True

    # Posteriors and integrations

    def missing(self) -> list[PlannedPosterior]:
        """Posteriors that could be made and are not all there, by the names in the store."""
        posteriors, integrations, curves = (
            set(self.store.children(kind.rpartition("/")[0]))
            for kind in (posterior_path(""), integration_path(""), convergence_path(""))
        )

        def complete(one: PlannedPosterior) -> bool:
            asked = all(each.identity in integrations for each in self.plan.of_posterior[one.identity])
            curve = self.plan.convergence_of(one)
            return one.identity in posteriors and asked and (curve is None or curve in curves)

        return [
            one for one in self.plan.posteriors
            if one.digest in self.sources and one.identity in self.plan.of_posterior and not complete(one)
        ]  # fmt: skip

    def sweep(self, posteriors: Sequence[PlannedPosterior]) -> None:
        """Fit and integrate these posteriors."""
        self._try(posteriors, partial(make_posteriors, posteriors, self.plan), len(posteriors))

    def _try(self, posteriors: Sequence[PlannedPosterior], make: Callable[..., Ended], total: int) -> None:
        """Posteriors by trials; `make` starts them."""
        self.start_ray()
        own, some = self.plan.suite.resources.posteriors, nodes()
        cpus = max(1, min(own.cpus, max(node.cpus for node in some)))
        have = sum(node.gpus for node in some) >= 1
        gpus = (None if have else 0.0) if own.gpus == "auto" else own.gpus
        sources = {digest: self._source(digest) for digest in dict.fromkeys(one.digest for one in posteriors)}
        seeds = {one.identity: one.config.seed for one in self.plan.networks}
        with self._view() as view, open_access(self.store, self.joined) as access:
            work = work_of(self.plan, sources, access, cpus, gpus)
            count = CountView(view, "posteriors")
            done: list[object] = []
            failed: list[object] = []

            def see(_: Mapping[str, Any], told: Mapping[str, Any]) -> None:
                if "says" in told:
                    view.say(told["says"])
                if "failure" in told:
                    failed.append(told)

            def at_end(config: Mapping[str, Any]) -> None:
                done.append(config)
                count.show(len(done), total, len(failed))

            ended = make(work=work, at_once=own.at_once, see=see, at_end=at_end, **self._following())
        self.retries += ended.losses
        for config, why in ended.failures:
            self._note_failure(posterior_at(config, seeds), why)

    def _source(self, digest: DigestOf) -> Source:
        found, network = self.sources[digest], self.plan.network[digest.network]
        parts = digests_of(self.plan, digest)
        keys = {
            part[0]: digest_path(digest_key(found.network, network.splits, digest.method, digest.spec, *part))
            for part in parts
        }
        return Source(keys, found.content)

    def _note_failure(self, posterior: PlannedPosterior, why: str) -> None:
        for planned in self.plan.of_posterior.get(posterior.identity, ()):
            if not self.store.exists(integration_path(planned.identity)):
                self.failures[planned.identity] = why
        name = self.plan.convergence_of(posterior)
        if name is not None and not self.store.exists(convergence_path(name)):
            self.troubles.append(f"A convergence run failed ({why}).")

    def _search(self) -> None:
        """The posteriors that a search tries. What it tried is remembered: a second run only makes what is lost."""
        asked = self.plan.suite.search
        assert asked is not None
        tried = find(self.store, load_search, search_path(self.plan.identity), self.say)
        here = [
            one for one in self.plan.posteriors if one.digest in self.sources and one.identity in self.plan.of_posterior
        ]
        if tried is None:
            self.say(f"Searching: {asked.searcher} tries {asked.samples} of {counted(len(here), 'posterior')}.")
            self._try(here, partial(search_posteriors, here, asked), asked.samples)
            failed = {one.posterior.identity for one in self.plan.integrations if one.identity in self.failures}
            missing = {one.identity for one in self.missing()}
            tried = frozenset(failed | ({one.identity for one in here} - missing))
            save_search(self.store, self.plan.identity, tried)
        failed = {one.posterior.identity for one in self.plan.integrations if one.identity in self.failures}
        if lost := [one for one in self.missing() if one.identity in tried - failed]:
            self.sweep(lost)

    # Results

    def collect(self) -> Tables:
        """All tables. What cannot be read any more is made again: a trial sets aside what is damaged."""
        for _ in range(MOST_DAMAGED):
            try:
                return collect(self.plan, self.store, self.sources, self.failures)
            except DamagedError as damage:
                self.sweep(damage.posteriors)
        return collect(self.plan, self.store, self.sources, self.failures)

    # What both have in common

    def _view(self) -> View:
        view = View(self.console)
        self.say = view.say
        return view

    def _following(self) -> dict[str, Any]:
        return {"callbacks": self.callbacks, "notes": self.notes}

    def note_looks(self) -> None:
        """Tell the ledger which trained networks and priors results are collected of."""
        for part in self.plan.certificate_parts:
            here = {one: found for one, found in self.sources.items() if self._part(one) == part}
            weights = {found.network.identity: weights_hash(found.network) for found in here.values()}
            priors = {one.prior_identity for one in self.plan.posteriors if one.digest in here}
            note_look(self.store, part, self.plan.identity, self.plan.suite.suite, weights, len(priors))

    def _part(self, one: DigestOf) -> str:
        return self.plan.network[one.network].splits.hash("certificate")


def hours_of(untrained: Sequence[PlannedNetwork], summary: Summary) -> float:
    """An estimate for training these networks on this machine's cores; 0 if there is none."""
    configs = {one.config.backbone: one.config for one in untrained}
    try:
        each = {name: training_seconds(config, summary.shape[1:], 1) for name, config in configs.items()}
    except Exception:  # a backbone of a plug-in, of which nothing is known
        return 0.0
    return sum(images_of(one) * each[one.config.backbone] for one in untrained) / 3600


def images_of(planned: PlannedNetwork) -> int:
    """The images that training looks at, epoch by epoch."""
    recipe = planned.config.recipe
    return recipe.epochs * (len(planned.splits.prior) // recipe.batch_size) * recipe.batch_size
