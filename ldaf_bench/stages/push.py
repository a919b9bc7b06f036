r"""push: (M, G, labels) of one prior on one part of the data, sharded over Ray, written once, read memory-mapped.

Network and flow see every datum once: BatchNorm in eval mode, no augmentation, float32. Shards are written into
their place as they arrive, so that memory does not grow with the number of data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.lib.format import open_memmap
from rich.console import Console
from rich.progress import track

from ldaf_bench.artifacts import (
    ArtifactError,
    fingerprint,
    if_valid,
    read_manifest,
    whole_directory,
    write_manifest,
)
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Part, Splits, hash_indices, require_unseen
from ldaf_bench.messages import printable
from ldaf_bench.methods import push_images
from ldaf_bench.methods.store import Prior
from ldaf_bench.stages.session import Resources, device_of, fitted
from ldaf_bench.theory.pushforward import Pushforward

MANIFEST = "pushforward.json"
ARRAYS = (*Pushforward._fields, "labels", "indices")
SHARD = 500
"""Data per task: 8 MB of G at n = 50, c = 10."""


@dataclass(frozen=True)
class Pushed:
    """(M, G, labels) as they were written; the tensors are memory-mapped."""

    path: Path
    pushforward: Pushforward
    labels: torch.Tensor
    record: dict[str, Any]
    """The JSON file: which prior with which weights, which points of which data."""

    @property
    def mean_error(self) -> float:
        """The 0-1 error of the mean classifier, the one without noise."""
        return float((self.pushforward.mean.argmax(1) != self.labels).double().mean())


def _origin(prior: Prior, splits: Splits, part: Part) -> dict[str, Any]:
    """What a pushforward is one of: all of this is in its name."""
    return {
        "prior": prior.identity,
        "weights": prior.weights_hash,
        "part": part,
        "dataset": splits.dataset,
        "points": splits.hash(part),
    }


def _name(origin: dict[str, Any]) -> str:
    return f"{origin['part']}-{fingerprint(origin)}"


def push(
    prior: Prior,
    dataset: Dataset,
    part: Part,
    store: Path,
    resources: Resources = Resources(),
    console: Console | None = None,
) -> Pushed:
    """The prior's pushforward on one part of the data: made unless it is under `store`, and stored there.

    Refuses, with a `LeakError`, a prior that saw a certificate or test point.
    """
    console = console or Console()
    splits = prior.config.splits(dataset)
    require_unseen(prior.seen, splits)
    origin = _origin(prior, splits, part)
    path = store / "pushforwards" / prior.identity / _name(origin)

    def say(sentence: str) -> None:
        console.print(printable(sentence), markup=False, highlight=False)

    found = if_valid(load_pushed, path, say)
    if found is not None:
        return found
    indices: np.ndarray[Any, np.dtype[np.int64]] = getattr(splits, part)
    with whole_directory(path) as directory:
        arrays: dict[str, Any] = {}
        for begin, results in _shards(prior, dataset, indices, fitted(resources), f"pushing the {part} part", console):
            for name, result in results.items():
                if name not in arrays:
                    whole = (len(indices), *result.shape[1:])
                    arrays[name] = open_memmap(directory / f"{name}.npy", "w+", result.dtype, whole)
                arrays[name][begin : begin + len(result)] = result
        worst = float(arrays["error"].max())
        for array in arrays.values():
            array.flush()
        np.save(directory / "labels.npy", dataset.labels[indices])
        np.save(directory / "indices.npy", indices)
        write_manifest(directory, MANIFEST, {**origin, "num_data": len(indices), "worst_error": worst})
    return load_pushed(path)


def _shards(
    prior: Prior, dataset: Dataset, indices: Any, resources: Resources, title: str, console: Console
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(first place, arrays) of every shard as it is done; never more shards under way than twice the workers."""
    held = ray.put(prior)
    task = _push_shard.options(num_cpus=resources.cpus_per_worker, num_gpus=resources.gpus_per_worker)
    begins = range(0, len(indices), SHARD)
    waiting = iter(begins)
    running: dict[Any, int] = {}

    def start() -> None:
        for begin in waiting:
            images = dataset.images[indices[begin : begin + SHARD]]
            running[task.remote(held, images, resources)] = begin
            return

    try:
        for _ in range(2 * resources.workers):
            start()
        for _ in track(begins, title, console=console, transient=True, disable=not console.is_terminal):
            (done,), _rest = ray.wait(list(running), num_returns=1)
            yield running.pop(done), ray.get(done)
            start()
    finally:
        for left in running:
            ray.cancel(left)


@ray.remote(max_retries=3)
def _push_shard(prior: Prior, images: np.ndarray[Any, np.dtype[np.uint8]], resources: Resources) -> dict[str, Any]:
    """(M, G) of one shard, in a worker."""
    device = device_of(resources)
    batch = torch.from_numpy(images.copy()).to(device)
    pushed = push_images(prior.config, prior.model().to(device), batch)
    return {name: value.cpu().numpy() for name, value in pushed._asdict().items()}


def load_pushed(path: Path) -> Pushed:
    """Read a pushforward, memory-mapped, after checking its files, its name and its points."""
    record = read_manifest(path, MANIFEST, frozenset(f"{name}.npy" for name in ARRAYS))
    try:
        # "c": copy on write, so that torch may have the memory and the file stays as it is.
        arrays = {name: np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in ARRAYS}
        origin = {key: record[key] for key in ("prior", "weights", "part", "dataset", "points")}
        indices = arrays.pop("indices")
        named = path.name == _name(origin) and path.parent.name == origin["prior"]
        right = named and hash_indices(origin["dataset"], indices) == origin["points"]
        right = right and all(len(array) == len(indices) for array in arrays.values())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} does not hold a pushforward ({error}): delete it and push again.") from error
    if not right:
        raise ArtifactError(f"{path} holds another pushforward than its name says: delete it and push again.")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    labels = tensors.pop("labels")
    return Pushed(path, Pushforward(**tensors), labels, record)
