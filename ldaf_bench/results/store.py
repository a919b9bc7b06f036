"""Posteriors, cells and convergence runs on disk: one directory each, named by what determines it.

A result rests on a pushforward, and through it on weights. That is in its manifest, so that one made from other
weights under the same name is not taken for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ldaf_bench.artifacts import ArtifactError, read_manifest, whole_directory, write_manifest
from ldaf_bench.plan import Plan, PlannedCell, PlannedPosterior
from ldaf_bench.provenance import provenance
from ldaf_bench.theory.gaussian import Dense, DiagonalRankOne, Gaussian

TENSORS, MANIFEST = "gaussians.safetensors", "about.json"


class StoredPosterior(NamedTuple):
    """A posterior as it was written."""

    start: Gaussian
    gaussian: Gaussian
    about: dict[str, Any]


def posterior_hash(start: Gaussian, gaussian: Gaussian) -> str:
    """Of the numbers of both."""
    tensors = {**_to_tensors("start", start), **_to_tensors("posterior", gaussian)}
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def posterior_path(store: Path, identity: str) -> Path:
    """Where a posterior is."""
    return store / "posteriors" / identity


def cell_path(store: Path, identity: str) -> Path:
    """Where a cell is."""
    return store / "cells" / identity


def convergence_path(store: Path, identity: str) -> Path:
    """Where a convergence run is."""
    return store / "convergence" / identity


def _to_tensors(name: str, gaussian: Gaussian) -> dict[str, Tensor]:
    if isinstance(gaussian, DiagonalRankOne):
        return {f"{name}.d": gaussian.d.contiguous(), f"{name}.q": gaussian.q.contiguous()}
    return {f"{name}.factor": gaussian.factor().contiguous()}


def _from_tensors(name: str, tensors: Mapping[str, Tensor]) -> Gaussian:
    if f"{name}.d" in tensors:
        return DiagonalRankOne(tensors[f"{name}.d"], tensors[f"{name}.q"])
    return Dense(tensors[f"{name}.factor"])


def _now() -> dict[str, Any]:
    """When, and by what."""
    return {"finished": datetime.now(UTC).isoformat(timespec="microseconds"), "provenance": provenance()}


def save_posterior(
    store: Path, planned: PlannedPosterior, source: str, start: Gaussian, gaussian: Gaussian, about: Mapping[str, Any]
) -> Path:
    """Write a posterior; `source` is the content of the pushforwards that it was fitted on."""
    path = posterior_path(store, planned.identity)
    with whole_directory(path) as directory:
        tensors = {**_to_tensors("start", start), **_to_tensors("posterior", gaussian)}
        # Copied: a posterior that was not fitted is its start, and safetensors wants no tensor twice.
        save_file({name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}, directory / TENSORS)
        content = {"posterior": planned.identity, "planned": asdict(planned), "source": source, "about": dict(about)}
        write_manifest(directory, MANIFEST, {**content, **_now()})
    return path


def load_posterior(path: Path, source: str) -> StoredPosterior:
    """Read a posterior that was fitted on this pushforward."""
    record = read_manifest(path, MANIFEST, frozenset({TENSORS}))
    _require_origin(path, record, "posterior", source)
    try:
        tensors = load_file(path / TENSORS)
        start, gaussian = _from_tensors("start", tensors), _from_tensors("posterior", tensors)
        return StoredPosterior(start, gaussian, dict(record["about"]))
    except (KeyError, TypeError, ValueError, SafetensorError, OSError) as error:
        raise ArtifactError(f"{path} does not hold a posterior ({error}).") from error


def save_cell(store: Path, cell: PlannedCell, source: str, posterior: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a cell's rows, in place of those of another posterior if there are any.

    `source` is the content of the pushforwards, `posterior` the hash of the posterior.
    """
    path = cell_path(store, cell.identity)
    with contextlib.suppress(ArtifactError):
        # The last words of a run that was killed may come while the next reads: what is right is not touched.
        if load_cell(path, source)["posterior"] == posterior:
            return path
    shutil.rmtree(path, ignore_errors=True)
    with whole_directory(path) as directory:
        content = {"cell": cell.identity, "planned": asdict(cell), "source": source, "posterior": posterior}
        write_manifest(directory, MANIFEST, {**content, "rows": [dict(row) for row in rows], **_now()})
    return path


def load_cell(path: Path, source: str) -> dict[str, Any]:
    """Read a cell that was computed on this pushforward; its `posterior` is the hash of the posterior it is of."""
    record = read_manifest(path, MANIFEST, frozenset())
    _require_origin(path, record, "cell", source)
    return record


def save_convergence(store: Path, identity: str, source: str, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write a convergence run."""
    path = convergence_path(store, identity)
    with whole_directory(path) as directory:
        content = {"convergence": identity, "source": source, "rows": [dict(row) for row in rows]}
        write_manifest(directory, MANIFEST, {**content, **_now()})
    return path


def load_convergence(path: Path, source: str) -> dict[str, Any]:
    """Read a convergence run that was made on this pushforward."""
    record = read_manifest(path, MANIFEST, frozenset())
    _require_origin(path, record, "convergence", source)
    return record


def search_path(store: Path, plan: Plan) -> Path:
    """Where the outcome of a plan's search is."""
    return store / "searches" / plan.identity


def save_search(store: Path, plan: Plan, tried: Collection[str]) -> None:
    """Write which posteriors a search came by, once it is over."""
    with whole_directory(search_path(store, plan)) as directory:
        write_manifest(directory, MANIFEST, {"search": plan.identity, "tried": sorted(tried), **_now()})


def load_search(path: Path) -> frozenset[str]:
    """The posteriors that a search came by."""
    record = read_manifest(path, MANIFEST, frozenset())
    if record.get("search") != path.name:
        raise ArtifactError(f"{path} holds another search than its name says.")
    return frozenset(record["tried"])


def _require_origin(path: Path, record: Mapping[str, Any], kind: str, source: str) -> None:
    if record.get(kind) != path.name:
        raise ArtifactError(f"{path} holds another {kind} than its name says.")
    if record.get("source") != source:
        raise ArtifactError(f"{path} was made from another pushforward than the one there is now.")
