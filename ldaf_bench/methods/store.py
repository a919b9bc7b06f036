"""Priors on disk: weights as safetensors, everything else as JSON. Reading one never executes anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ldaf_bench.artifacts import ArtifactError, fingerprint, read_manifest, whole_directory, write_manifest
from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.splits import Seen
from ldaf_bench.methods import build
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.provenance import provenance
from ldaf_bench.theory.arguments import require_finite

WEIGHTS, MANIFEST = "weights.safetensors", "prior.json"
FORMAT = 1
"""To be raised whenever the code makes another classifier of the same configuration and weights."""


@dataclass(frozen=True)
class Prior:
    """A trained classifier, and all that is known about it."""

    identity: str
    config: PriorConfig
    shape: tuple[int, int, int]
    num_classes: int
    seen: Seen
    """The points that it was trained on."""
    weights: dict[str, Tensor]
    record: dict[str, Any]
    """The whole JSON file: split hashes, versions, where it was trained, the training curve."""

    @property
    def weights_hash(self) -> str:
        """SHA-256 of the weights' file: trained again elsewhere, the same prior may have other weights."""
        return str(self.record["files"][WEIGHTS])

    def model(self) -> Classifier:
        """The classifier itself, in eval mode."""
        model = build(self.config, self.shape, self.num_classes)
        model.load_state_dict(self.weights)
        return model.eval()


def prior_id(config: PriorConfig, points: str) -> str:
    """The name of a prior: a hash of its configuration and of the points that it sees (`Splits.hash("prior")`)."""
    return fingerprint({"format": FORMAT, "config": config.determines(), "points": points})


def prior_path(store: Path, identity: str) -> Path:
    """Where a prior is, under the store."""
    return store / "priors" / identity


def save_prior(
    store: Path, config: PriorConfig, dataset: Dataset, weights: Mapping[str, Tensor], training: Mapping[str, Any]
) -> Path:
    """Write a prior, whole or not at all. `training` says where and how it went."""
    splits = config.splits(dataset)
    identity = prior_id(config, splits.hash("prior"))
    for name, tensor in weights.items():
        require_finite(f"the weight {name}", tensor)
    with whole_directory(prior_path(store, identity)) as directory:
        save_file(dict(weights), directory / WEIGHTS)
        content = {
            "prior": identity,
            "config": config.model_dump(mode="json"),
            "dataset": {"name": dataset.name, "sha256": dataset.sha256, "shape": list(dataset.images.shape[1:])},
            "num_classes": dataset.num_classes,
            "splits": splits.describe(),
            "seen": Seen.of_prior(splits).to_json(),
            "training": dict(training),
            "versions": provenance(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_manifest(directory, MANIFEST, content)
    return prior_path(store, identity)


def load_prior(path: Path) -> Prior:
    """Read a prior, after checking its files against their checksums and its name against its content."""
    record = read_manifest(path, MANIFEST, frozenset({WEIGHTS}))
    try:
        channels, height, width = (int(length) for length in record["dataset"]["shape"])
        prior = Prior(
            identity=str(record["prior"]),
            config=PriorConfig(**record["config"]),
            shape=(channels, height, width),
            num_classes=int(record["num_classes"]),
            seen=Seen.from_json(record["seen"]),
            # Copied: mapped ones would change with the file.
            weights={name: tensor.clone() for name, tensor in load_file(path / WEIGHTS).items()},
            record=record,
        )
        prior.seen.indices()
    except (KeyError, TypeError, ValueError, ValidationError, SafetensorError, DataError, OSError) as error:
        raise ArtifactError(f"{path} does not hold a prior ({error}): delete it and train again.") from error
    if not prior.identity == path.name == prior_id(prior.config, prior.seen.hash):
        raise ArtifactError(f"{path} holds another prior than its name says: delete it and train again.")
    return prior
