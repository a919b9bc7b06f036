"""Digests on disk: named arrays with one row per datum, memory-mapped, named by weights, method and points."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.format import open_memmap

from ldaf_bench.artifacts import ArtifactError, fingerprint, read_manifest, write_manifest
from ldaf_bench.data.dataset import Labels
from ldaf_bench.data.splits import Indices, Part, Splits, hash_indices
from ldaf_bench.methods.method import Data, Digest, Method
from ldaf_bench.models.network import Network
from ldaf_bench.store.networks import weights_hash
from ldaf_bench.store.store import Store

MANIFEST = "digest.json"
OWN = ("labels", "indices")
"""Arrays that every digest has."""


@dataclass(frozen=True)
class DigestKey:
    """What determines a digest: all of this is in its name."""

    network: str
    weights: str
    method: str
    spec: str
    """The digest's axes, as JSON with sorted keys."""
    part: str
    dataset: str
    points: str

    @property
    def name(self) -> str:
        """Of the directory."""
        return f"{self.part}-{fingerprint(vars(self))}"


@dataclass(frozen=True)
class Digested:
    """A digest as it was written; the tensors are memory-mapped."""

    path: Path
    tensors: Mapping[str, torch.Tensor]
    labels: torch.Tensor
    record: dict[str, Any]
    """The manifest: which network with which weights, which points of which data."""

    def data(self, network: Network) -> Data:
        """As methods take it."""
        return Data(self.tensors, self.labels, network)


def chosen(splits: Splits, part: Part, at_most: int | None = None) -> Indices:
    """The points of a part, or at most so many of them, spread over it."""
    indices: Indices = getattr(splits, part)
    return indices if at_most is None else indices[:: -(-len(indices) // at_most)]


def digest_key(
    network: Network, splits: Splits, method: str, spec: str, part: Part, at_most: int | None = None
) -> DigestKey:
    """The key of a method's digest of one part."""
    points = hash_indices(splits.dataset, chosen(splits, part, at_most))
    return DigestKey(network.identity, weights_hash(network), method, spec, part, splits.dataset, points)


def digest_path(key: DigestKey) -> str:
    """The key of a digest in the store."""
    return f"digests/{key.network}/{key.name}"


def save_digest(
    store: Store, key: DigestKey, labels: Labels, indices: Indices, shards: Iterable[tuple[int, Mapping[str, Any]]]
) -> None:
    """Write a digest, whole or not at all.

    `shards` are (first place, arrays) in any order; they are written as they arrive, so that memory does not grow with
    the number of data.
    """
    begun = time.perf_counter()
    with store.put(digest_path(key)) as directory:
        arrays: dict[str, Any] = {}
        for begin, results in shards:
            for name, result in results.items():
                if name not in arrays:
                    whole = (len(indices), *result.shape[1:])
                    arrays[name] = _array(directory / f"{name}.npy", result.dtype, whole)
                arrays[name][begin : begin + len(result)] = result
        for array in arrays.values():
            array.flush()
        np.save(directory / "labels.npy", labels)
        np.save(directory / "indices.npy", indices)
        content = {**vars(key), "arrays": sorted(arrays), "num_data": len(indices)}
        write_manifest(directory, MANIFEST, {**content, "seconds": time.perf_counter() - begun})


def _array(path: Path, dtype: Any, shape: tuple[int, ...]) -> Any:
    """A new array in a file, memory-mapped.

    Its place on the disk is taken now: where a disk is full, the system kills who writes into mapped memory.
    """
    array = open_memmap(path, "w+", dtype, shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return array


def load_digest(path: Path) -> Digested:
    """Read a digest, memory-mapped, after checking its files, its name and its points."""
    record = read_manifest(path, MANIFEST, lambda content: {f"{name}.npy" for name in (*content["arrays"], *OWN)})
    try:
        names = (*record["arrays"], *OWN)
        # "c": copy on write, so that torch may have the memory and the file stays as it is.
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in names}
        key = DigestKey(**{field: record[field] for field in DigestKey.__dataclass_fields__})
        indices = arrays.pop("indices")
        named = path.name == key.name and path.parent.name == key.network
        right = named and hash_indices(key.dataset, indices) == key.points
        right = right and all(len(array) == len(indices) for array in arrays.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} does not hold a digest ({error}).") from error
    if not right:
        raise ArtifactError(f"{path} holds another digest than its name says.")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    labels = tensors.pop("labels")
    return Digested(path, tensors, labels, record)


def logits_array(method: Method, digest: Digest) -> str | None:
    """The name of the array that holds the mean classifier's logits; None if no array does."""
    logits = None if method.logits is None else method.logits(digest)
    return next((name for name, tensor in digest.items() if tensor is logits), None)


def mean_mistakes(method: Method, digest: Digest, labels: torch.Tensor) -> torch.Tensor | None:
    """For every datum whether the mean classifier errs; None if the method has no mean classifier."""
    return None if method.logits is None else method.logits(digest).argmax(1) != labels
