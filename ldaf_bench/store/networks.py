"""Networks on disk: weights as safetensors, everything else as JSON. Reading one never executes anything."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ldaf_bench.artifacts import ArtifactError, fingerprint, read_manifest, write_manifest
from ldaf_bench.data.dataset import DataError, Summary
from ldaf_bench.data.splits import Seen
from ldaf_bench.models.network import Network, NetworkConfig
from ldaf_bench.provenance import provenance
from ldaf_bench.store.store import Store
from ldaf_bench.theory.arguments import require_finite

WEIGHTS, MANIFEST = "weights.safetensors", "network.json"
FORMAT = 3
"""To be raised whenever the code makes another classifier of the same configuration and weights, or if a default
changes."""


def network_id(config: NetworkConfig, points: str) -> str:
    """The name of a network: a hash of its configuration and of the points that it sees (`Splits.hash("prior")`).

    Settings at their defaults are left out, so that a setting that is added later keeps the names (see `Spec.named`).
    """
    named = config.model_dump(mode="json", exclude_defaults=True)
    named["head"] = {"kind": config.head.kind, **config.head.named()}
    return fingerprint({"format": FORMAT, "config": named, "points": points})


def network_path(identity: str) -> str:
    """The key of a network in the store."""
    return f"networks/{identity}"


def weights_hash(network: Network) -> str:
    """SHA-256 of the weights' file: trained again elsewhere, the same network may have other weights."""
    return str(network.record["files"][WEIGHTS])


def save_network(
    store: Store, config: NetworkConfig, data: Summary, weights: Mapping[str, Tensor], training: Mapping[str, Any]
) -> str:
    """Write a network, whole or not at all; returns its key. `training` says where and how it was trained."""
    splits = config.splits(data)
    identity = network_id(config, splits.hash("prior"))
    for name, tensor in weights.items():
        require_finite(f"the weight {name}", tensor)
    with store.put(network_path(identity)) as directory:
        save_file(dict(weights), directory / WEIGHTS)
        content = {
            "network": identity,
            "config": config.model_dump(mode="json"),
            "dataset": {"name": data.name, "sha256": data.sha256, "shape": list(data.shape[1:])},
            "num_classes": data.num_classes,
            "splits": splits.describe(),
            "seen": Seen.of_prior(splits).to_json(),
            "training": dict(training),
            "versions": provenance(),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        write_manifest(directory, MANIFEST, content)
    return network_path(identity)


def load_network(path: Path) -> Network:
    """Read a network, after checking its files against their checksums and its name against its content."""
    record = read_manifest(path, MANIFEST, frozenset({WEIGHTS}))
    try:
        channels, height, width = (int(length) for length in record["dataset"]["shape"])
        network = Network(
            identity=str(record["network"]),
            config=NetworkConfig(**record["config"]),
            shape=(channels, height, width),
            num_classes=int(record["num_classes"]),
            seen=Seen.from_json(record["seen"]),
            # Copied: mapped ones would change with the file.
            weights={name: tensor.clone() for name, tensor in load_file(path / WEIGHTS).items()},
            record=record,
        )
        network.seen.indices()
    except (KeyError, TypeError, ValueError, ValidationError, SafetensorError, DataError, OSError) as error:
        raise ArtifactError(f"{path} does not hold a network ({error}): delete it and train again.") from error
    if not network.identity == path.name == network_id(network.config, network.seen.hash):
        raise ArtifactError(f"{path} holds another network than its name says: delete it and train again.")
    return network
