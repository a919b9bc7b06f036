"""collect: certificates from integrations, and everything into results.parquet and curves.parquet.

A certificate is a pure function of what is stored, so that a new bound, a new ε or `report: best` costs nothing but
this. Bounds are evaluated for many integrations at once.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ldaf_bench.artifacts import ArtifactError, fingerprint, whole_file
from ldaf_bench.data.splits import PARTS
from ldaf_bench.methods import METHODS
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, Plan, PlannedIntegration, PlannedNetwork, PlannedPosterior
from ldaf_bench.results.certificates import Certifiable, Certifier, mixture
from ldaf_bench.results.record import CURVES, record_columns, table
from ldaf_bench.store.digests import Digested, mean_mistakes
from ldaf_bench.store.posteriors import (
    Posterior,
    StoredIntegration,
    convergence_path,
    integration_path,
    load_convergence,
    load_integration,
    load_posterior,
    load_search,
    posterior_path,
    search_path,
)
from ldaf_bench.store.store import Store, load_from
from ldaf_bench.theory.integrate import Integration

Classified = TypeVar("Classified", DigestOf, PlannedPosterior)
"""What a mean classifier, or a stochastic one, is known by."""


class Tables(NamedTuple):
    """What a run writes, each as `<name>.parquet`."""

    results: pa.Table
    curves: pa.Table

    def write(self, folder: Path) -> list[str]:
        """Each as one Parquet file, whole or not at all; returns their names."""
        for name, rows in self._asdict().items():
            with whole_file(folder / f"{name}.parquet") as temporary:
                pq.write_table(rows, temporary, compression="zstd")
        return TABLE_FILES


TABLE_FILES = [f"{name}.parquet" for name in Tables._fields]


class Sources(NamedTuple):
    """What the classifiers of one digest rest on."""

    network: Network
    certificate: Digested
    test: Digested
    prior_part: Digested | None = None
    """Some prior data, if a prior is made from them."""

    @property
    def content(self) -> str:
        """A hash of all their arrays: results of other arrays under the same names are not taken for theirs."""
        return fingerprint([None if part is None else part.record["files"] for part in self[1:]])


class DamagedError(ArtifactError):
    """Artifacts are missing or damaged, or belong to others than the ones there are now."""

    def __init__(self, found: Mapping[str, ArtifactError], posteriors: Iterable[PlannedPosterior]) -> None:
        super().__init__(str(next(iter(found.values()))))
        self.found = found
        """What is wrong, by key."""
        self.posteriors = tuple(posteriors)
        """What has to be made again."""


def collect(plan: Plan, store: Store, sources: Mapping[DigestOf, Sources], failures: Mapping[str, str]) -> Tables:
    """All tables, in the plan's order. `failures` says of an integration or a mean classifier why it is not there.

    Artifacts are read once, the seeds of one setting together, and let go. A `DamagedError` names all that cannot be
    read.
    """
    reading, wanted = _Reading(plan, store, sources, failures), wanted_integrations(plan, store)
    for means in reading.settings(plan.means):
        reading.add_means(means)
    posteriors = dict.fromkeys(planned.posterior for planned in wanted)
    for seeds in reading.settings(posteriors):
        reading.add_posteriors(seeds)
    if reading.damaged:
        raise DamagedError(reading.damaged, reading.spoiled)
    return Tables(table(record_columns(), reading.rows(wanted)), table(CURVES, reading.curves(posteriors)))


def wanted_integrations(plan: Plan, store: Store) -> tuple[PlannedIntegration, ...]:
    """All integrations but those that a search did not try; these are paid for like all others."""
    if plan.suite.search is None:
        return plan.integrations
    tried = load_from(store, load_search, search_path(plan.identity))
    return tuple(planned for planned in plan.integrations if planned.posterior.identity in tried)


class Posteriors:
    """Stored posteriors and integrations, which have to be of the digests that there are now."""

    def __init__(self, store: Store, sources: Mapping[DigestOf, Sources]) -> None:
        self.store, self.content = store, {digest: found.content for digest, found in sources.items()}
        self._last: tuple[str, Posterior, str] | None = None

    def get(self, planned: PlannedPosterior) -> Posterior:
        """The stored posterior."""
        return self._read(planned)[1]

    def _read(self, planned: PlannedPosterior) -> tuple[str, Posterior, str]:
        """Its name, itself, and its hash. The last one is kept."""
        if self._last is None or self._last[0] != planned.identity:
            restore = planned.digest.entry.restore
            assert restore is not None
            load = partial(load_posterior, source=self.content[planned.digest], restore=restore)
            found = load_from(self.store, load, posterior_path(planned.identity))
            self._last = planned.identity, found, found.hash
        return self._last

    def integration(self, planned: PlannedIntegration) -> StoredIntegration:
        """The stored integration, which has to be of its posterior."""
        load = partial(load_integration, source=self.content[planned.posterior.digest])
        found = load_from(self.store, load, integration_path(planned.identity))
        if found.record["posterior"] != self._read(planned.posterior)[2]:
            raise ArtifactError(f"Integration {planned.identity} is of another posterior: run the suite again.")
        return found


class _Reading:
    """One reading of all artifacts, of which numbers are kept."""

    def __init__(
        self, plan: Plan, store: Store, sources: Mapping[DigestOf, Sources], failures: Mapping[str, str]
    ) -> None:
        self.plan, self.store, self.sources, self.failures = plan, store, sources, failures
        self.stored, self.certifier = Posteriors(store, sources), Certifier(plan)
        self.measured = {digest: _measured(found) for digest, found in sources.items()}
        self.mistakes = {digest: mistakes_of(found.certificate) for digest, found in sources.items()}
        self.networks = {one.identity: _network_columns(plan, one) for one in plan.networks}
        self._settings: dict[str, str] = {}
        self.columns: dict[str, Mapping[str, Any]] = {}
        """What was found of an integration or a mean classifier."""
        self.histories: dict[str, _History] = {}
        self.convergence: dict[str, list[dict[str, Any]]] = {}
        self.damaged: dict[str, ArtifactError] = {}
        self.spoiled: dict[PlannedPosterior, None] = {}

    def settings(self, some: Iterable[Classified]) -> Iterator[list[Classified]]:
        """Those that differ in their seed only, together."""
        groups: dict[str, list[Classified]] = {}
        for one in some:
            groups.setdefault(self._setting(one), []).append(one)
        yield from groups.values()

    def _setting(self, one: DigestOf | PlannedPosterior) -> str:
        digest, posterior = (one.digest, one) if isinstance(one, PlannedPosterior) else (one, None)
        name = digest.mean if posterior is None else posterior.identity
        if name not in self._settings:
            self._settings[name] = _setting(self.plan.network[digest.network], digest, posterior)
        return self._settings[name]

    def add_means(self, seeds: Sequence[DigestOf]) -> None:
        """Mean classifiers. They are fixed before the certificate part is seen: their errors are what is integrated."""
        members: list[Certifiable] = []
        for digest in seeds:
            if digest.mean not in self.failures:
                mistakes, record = self.mistakes[digest], self.sources[digest].network.record
                assert mistakes is not None
                errors = Integration(mistakes.double(), torch.zeros_like(mistakes, dtype=torch.int64))
                members.append(Certifiable("mean", None, (errors,), mistakes, 0.0, len(mistakes)))
                self.certifier.add(digest.mean, members[-1])
                self.columns[digest.mean] = {
                    **self.measured[digest], **_provenance(record["versions"], record["finished"])
                }  # fmt: skip
        self._add_mixture((self._setting(seeds[0]), None, None), members)

    def add_posteriors(self, seeds: Sequence[PlannedPosterior]) -> None:
        """The integrations of posteriors that differ in their seed only."""
        members: dict[tuple[Any, ...], list[Certifiable]] = {}
        for posterior in seeds:
            path = posterior_path(posterior.identity)
            if self.store.exists(path):
                with self._noting(path, posterior):
                    self.histories[posterior.identity] = _History.of(self.stored.get(posterior).history)
            for planned in self.plan.of_posterior[posterior.identity]:
                if planned.identity in self.failures or path in self.damaged:
                    continue
                with self._noting(integration_path(planned.identity), posterior):
                    found = self._integrated(planned)
                    members.setdefault((planned.integrator, planned.num_points), []).append(found)
            name = self.plan.convergence_of(posterior)
            if name is not None and self.store.exists(key := convergence_path(name)):
                with self._noting(key, posterior):
                    load = partial(load_convergence, source=self.stored.content[posterior.digest])
                    self.convergence[posterior.identity] = load_from(self.store, load, key)
        for asked, some in members.items():
            self._add_mixture((self._setting(seeds[0]), *asked), some)

    def _integrated(self, planned: PlannedIntegration) -> Certifiable:
        posterior, (integration, record) = self.stored.get(planned.posterior), self.stored.integration(planned)
        digest, about = planned.posterior.digest, posterior.about
        found = Certifiable(
            planned.posterior.classifier, planned.integrator, (integration,), self.mistakes[digest],
            float(about["kl_divergence"]), len(integration.per_datum),
        )  # fmt: skip
        self.certifier.add(planned.identity, found)
        self.columns[planned.identity] = {
            **about,
            **self.measured[digest],
            "integrator": planned.integrator,
            "num_points": planned.num_points or None,
            "num_evaluations": integration.num_evaluations,
            "risk": float(integration.value),
            "integration_error": integration.standard_error,
            **record["about"],
            **_provenance(record["provenance"], record["finished"]),
        }
        return found

    @contextlib.contextmanager
    def _noting(self, key: str, posterior: PlannedPosterior) -> Iterator[None]:
        try:
            yield
        except ArtifactError as error:
            self.damaged[key] = error
            self.spoiled[posterior] = None

    def _add_mixture(self, asked: tuple[str, str | None, int | None], members: Sequence[Certifiable]) -> None:
        if members and self.plan.suite.certificates.report == "all":
            self.certifier.add(_mixed(*asked), mixture(members))

    def rows(self, wanted: Iterable[PlannedIntegration]) -> Iterator[Mapping[str, Any]]:
        """Certificates in the plan's order, and then what failed."""
        failed = []
        for name, digest, planned in (
            *((digest.mean, digest, None) for digest in self.plan.means),
            *((planned.identity, planned.posterior.digest, planned) for planned in wanted),
        ):
            posterior = None if planned is None else planned.posterior
            setting = self._setting(posterior or digest)
            axes = digest.digest_spec.used() if posterior is None else posterior.axes
            base = {
                **self.networks[digest.network],
                **axes,
                "setting": setting,
                "integration": name,
                "posterior": None if posterior is None else posterior.identity,
                "prior": None if posterior is None else posterior.prior_identity,
                "method": digest.method,
                "classifier": "mean" if posterior is None else posterior.classifier,
            }
            if name in self.failures:
                failed.append({**base, "error": self.failures[name]})
                continue
            asked = (None, None) if planned is None else (planned.integrator, planned.num_points)
            mixed = _mixed(setting, *asked)
            yield from self.certifier.rows(name, mixed, {**base, **self.columns[name]})
        yield from failed

    def curves(self, posteriors: Iterable[PlannedPosterior]) -> Iterator[dict[str, Any]]:
        """Of trainings, of fits, and of convergence."""
        suite, asked = self.plan.suite.suite, self.plan.suite.convergence
        kind = "integration" if asked is None or asked.num_data is None else "integration_each"
        networks = {found.network.identity: found.network for found in self.sources.values()}
        for identity in (one.identity for one in self.plan.networks if one.identity in networks):
            elapsed = 0.0
            base = {"suite": suite, "network": identity, "posterior": "", "kind": "training"}
            for row in networks[identity].record["training"]["curve"]:
                elapsed += row["seconds"]
                for series in ("loss", "accuracy", "images_per_second"):
                    point = {"x": row["epoch"] + 1.0, "y": float(row[series]), "seconds": elapsed}
                    yield {**base, "series": series, **point}
        for planned in posteriors:
            if planned.identity not in self.histories:
                continue
            base = {"suite": suite, "network": planned.digest.network, "posterior": planned.identity}
            for point in self.histories[planned.identity].points():
                yield {**base, "kind": "fit", **point}
            for row in self.convergence.get(planned.identity, ()):
                yield {**base, "kind": kind, **row}


