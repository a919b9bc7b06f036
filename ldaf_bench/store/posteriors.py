"""Posteriors, integrations, convergence runs and searches on disk: one directory each, named by what determines it.

A posterior rests on digests, and through them on weights. Its manifest says on which (`source`), so that one made from
other weights under the same name is not taken for it; an integration also carries the hash of its posterior.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ldaf_bench.artifacts import ArtifactError, read_manifest, write_manifest
from ldaf_bench.methods.method import Distribution
from ldaf_bench.provenance import provenance
from ldaf_bench.store.store import Store, load_from
from ldaf_bench.theory.integrate import Integration

TENSORS, VALUES, MANIFEST = "distributions.safetensors", "values.parquet", "about.json"


class Posterior(NamedTuple):
    """A posterior, the prior that it started from, and what there is to say about both."""

    prior: Distribution
    distribution: Distribution
    about: Mapping[str, Any]
    """Columns of the record."""
    history: Sequence[Mapping[str, float]] = ()
    """Steps of the fit."""

    @property
    def hash(self) -> str:
        """Of the numbers of both distributions."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors().items()):
            digest.update(name.encode() + tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()

    def tensors(self) -> dict[str, Tensor]:
        """Of both distributions."""
        pairs = (("prior", self.prior), ("posterior", self.distribution))
        return {f"{kind}.{name}": tensor for kind, one in pairs for name, tensor in one.tensors().items()}


class StoredIntegration(NamedTuple):
    """An integration as it was written."""

    integration: Integration
    record: dict[str, Any]
    """The manifest: of which posterior, how long it took, by which versions."""


def posterior_path(identity: str) -> str:
    """The key of a posterior in the store."""
    return f"posteriors/{identity}"


def integration_path(identity: str) -> str:
    """The key of an integration."""
    return f"integrations/{identity}"


def convergence_path(identity: str) -> str:
    """The key of a convergence run."""
    return f"convergence/{identity}"


def search_path(identity: str) -> str:
    """The key of the outcome of a plan's search."""
    return f"searches/{identity}"


def _now() -> dict[str, Any]:
    """When, and by what."""
    return {"finished": datetime.now(UTC).isoformat(timespec="microseconds"), "provenance": provenance()}


def save_posterior(store: Store, identity: str, planned: Mapping[str, Any], source: str, posterior: Posterior) -> None:
    """Write a posterior; `source` is the content of the digests that it was fitted on."""
    with store.put(posterior_path(identity)) as directory:
        # Copied: an unfitted posterior is its prior, and safetensors wants no tensor twice.
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in posterior.tensors().items()}
        save_file(tensors, directory / TENSORS)
        content = {"posterior": identity, "planned": dict(planned), "source": source}
        about = {"about": dict(posterior.about), "history": [dict(step) for step in posterior.history]}
        write_manifest(directory, MANIFEST, {**content, **about, **_now()})


def load_posterior(path: Path, source: str, restore: Callable[[Mapping[str, Tensor]], Distribution]) -> Posterior:
    """Read a posterior that was fitted on these digests."""
    record = read_manifest(path, MANIFEST, {TENSORS})
    _require_origin(path, record, "posterior", source)
    try:
        tensors = load_file(path / TENSORS)
        kinds = ("prior", "posterior")
        prior, posterior = (
            restore({name.removeprefix(f"{kind}."): t for name, t in tensors.items() if name.startswith(f"{kind}.")})
            for kind in kinds
        )
        return Posterior(prior, posterior, dict(record["about"]), list(record["history"]))
    except (KeyError, TypeError, ValueError, SafetensorError, OSError) as error:
        raise ArtifactError(f"{path} does not hold a posterior ({error}).") from error


def save_integration(
    store: Store, identity: str, source: str, posterior: str, integration: Integration, about: Mapping[str, Any]
) -> None:
    """Write an integration, in place of one of another posterior if there is any.

    The values of all data go to a Parquet file: hits as whole numbers where there were draws, else the value itself.
    """
    key = integration_path(identity)
    if store.exists(key):
        with contextlib.suppress(ArtifactError):
            # A run that was killed may write its last result while the next one reads: leave alone what is right.
            if load_from(store, lambda path: load_integration(path, source), key).record["posterior"] == posterior:
                return
        store.remove(key)
    values = integration.per_datum.cpu().numpy()
    draws = np.zeros(len(values), np.int64) if integration.draws is None else integration.draws.cpu().numpy()
    columns = {
        "value": pa.array(values, pa.float64(), mask=draws > 0),
        "hits": pa.array(np.rint(values * draws).astype(np.int64), pa.int64(), mask=draws == 0),
        "draws": pa.array(draws, pa.int64()),
    }
    with store.put(key) as directory:
        pq.write_table(pa.table(columns), directory / VALUES, compression="zstd")
        content = {
            "integration": identity,
            "source": source,
            "posterior": posterior,
            "estimate": integration.draws is None,
            "standard_error": integration.standard_error,
            "num_evaluations": integration.num_evaluations,
            "about": dict(about),
        }
        write_manifest(directory, MANIFEST, {**content, **_now()})


def load_integration(path: Path, source: str) -> StoredIntegration:
    """Read an integration that was computed on these digests."""
    record = read_manifest(path, MANIFEST, {VALUES})
    _require_origin(path, record, "integration", source)
    try:
        table = pq.read_table(path / VALUES)
        draws = table["draws"].to_numpy()
        hits = table["hits"].fill_null(0).to_numpy()
        values = table["value"].fill_null(0.0).to_numpy()
        per_datum = np.where(draws > 0, hits / np.maximum(draws, 1), values)
        counted = None if record["estimate"] else torch.from_numpy(draws.copy())
        spread, count = record["standard_error"], int(record["num_evaluations"])
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{path} does not hold an integration ({error}).") from error
    return StoredIntegration(Integration(torch.from_numpy(per_datum), counted, spread, count), record)


def save_convergence(store: Store, identity: str, source: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write a convergence run."""
    with store.put(convergence_path(identity)) as directory:
        content = {"convergence": identity, "source": source, "rows": [dict(row) for row in rows]}
        write_manifest(directory, MANIFEST, {**content, **_now()})


def load_convergence(path: Path, source: str) -> list[dict[str, Any]]:
    """Read a convergence run that was made on these digests."""
    record = read_manifest(path, MANIFEST, ())
    _require_origin(path, record, "convergence", source)
    return list(record["rows"])


def save_search(store: Store, identity: str, tried: Collection[str]) -> None:
    """Write which posteriors a search tried, once it is over."""
    with store.put(search_path(identity)) as directory:
        write_manifest(directory, MANIFEST, {"search": identity, "tried": sorted(tried), **_now()})


def load_search(path: Path) -> frozenset[str]:
    """The posteriors that a search tried."""
    record = read_manifest(path, MANIFEST, ())
    if record.get("search") != path.name:
        raise ArtifactError(f"{path} holds another search than its name says.")
    return frozenset(record["tried"])


def _require_origin(path: Path, record: Mapping[str, Any], kind: str, source: str) -> None:
    if record.get(kind) != path.name:
        raise ArtifactError(f"{path} holds another {kind} than its name says.")
    if record.get("source") != source:
        raise ArtifactError(f"{path} was made from other digests than the ones there are now.")
