"""collect: certificates from integrations, and everything into results.parquet and curves.parquet.

A certificate is a pure function of what is stored, so that a new bound, a new ε or `report: best` costs nothing but
this. Bounds are evaluated for many integrations at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ldaf_bench.artifacts import ArtifactError, fingerprint, whole_file
from ldaf_bench.data.splits import PARTS
from ldaf_bench.methods import METHODS
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, Plan, PlannedIntegration, PlannedNetwork, PlannedPosterior
from ldaf_bench.results.certificates import Certifiable, certificates
from ldaf_bench.results.record import CURVES, record_columns, table
from ldaf_bench.store.digests import Digested, mean_mistakes
from ldaf_bench.store.posteriors import (
    Posterior,
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
from ldaf_bench.theory.integrate import INTEGRATORS, Integration


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
    def parts(self) -> tuple[Digested, ...]:
        """Those that are there."""
        return tuple(part for part in self[1:] if part is not None)

    @property
    def content(self) -> str:
        """A hash of all their arrays: results of other arrays under the same names are not taken for theirs."""
        return fingerprint([None if part is None else part.record["files"] for part in self[1:]])


def collect(plan: Plan, store: Store, sources: Mapping[DigestOf, Sources], failures: Mapping[str, str]) -> Tables:
    """All tables, in the plan's order. `failures` says of an integration or a mean classifier why it is not there."""
    posteriors = Posteriors(store, sources)
    wanted = wanted_integrations(plan, store)
    rows: list[Mapping[str, Any]] = []
    found: list[Certifiable] = []
    for digest in plan.means:
        base = _identity(plan, digest, None, None)
        if digest.mean in failures:
            rows.append({**base, "error": failures[digest.mean]})
        else:
            columns = {**base, **posteriors.measured[digest]}
            found.append(_mean(sources[digest], posteriors.mistakes[digest], columns))
    for planned in wanted:
        base = _identity(plan, planned.posterior.digest, planned.posterior, planned)
        if planned.identity in failures:
            rows.append({**base, "error": failures[planned.identity]})
        else:
            found.append(_integrated(planned, store, posteriors, base))
    kept = dict.fromkeys(planned.posterior for planned in wanted)
    return Tables(
        table(record_columns(), [*certificates(plan, found), *rows]),
        table(CURVES, _curves(plan, kept, store, posteriors)),
    )


def wanted_integrations(plan: Plan, store: Store) -> tuple[PlannedIntegration, ...]:
    """All integrations but those that a search did not try; these are paid for like all others."""
    if plan.suite.search is None:
        return plan.integrations
    tried = load_from(store, load_search, search_path(plan.identity))
    return tuple(planned for planned in plan.integrations if planned.posterior.identity in tried)


class Posteriors:
    """Posteriors by their names, each read once, and what is known of their digests."""

    def __init__(self, store: Store, sources: Mapping[DigestOf, Sources]) -> None:
        self.store, self.sources = store, sources
        self.content = {digest: found.content for digest, found in sources.items()}
        self.measured = {digest: _measured(found) for digest, found in sources.items()}
        self.mistakes = {digest: mistakes_of(found.certificate) for digest, found in sources.items()}
        self._read: dict[str, Posterior] = {}

    def get(self, planned: PlannedPosterior) -> Posterior:
        """The stored posterior."""
        if planned.identity not in self._read:
            restore = planned.digest.entry.restore
            assert restore is not None
            load = partial(load_posterior, source=self.content[planned.digest], restore=restore)
            self._read[planned.identity] = load_from(self.store, load, posterior_path(planned.identity))
        return self._read[planned.identity]


def _identity(
    plan: Plan, digest: DigestOf, posterior: PlannedPosterior | None, integration: PlannedIntegration | None
) -> dict[str, Any]:
    """The columns that say what a row is about, known before anything runs."""
    network = plan.network[digest.network]
    config, splits = network.config, network.splits
    axes = digest.digest_spec.used() if posterior is None else posterior.axes
    return {
        "suite": plan.suite.suite,
        "plan": plan.identity,
        "setting": _setting(network, digest, posterior),
        "integration": digest.mean if integration is None else integration.identity,
        "posterior": None if posterior is None else posterior.identity,
        "prior": None if posterior is None else posterior.prior_identity,
        "network": network.identity,
        "method": digest.method,
        "dataset": config.dataset,
        "backbone": config.backbone,
        "num_classes": plan.summary.num_classes,
        "seed": config.seed,
        "split_seed": config.split.seed,
        "certificate_fraction": config.split.certificate,
        **config.head.used(),
        **axes,
        **{f"num_{part}": len(getattr(splits, part)) for part in PARTS},
        **{f"{part}_hash": splits.hash(part) for part in PARTS},
        "classifier": "mean" if posterior is None else posterior.classifier,
    }