class _History(NamedTuple):
    """The steps of a fit as one array: there may be tens of thousands of fits."""

    names: tuple[str, ...]
    values: np.ndarray[Any, Any]

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, float]]) -> Self:
        names = tuple(sorted({name for step in steps for name in step}))
        return cls(names, np.array([[step.get(name, np.nan) for name in names] for step in steps]))

    def points(self) -> Iterator[dict[str, Any]]:
        """Step by step, a point for every series."""
        for values in self.values:
            step = dict(zip(self.names, values.tolist(), strict=True))
            x, seconds = step.pop("x"), step.pop("seconds")
            for series, y in step.items():
                if not math.isnan(y):
                    yield {"series": series, "x": x, "y": y, "seconds": seconds}


def _mixed(setting: str, integrator: str | None, num_points: int | None) -> str:
    """The name of a mixture over seeds."""
    return f"{setting}, {integrator}, {num_points}"


def _network_columns(plan: Plan, network: PlannedNetwork) -> dict[str, Any]:
    """The columns that say which network a row is about, known before anything runs."""
    config, splits = network.config, network.splits
    return {
        "suite": plan.suite.suite,
        "plan": plan.identity,
        "network": network.identity,
        "dataset": config.dataset,
        "backbone": config.backbone,
        "num_classes": plan.summary.num_classes,
        "seed": config.seed,
        "split_seed": config.split.seed,
        "certificate_fraction": config.split.certificate,
        **config.head.used(),
        **{f"num_{part}": len(getattr(splits, part)) for part in PARTS},
        **{f"{part}_hash": splits.hash(part) for part in PARTS},
    }


