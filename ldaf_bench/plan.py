"""The plan: a suite expanded into networks, posteriors and integrations, with names, seeds and the confidence budget.

Made before anything runs and from the suite alone, so that nothing that is seen later can change what is paid for.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ldaf_bench.artifacts import fingerprint
from ldaf_bench.data.dataset import Summary
from ldaf_bench.data.splits import Splits
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import FitSpec, Method
from ldaf_bench.models.network import NetworkConfig, SplitConfig
from ldaf_bench.sections import Section, Spec, grids
from ldaf_bench.store.networks import network_id
from ldaf_bench.suite import Certificates, Risks, Suite, SuiteError, check_sizes
from ldaf_bench.theory.bounds import Bound, Classifier, Takes
from ldaf_bench.theory.certificate import Budget, spends_delta
from ldaf_bench.theory.integrate import INTEGRATORS

PLAN_FILE, SEAL_FILE = "plan.json", "seal.json"
"""In a results folder: the plan, written before anything runs; checksums and looks, written after the results."""
FORMAT = 5
"""To be raised whenever the code computes other numbers for the same posterior or integration, or a default changes."""


@dataclass(frozen=True)
class PlannedNetwork:
    """A network to train."""

    identity: str
    config: NetworkConfig
    splits: Splits


@dataclass(frozen=True)
class DigestOf:
    """A method's digest of one network: what its classifiers rest on."""

    network: str
    method: str
    spec: str
    """The digest's axes that are not at their defaults, as JSON with sorted keys."""

    @property
    def entry(self) -> Method:
        """The method itself."""
        return METHODS[self.method]

    @property
    def digest_spec(self) -> Spec:
        """The digest's axes as a value."""
        return self.entry.digest_axes(**json.loads(self.spec))

    @cached_property
    def mean(self) -> str:
        """The name of its mean classifier."""
        return fingerprint({"format": FORMAT, "mean": asdict(self)})


@dataclass(frozen=True)
class PlannedPosterior:
    """A prior, and the posterior that is fitted from it; or the prior itself."""

    digest: DigestOf
    prior: Spec
    fit: FitSpec
    seed: int
    """The network's seed; everything that is drawn for the posterior is drawn by it."""

    @cached_property
    def determines(self) -> dict[str, Any]:
        """All that determines it, without what has no effect."""
        return {**asdict(self.digest), "prior": self.prior.named(), "fit": self.fit.named(), "seed": self.seed}

    @cached_property
    def identity(self) -> str:
        """Its name."""
        return fingerprint({"format": FORMAT, **self.determines})

    @cached_property
    def prior_identity(self) -> str:
        """The name of its prior: posteriors of one prior share the events of PAC-Bayes bounds."""
        return fingerprint({name: value for name, value in self.determines.items() if name != "fit"})

    @property
    def classifier(self) -> Classifier:
        """What bounds are told that it is."""
        return "posterior" if self.fit.fitted else "prior"

    @property
    def axes(self) -> dict[str, Any]:
        """Its axes and their values; those without effect are null."""
        digest = self.digest.digest_spec
        every = [name for spec in (digest, self.prior, self.fit) for name in type(spec).model_fields]
        return {**dict.fromkeys(every), **digest.used(), **self.prior.used(), **self.fit.used()}


@dataclass(frozen=True)
class PlannedIntegration:
    """One risk to integrate. It knows no bound and no confidence."""

    posterior: PlannedPosterior
    integrator: str
    num_points: int
    """0 for an integrator that uses none."""

    @cached_property
    def identity(self) -> str:
        """Its name."""
        asked = {"integrator": self.integrator, "num_points": self.num_points}
        return fingerprint({"format": FORMAT, "posterior": self.posterior.identity, **asked})


