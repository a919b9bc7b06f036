"""What there is to verify: plan, tables, networks and digests; from a folder and its store, or from an archive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pydantic import ValidationError

from ldaf_bench.artifacts import file_sha256, read_record
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.datasets import summarize
from ldaf_bench.data.splits import Indices
from ldaf_bench.models.network import Network, NetworkConfig
from ldaf_bench.pipeline import digests_of
from ldaf_bench.plan import PLAN_FILE, SEAL_FILE, DigestOf, Plan, make_plan
from ldaf_bench.results.collect import TABLE_FILES, Sources
from ldaf_bench.stages.digest import SHARD, digest_images
from ldaf_bench.store.digests import (
    Digested,
    DigestKey,
    chosen,
    digest_key,
    digest_path,
    load_digest,
    logits_array,
    save_digest,
)
from ldaf_bench.store.networks import load_network, network_path
from ldaf_bench.store.store import Store, load_from, open_store
from ldaf_bench.suite import Suite, SuiteError
from ldaf_bench.verify.checks import VerifyError, check_digest, check_network, require_within


def read_plan(folder: Path, root: Path) -> tuple[Plan, dict[str, Any]]:
    """The plan, made again from the suite that was run, and plan.json; they must be the same."""
    try:
        content = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        suite = Suite.model_validate(content["suite"])
        plan = make_plan(suite, summarize(content["suite"]["data"]["dataset"], root))
        # Settings that are newer than the file are at their defaults.
        configs = {
            name: NetworkConfig(**config).model_dump(mode="json") for name, config in content["networks"].items()
        }
        filled = {"suite": suite.model_dump(mode="json"), "networks": configs}
        seal = json.loads((folder / SEAL_FILE).read_text(encoding="utf-8"))
        files = dict(seal["files"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError, SuiteError) as error:
        raise VerifyError(
            f"{folder} does not hold a plan and its seal ({error}): name a folder like results/digits."
        ) from error
    for name in (PLAN_FILE, *TABLE_FILES):
        if not (folder / name).is_file() or file_sha256(folder / name) != files.get(name):
            raise VerifyError(f"{folder / name} is missing or was changed: run the suite again.")
    if plan.describe() != {**{key: value for key, value in content.items() if key != "planned"}, **filled}:
        raise VerifyError(f"{folder / PLAN_FILE} is not the plan that its suite makes.")
    return plan, content


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a table."""
    try:
        return list(pq.read_table(path).to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise VerifyError(f"{path} cannot be read ({error}): run the suite again.") from error


ROUNDING = 1e-5
"""By how much two machines may compute other logits, relative to the largest logit of a datum."""


def archived_record(key: DigestKey) -> str:
    """The name of a digest's manifest in an archive."""
    return f"digests/{key.network}/{key.name}.json"


def archived_logits(key: DigestKey) -> str:
    """The name of the mean classifier's logits in an archive, which holds no other array of a digest."""
    return f"digests/{key.network}/{key.name}.npy"


def read_sources(
    digests: Sequence[DigestOf], plan: Plan, store: Store, dataset: Dataset | None, archive: Path | None
) -> dict[DigestOf, Sources]:
    """Every network and digest, checked. Those of an archive, unpacked in this folder, are computed again."""
    sources: dict[DigestOf, Sources] = {}
    for planned in digests:
        network = load_from(store, load_network, network_path(planned.network))
        splits = plan.network[planned.network].splits
        check_network(plan.network[planned.network], network, dataset)
        parts = []
        for part, at_most in digests_of(plan, planned):
            key = digest_key(network, splits, planned.method, planned.spec, part, at_most)
            if archive is None:
                digested = load_from(store, load_digest, digest_path(key))
            else:
                digested = _made_again(planned, network, key, dataset, chosen(splits, part, at_most), archive)
            check_digest(planned, network, digested, dataset)
            parts.append(digested)
        sources[planned] = Sources(network, *parts)
    return sources


def _made_again(
    planned: DigestOf, network: Network, key: DigestKey, dataset: Dataset | None, indices: Indices, archive: Path
) -> Digested:
    """A digest from weights and data, under the manifest of the one that the results were computed from.

    Another machine may round otherwise. So the arrays need not have the manifest's checksums: what was computed from
    them is computed again and compared. Rounding can turn the mean classifier's prediction where two logits are nearly
    equal. So its logits are those of the archive, once they agree with the network's own up to rounding.
    """
    if dataset is None:
        raise VerifyError("An archive holds no digests, and they cannot be computed again without the data.")
    record = read_record(archive / archived_record(key))
    if {field: record.get(field) for field in vars(key)} != vars(key):
        raise VerifyError(f"{archived_record(key)} of the archive is about another digest than its name says.")
    model = network.model()

    def shards() -> Iterator[tuple[int, dict[str, Any]]]:
        for begin in range(0, len(indices), SHARD):
            images = torch.from_numpy(dataset.images[indices[begin : begin + SHARD]].copy())
            tensors = digest_images(planned.entry, planned.digest_spec, model, images)
            yield begin, {name: tensor.numpy() for name, tensor in tensors.items()}

    scratch = open_store(archive / "again")
    save_digest(scratch, key, dataset.labels[indices], indices, shards())
    again = load_from(scratch, load_digest, digest_path(key))
    array, path = logits_array(planned.entry, again.tensors), archive / archived_logits(key)
    tensors = dict(again.tensors)
    if array is not None and path.is_file():
        files = record.get("files")
        checksum = files.get(f"{array}.npy") if isinstance(files, dict) else None
        tensors[array] = _archived(path, checksum, again.tensors[array])
    return replace(again, tensors=tensors, record=record)


def _archived(path: Path, checksum: Any, again: torch.Tensor) -> torch.Tensor:
    """Logits of an archive, if they are those that its manifest is about and those of the network."""
    try:
        stored = torch.from_numpy(np.load(path, allow_pickle=False))
        same = file_sha256(path) == checksum and (stored.shape, stored.dtype) == (again.shape, again.dtype)
    except (OSError, ValueError, TypeError) as error:
        raise VerifyError(f"{path.name} of the archive does not hold logits ({error}).") from error
    if not same:
        raise VerifyError(f"{path.name} of the archive holds other logits than its digest.")
    require_within(f"{path.name} of the archive holds logits that are not the network's", again, stored, ROUNDING)
    return stored