def _setting(network: PlannedNetwork, digest: DigestOf, posterior: PlannedPosterior | None) -> str:
    """A hash of all that determines a classifier but its seed."""
    own = {"digest": digest.spec} if posterior is None else posterior.determines
    config = network.config.model_dump(mode="json")
    return fingerprint({**own, "method": digest.method, "network": {**config, "seed": None}, "seed": None})


def _measured(sources: Sources) -> dict[str, Any]:
    """Columns that all rows of one digest share."""
    training, errors = sources.network.record["training"], sources.certificate.tensors.get("error")
    return {
        "mean_error": _error(sources.certificate),
        "mean_test_error": _error(sources.test),
        "digest_error": None if errors is None else float(errors.max()),
        "train_seconds": training["seconds"],
        "digest_seconds": sources.certificate.record["seconds"] + sources.test.record["seconds"],
        "device": training["starts"][-1]["device"],
        "workers": training["starts"][-1]["workers"],
    }


def _error(digested: Digested) -> float | None:
    """The 0-1 error of the mean classifier on a part; None if its method has no mean classifier."""
    wrong = mistakes_of(digested)
    return None if wrong is None else float(wrong.double().mean())


def mistakes_of(digested: Digested) -> torch.Tensor | None:
    """For every datum whether the mean classifier errs; None if its method has no mean classifier."""
    return mean_mistakes(METHODS[digested.record["method"]], digested.tensors, digested.labels)


def _provenance(versions: Mapping[str, str], finished: str) -> dict[str, Any]:
    names = ("ldaf_bench", "torch", "ray", "python", "commit")
    return {**{name: versions[name] for name in names}, "finished": datetime.fromisoformat(finished)}