def _setting(network: PlannedNetwork, digest: DigestOf, posterior: PlannedPosterior | None) -> str:
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


def _mean(sources: Sources, mistakes: torch.Tensor | None, base: Mapping[str, Any]) -> Certifiable:
    """The mean classifier, which is fixed before the certificate part is seen: its errors are what is integrated."""
    assert mistakes is not None
    record = sources.network.record
    columns = {**base, **_provenance(record["versions"], record["finished"])}
    errors = Integration(mistakes.double(), torch.zeros_like(sources.certificate.labels))
    return Certifiable("mean", None, (errors,), mistakes, 0.0, len(mistakes), True, columns)


def _integrated(
    planned: PlannedIntegration, store: Store, posteriors: Posteriors, base: Mapping[str, Any]
) -> Certifiable:
    digest = planned.posterior.digest
    posterior = posteriors.get(planned.posterior)
    load = partial(load_integration, source=posteriors.content[digest])
    integration, record = load_from(store, load, integration_path(planned.identity))
    if record["posterior"] != posterior.hash:
        raise ArtifactError(f"Integration {planned.identity} is of another posterior: run the suite again.")
    columns = {
        **base,
        **posterior.about,
        **posteriors.measured[digest],
        "integrator": planned.integrator,
        "num_points": planned.num_points or None,
        "num_evaluations": integration.num_evaluations,
        "risk": float(integration.value),
        "integration_error": integration.standard_error,
        **record["about"],
        **_provenance(record["provenance"], record["finished"]),
    }
    num_data, kl = len(integration.per_datum), float(posterior.about["kl_divergence"])
    certifies, kind = INTEGRATORS[planned.integrator].certifies, planned.posterior.classifier
    mistakes = posteriors.mistakes[digest]
    return Certifiable(kind, planned.integrator, (integration,), mistakes, kl, num_data, certifies, columns)


def _provenance(versions: Mapping[str, str], finished: str) -> dict[str, Any]:
    names = ("ldaf_bench", "torch", "ray", "python", "commit")
    return {**{name: versions[name] for name in names}, "finished": datetime.fromisoformat(finished)}


def _curves(
    plan: Plan, kept: Iterable[PlannedPosterior], store: Store, posteriors: Posteriors
) -> Iterator[dict[str, Any]]:
    suite, asked = plan.suite.suite, plan.suite.convergence
    kind = "integration" if asked is None or asked.num_data is None else "integration_each"
    networks = {found.network.identity: found.network for found in posteriors.sources.values()}
    for identity in (one.identity for one in plan.networks if one.identity in networks):  # they arrive in any order
        elapsed = 0.0
        base = {"suite": suite, "network": identity, "posterior": "", "kind": "training"}
        for row in networks[identity].record["training"]["curve"]:
            elapsed += row["seconds"]
            for series in ("loss", "accuracy", "images_per_second"):
                yield {**base, "series": series, "x": row["epoch"] + 1.0, "y": float(row[series]), "seconds": elapsed}
    for planned in kept:
        if planned.digest not in posteriors.sources or not store.exists(posterior_path(planned.identity)):
            continue
        base = {"suite": suite, "network": planned.digest.network, "posterior": planned.identity}
        for step in posteriors.get(planned).history:
            for series in sorted(step.keys() - {"x", "seconds"}):
                point = {"x": step["x"], "y": float(step[series]), "seconds": step["seconds"]}
                yield {**base, "kind": "fit", "series": series, **point}
        name = plan.convergence_of(planned)
        if name is not None and store.exists(key := convergence_path(name)):
            for row in load_from(store, partial(load_convergence, source=posteriors.content[planned.digest]), key):
                yield {**base, "kind": kind, **row}
