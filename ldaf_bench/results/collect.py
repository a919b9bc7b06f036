"""collect: from artifacts to results.parquet and curves.parquet. Nothing is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from ldaf_bench.artifacts import ArtifactError, fingerprint, whole_file
from ldaf_bench.methods.pushed import Pushed
from ldaf_bench.methods.store import Prior
from ldaf_bench.plan import Plan, PlannedCell, PlannedPosterior, PlannedPrior
from ldaf_bench.results.record import CURVES, RECORD, Column, schema
from ldaf_bench.results.store import (
    cell_path,
    convergence_path,
    load_cell,
    load_convergence,
    load_posterior,
    load_search,
    posterior_hash,
    posterior_path,
    search_path,
)

RESULTS_FILE, CURVES_FILE = "results.parquet", "curves.parquet"


PRIOR_DATA = 2000
"""So many prior points are enough to choose the scale of the covariance `scaled`."""


def needs_prior_part(plan: Plan, prior: PlannedPrior) -> bool:
    """Whether prior data have to be pushed forward as well."""
    return prior.config.method == "ldaf" and "scaled" in plan.suite.posteriors.covariance


class Sources(NamedTuple):
    """What the cells of one prior rest on."""

    prior: Prior
    certificate: Pushed
    test: Pushed
    prior_part: Pushed | None = None
    """Some prior data, for the covariance `scaled`."""

    @property
    def num_bytes(self) -> int:
        """Of all their arrays."""
        parts = [part for part in (self.certificate, self.test, self.prior_part) if part is not None]
        return sum(array.nbytes for part in parts for array in (*part.pushforward, part.features, part.labels))

    @property
    def content(self) -> str:
        """A hash of all their arrays: results of other arrays under the same names are not taken for theirs."""
        parts = (self.certificate, self.test, self.prior_part)
        return fingerprint([None if part is None else part.record["files"] for part in parts])


def collect(
    plan: Plan, store: Path, sources: Mapping[tuple[str, float | None], Sources], failures: Mapping[str, str]
) -> tuple[pa.Table, pa.Table]:
    """Both tables, in the plan's order. `failures` says of a cell why it is not there."""
    planned = {prior.identity: prior for prior in plan.priors}
    wanted = wanted_cells(plan, store)
    rows = [row for cell in wanted for row in _rows(plan, planned[cell.prior], cell, store, sources, failures)]
    posteriors = list(dict.fromkeys(cell.posterior for cell in wanted if cell.posterior is not None))
    return _table(RECORD, rows), _table(CURVES, list(_curves(plan, posteriors, store, sources)))


def write_table(table: pa.Table, path: Path) -> None:
    """As one Parquet file, whole or not at all."""
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def _table(columns: tuple[Column, ...], rows: list[dict[str, Any]]) -> pa.Table:
    known = {column.name for column in columns}
    for row in rows:
        unknown = row.keys() - known
        if unknown:
            raise AssertionError(f"The record has no column {', '.join(sorted(unknown))}: add it to `record`.")
    arrays = {column.name: [row.get(column.name) for row in rows] for column in columns}
    return pa.table(arrays, schema=schema(columns))


def wanted_cells(plan: Plan, store: Path) -> tuple[PlannedCell, ...]:
    """All cells but those that a search did not come by; these were paid for like all others."""
    if plan.suite.search is None:
        return plan.cells
    tried = load_search(search_path(store, plan))
    return tuple(cell for cell in plan.cells if cell.posterior is None or cell.posterior.identity in tried)


def tolerance_of(cell: PlannedCell, plan: Plan) -> float | None:
    """The Krylov tolerance that a cell's pushforward was made with; the mean classifier has the first one."""
    return plan.suite.pushforwards.tolerance[0] if cell.posterior is None else cell.posterior.tolerance


def _setting(prior: PlannedPrior, posterior: PlannedPosterior | None) -> str:
    fitted = {} if posterior is None else {**asdict(posterior), "seed": None, "prior": None}
    return fingerprint({"prior": prior.config.determines() | {"seed": None}, "posterior": fitted})


