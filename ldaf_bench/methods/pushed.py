"""Pushforwards on disk: (M, G), features and labels as memory-mapped arrays, named by weights and points."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ldaf_bench.artifacts import ArtifactError, fingerprint, read_manifest
from ldaf_bench.data.splits import Indices, Part, Splits, hash_indices
from ldaf_bench.methods.store import Prior
from ldaf_bench.theory.pushforward import Pushforward

MANIFEST = "pushforward.json"
ARRAYS = (*Pushforward._fields, "features", "labels", "indices")


@dataclass(frozen=True)
class Pushed:
    """(M, G, labels) as they were written; the tensors are memory-mapped."""

    path: Path
    pushforward: Pushforward
    features: torch.Tensor
    """What the network makes of the data, of shape (m, n, c): for those who integrate the flow again."""
    labels: torch.Tensor
    record: dict[str, Any]
    """The JSON file: which prior with which weights, which points of which data."""

    @property
    def mean_error(self) -> float:
        """The 0-1 error of the mean classifier, the one without noise."""
        return float((self.pushforward.mean.argmax(1) != self.labels).double().mean())


@dataclass(frozen=True)
class Origin:
    """What a pushforward is one of: all of this is in its name."""

    prior: str
    weights: str
    tolerance: float | None
    part: str
    dataset: str
    points: str

    @property
    def name(self) -> str:
        """Of the directory."""
        return f"{self.part}-{fingerprint(vars(self))}"


def chosen(splits: Splits, part: Part, at_most: int | None = None) -> Indices:
    """The points of a part, or so many of them at most, spread over it."""
    indices: Indices = getattr(splits, part)
    return indices if at_most is None else indices[:: -(-len(indices) // at_most)]


def origin_of(prior: Prior, splits: Splits, part: Part, tolerance: float | None, at_most: int | None) -> Origin:
    """The origin of a prior's pushforward on one part."""
    points = hash_indices(splits.dataset, chosen(splits, part, at_most))
    return Origin(prior.identity, prior.weights_hash, tolerance, part, splits.dataset, points)


def pushed_path(store: Path, origin: Origin) -> Path:
    """Where a pushforward is, under the store."""
    return store / "pushforwards" / origin.prior / origin.name


def load_pushed(path: Path) -> Pushed:
    """Read a pushforward, memory-mapped, after checking its files, its name and its points."""
    record = read_manifest(path, MANIFEST, frozenset(f"{name}.npy" for name in ARRAYS))
    try:
        # "c": copy on write, so that torch may have the memory and the file stays as it is.
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS}
        origin = Origin(**{field: record[field] for field in Origin.__dataclass_fields__})
        indices = arrays.pop("indices")
        named = path.name == origin.name and path.parent.name == origin.prior
        right = named and hash_indices(origin.dataset, indices) == origin.points
        right = right and all(len(array) == len(indices) for array in arrays.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} does not hold a pushforward ({error}).") from error
    if not right:
        raise ArtifactError(f"{path} holds another pushforward than its name says.")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    features, labels = tensors.pop("features"), tensors.pop("labels")
    return Pushed(path, Pushforward(**tensors), features, labels, record)