@dataclass(frozen=True)
class Plan:
    """All that a suite asks for."""

    suite: Suite
    summary: Summary
    networks: tuple[PlannedNetwork, ...]
    digests: tuple[DigestOf, ...]
    posteriors: tuple[PlannedPosterior, ...]
    integrations: tuple[PlannedIntegration, ...]

    @cached_property
    def network(self) -> Mapping[str, PlannedNetwork]:
        """Networks by their names."""
        return {network.identity: network for network in self.networks}

    @cached_property
    def certificate_parts(self) -> tuple[str, ...]:
        """The hashes of the certificate parts that it looks at."""
        return tuple(dict.fromkeys(network.splits.hash("certificate") for network in self.networks))

    @cached_property
    def of_posterior(self) -> Mapping[str, tuple[PlannedIntegration, ...]]:
        """The integrations of each posterior, by its name."""
        found: dict[str, list[PlannedIntegration]] = {}
        for integration in self.integrations:
            found.setdefault(integration.posterior.identity, []).append(integration)
        return {name: tuple(some) for name, some in found.items()}

    @cached_property
    def of_digest(self) -> Mapping[DigestOf, tuple[PlannedPosterior, ...]]:
        """The posteriors of each digest."""
        found: dict[DigestOf, list[PlannedPosterior]] = {}
        for posterior in self.posteriors:
            found.setdefault(posterior.digest, []).append(posterior)
        return {digest: tuple(some) for digest, some in found.items()}

    @property
    def uncertified(self) -> tuple[str, ...]:
        """Methods with posteriors that no integrator and bound of the suite are for."""
        served = {one.posterior.digest.method for one in self.integrations}
        every = dict.fromkeys(posterior.digest.method for posterior in self.posteriors)
        return tuple(method for method in every if method not in served)

    @cached_property
    def means(self) -> tuple[DigestOf, ...]:
        """The mean classifiers that bounds are asked for: one for each method and network, by its first digest."""
        if not self.bounds("mean"):
            return ()
        first: dict[tuple[str, str], DigestOf] = {}
        for digest in self.digests:
            if digest.entry.logits is not None:
                first.setdefault((digest.network, digest.method), digest)
        return tuple(first.values())

    def bounds(self, classifier: Classifier, integrator: str | None = None, has_mean: bool = True) -> tuple[Bound, ...]:
        """The suite's bounds for such a classifier, integrated like this; not all methods have a mean classifier."""
        return self.suite.certificates.bounds_about(classifier, integrator, has_mean)

    def bounds_of(self, planned: PlannedIntegration) -> tuple[Bound, ...]:
        """The suite's bounds for an integration."""
        has_mean = planned.posterior.digest.entry.logits is not None
        return self.bounds(planned.posterior.classifier, planned.integrator, has_mean)

    def budgets(
        self, classifier: Classifier, integrator: str | None = None, takes: Takes = "risk"
    ) -> tuple[Budget, ...]:
        """One budget for each ε of the suite. All of them have the same total of ε + δ′.

        Mean classifiers and stochastic ones are two choices apart, and each may spend all of it. Within each, an event
        counts once for every prior (or fixed classifier) that it is about. Where nothing is left to chance, the bound
        gets all of ε + δ′; but not if it can be picked instead of something that spends δ′. `takes` is what the
        bound takes: not all bounds spend δ′ on an integration by chance.
        """
        asked = self.suite.certificates
        group = "mean" if classifier == "mean" else "stochastic"
        events, integrations, by_chance = self._price[group]
        entry = None if integrator is None else INTEGRATORS[integrator]
        spends = spends_delta(takes, entry)
        whole = not spends and not (asked.report == "best" and by_chance)
        if entry is not None and not entry.certifies:
            whole = False  # an estimate promises nothing; at ε it can be compared with what does
        return tuple(
            Budget(epsilon + asked.delta if whole else epsilon, asked.delta if spends else 0.0, events, integrations)
            for epsilon in asked.epsilon
        )

    @cached_property
    def _price(self) -> Mapping[str, tuple[int, int, bool]]:
        """K and J of mean and of stochastic classifiers, and whether anything there is left to chance.

        A bound on the errors of one draw per datum and one on the Gibbs risk of the same prior are two events. A bound
        on values has an event for each integration, because each has other values. The upper end of a risk and the ends
        of its excess are two guarantees of one integration, which may fail apart. What certifies nothing is never
        picked, and costs nothing.
        """
        pairs = [
            (bound, planned, INTEGRATORS[planned.integrator])
            for planned in self.integrations
            for bound in self.bounds_of(planned)
            if INTEGRATORS[planned.integrator].certifies
        ]
        chance = {(one.identity, bound.takes) for bound, one, entry in pairs if spends_delta(bound.takes, entry)}
        by_chance = len(chance)
        if self.suite.certificates.report != "best":
            return {"mean": (1, 1, False), "stochastic": (1, 1, by_chance > 0)}
        mean = {(bound.event, digest) for bound in self.bounds("mean") for digest in self.means}
        stochastic = {
            (bound.event, bound.counts, one.identity if bound.takes == "values" else one.posterior.prior_identity)
            for bound, one, _ in pairs
        }
        events = {"mean": max(1, len(mean)), "stochastic": max(1, len(stochastic))}
        return {
            "mean": (events["mean"], 1, False),
            "stochastic": (events["stochastic"], max(1, by_chance), by_chance > 0),
        }

    @cached_property
    def identity(self) -> str:
        """A name for all that the plan asks for and pays for, wherever it runs."""
        asked = self.suite.model_dump(mode="json", include={"suite", "certificates", "search"})
        names = [integration.identity for integration in self.integrations]
        return fingerprint({**asked, "integrations": names, "means": [digest.mean for digest in self.means]})

    @cached_property
    def convergence(self) -> Mapping[str, str]:
        """Names of convergence runs by their posterior's: the first posterior of each network of the first seed."""
        asked = self.suite.convergence
        if asked is None:
            return {}
        first: dict[str, PlannedPosterior] = {}
        for posterior in self.posteriors:
            first.setdefault(posterior.digest.network, posterior)
        seed, how = self.suite.networks.seed[0], asked.model_dump(mode="json")
        return {
            one.identity: fingerprint({"posterior": one.identity, **how}) for one in first.values() if one.seed == seed
        }

    def convergence_of(self, posterior: PlannedPosterior) -> str | None:
        """The name of a posterior's convergence run, if it has one."""
        return self.convergence.get(posterior.identity)

    def describe(self) -> dict[str, Any]:
        """For a JSON file: the suite as it was understood, what it asks for, and the budget."""
        asked = self.suite.certificates
        paid = {kind: {"num_events": k, "num_integrations": j} for kind, (k, j, _) in self._price.items()}
        return {
            "suite": self.suite.model_dump(mode="json"),
            "dataset": {**asdict(self.summary), "shape": list(self.summary.shape)},
            "networks": {network.identity: network.config.model_dump(mode="json") for network in self.networks},
            "posteriors": [posterior.identity for posterior in self.posteriors],
            "integrations": [integration.identity for integration in self.integrations],
            "budget": {"epsilon": list(asked.epsilon), "delta": asked.delta, "paid": paid},
        }