def _identity(plan: Plan, prior: PlannedPrior, cell: PlannedCell) -> dict[str, Any]:
    config, posterior, splits = prior.config, cell.posterior, prior.splits
    flows = config.method == "ldaf"
    return {
        "suite": plan.suite.suite,
        "plan": plan.identity,
        "setting": _setting(prior, posterior),
        "cell": cell.identity,
        "prior": prior.identity,
        "method": config.method,
        "dataset": config.dataset,
        "backbone": config.backbone,
        "flow": config.flow if flows else "",
        "num_nodes": config.num_nodes if flows else None,
        "num_classes": plan.summary.num_classes,
        "horizon": config.horizon if flows else None,
        "tolerance": tolerance_of(cell, plan),
        "covariance": None if posterior is None else posterior.covariance,
        # `scaled` finds its own.
        "scale": None if posterior is None or posterior.covariance == "scaled" else posterior.scale,
        "seed": config.seed,
        "split_seed": config.split.seed,
        "certificate_fraction": config.split.certificate,
        **{f"num_{part}": len(getattr(splits, part)) for part in ("prior", "certificate", "test")},
        **{f"{part}_hash": splits.hash(part) for part in ("prior", "certificate", "test")},
    }


def _rows(
    plan: Plan,
    prior: PlannedPrior,
    cell: PlannedCell,
    store: Path,
    sources: Mapping[tuple[str, float | None], Sources],
    failures: Mapping[str, str],
) -> Iterator[dict[str, Any]]:
    identity = _identity(plan, prior, cell)
    if cell.identity in failures:
        yield {**identity, "error": failures[cell.identity]}
        return
    found = sources[prior.identity, tolerance_of(cell, plan)]
    source = found.content
    stored = load_cell(cell_path(store, cell.identity), source)
    training, computed = found.prior.record["training"], stored["provenance"]
    common = {
        **identity,
        **_posterior_columns(cell, store, source, stored["posterior"]),
        "mean_error": found.certificate.mean_error,
        "mean_test_error": found.test.mean_error,
        "flow_error": found.certificate.record["worst_error"],
        "train_seconds": training["seconds"],
        "push_seconds": found.certificate.record["seconds"] + found.test.record["seconds"],
        "device": training["starts"][-1]["device"],
        "workers": training["starts"][-1]["workers"],
        **{name: computed[name] for name in ("ldaf_bench", "torch", "ray", "python", "commit")},
        "finished": datetime.fromisoformat(stored["finished"]),
    }
    for row in stored["rows"]:
        yield {**common, **row}


def _posterior_columns(cell: PlannedCell, store: Path, source: str, expected: str) -> dict[str, Any]:
    if cell.posterior is None:
        return {}
    posterior = load_posterior(posterior_path(store, cell.posterior.identity), source)
    if posterior_hash(posterior.start, posterior.gaussian) != expected:
        raise ArtifactError(f"Cell {cell.identity} is of another posterior than the one there is: run again.")
    return {name: value for name, value in posterior.about.items() if name != "history"}


def _curves(
    plan: Plan, posteriors: Sequence[PlannedPosterior], store: Path, sources: Mapping[tuple[str, float | None], Sources]
) -> Iterator[dict[str, Any]]:
    suite = plan.suite.suite
    told: set[str] = set()
    for (prior, _), found in sources.items():
        if prior not in told:
            told.add(prior)
            elapsed = 0.0
            for row in found.prior.record["training"]["curve"]:
                elapsed += row["seconds"]
                for series in ("loss", "accuracy", "images_per_second"):
                    point = {"x": float(row["epoch"] + 1), "y": float(row[series]), "seconds": elapsed}
                    yield {"suite": suite, "prior": prior, "cell": "", "kind": "training", "series": series, **point}
    for posterior in posteriors:
        path = posterior_path(store, posterior.identity)
        if (posterior.prior, posterior.tolerance) in sources and path.exists():
            source = sources[posterior.prior, posterior.tolerance].content
            cell = plan.cells_of(posterior, posterior.prior)[0].identity
            base = {"suite": suite, "prior": posterior.prior, "cell": cell}
            for step in load_posterior(path, source).about["history"]:
                for series in ("cross_entropy", "kl", "lam", "bound"):
                    point = {"x": float(step["number"]), "y": float(step[series]), "seconds": float(step["seconds"])}
                    yield {**base, "kind": "alternation", "series": series, **point}
            for run in (convergence_path(store, name) for name in convergence_names(plan, posterior)):
                if run.exists():
                    for row in load_convergence(run, source)["rows"]:
                        yield {**base, "kind": "integration", **row}


def convergence_names(plan: Plan, posterior: PlannedPosterior) -> list[str]:
    """The name of this posterior's convergence run, if there is to be one.

    The first posterior of every prior with the first seed is looked at.
    """
    asked = plan.suite.convergence
    if asked is None or posterior.seed != plan.suite.priors.seed[0]:
        return []
    first = next(other for other in plan.posteriors if other.prior == posterior.prior)
    if posterior != first:
        return []
    return [fingerprint({"posterior": posterior.identity, **asked.model_dump(mode="json")})]