def make_plan(suite: Suite, summary: Summary) -> Plan:
    """Expand a suite; a `SuiteError` for what cannot be."""
    if suite.data.dataset != summary.name:
        raise SuiteError(f"The suite is about {suite.data.dataset}, not about {summary.name}.")
    check_sizes(suite, summary.num_classes)
    networks: dict[str, PlannedNetwork] = {}
    digests: dict[DigestOf, None] = {}
    posteriors: dict[str, PlannedPosterior] = {}
    every = [(METHODS[name], grid) for name, first in suite.methods.items() for grid in grids(first)]
    for method, section in every:
        for network in _networks(suite, summary, method, section):
            # Methods with the same head share the network.
            networks.setdefault(network.identity, network)
            for digest in _digests(network, method, section):
                digests.setdefault(digest)
                for posterior in _posteriors(digest, network, method, section):
                    posteriors.setdefault(posterior.identity, posterior)
    integrations = tuple(
        one for posterior in posteriors.values() for one in integrations_of(suite.risks, suite.certificates, posterior)
    )
    return Plan(
        suite, summary, tuple(networks.values()), tuple(digests), tuple(posteriors.values()), integrations
    )  # fmt: skip


def grid(spec: type[Spec], section: Section) -> Iterator[Any]:
    """All points of a spec's axes; those that differ only in what has no effect come once."""
    axes = [getattr(section, name) for name in spec.model_fields]
    points = (spec(**dict(zip(spec.model_fields, values, strict=True))) for values in itertools.product(*axes))
    yield from {json.dumps(point.used(), sort_keys=True): point for point in points}.values()


def _networks(suite: Suite, summary: Summary, method: Method, section: Section) -> Iterator[PlannedNetwork]:
    data, asked = suite.data, suite.networks
    heads = list(grid(method.head, section))
    for certificate, backbone, head, seed in itertools.product(data.certificate, asked.backbone, heads, asked.seed):
        config = NetworkConfig(
            dataset=data.dataset,
            split=SplitConfig(
                seed=data.split_seed, certificate=certificate, test=data.test, validation=data.validation
            ),
            backbone=backbone,
            head=head,
            recipe=asked.recipe,
            seed=seed,
        )
        splits = config.splits(summary)
        yield PlannedNetwork(network_id(config, splits.hash("prior")), config, splits)


def _digests(network: PlannedNetwork, method: Method, section: Section) -> Iterator[DigestOf]:
    for spec in grid(method.digest_axes, section):
        yield DigestOf(network.identity, method.name, json.dumps(spec.named(), sort_keys=True))


def _posteriors(
    digest: DigestOf, network: PlannedNetwork, method: Method, section: Section
) -> Iterator[PlannedPosterior]:
    if method.prior is None:
        return
    for prior, fit in itertools.product(grid(method.prior_axes, section), grid(method.fit_axes, section)):
        yield PlannedPosterior(digest, prior, fit, network.config.seed)


def integrations_of(
    risks: Risks, certificates: Certificates, posterior: PlannedPosterior
) -> Iterator[PlannedIntegration]:
    """The integrations that a suite asks for of a posterior."""
    for name in risks.integrator:
        entry = INTEGRATORS[name]
        has_mean = posterior.digest.entry.logits is not None
        wanted = certificates.bounds_about(posterior.classifier, name, has_mean)
        if wanted and entry.needs in posterior.digest.entry.offers:
            for num_points in risks.points(entry):
                yield PlannedIntegration(posterior, name, num_points)
