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

from ldaf_bench.artifacts import ArtifactError, read_manifest, whole_directory, write_manifest
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Part, Splits, require_unseen
from ldaf_bench.methods import push_images
from ldaf_bench.methods.store import Prior
from ldaf_bench.stages.session import Resources, device_of, fitted
from ldaf_bench.theory.pushforward import Pushforward

MANIFEST = "pushforward.json"
SHARD = 500
"""Data per task: 8 MB of G at n = 50, c = 10."""


@dataclass(frozen=True)
class Pushed:
    """(M, G, labels) as they were written; the tensors are memory-mapped."""

    pushforward: Pushforward
    labels: torch.Tensor
    record: dict[str, Any]
    """The JSON file: which prior, which data, how long."""

    @property
    def mean_error(self) -> float:
        """The 0-1 error of the mean classifier, the one without noise."""
        return float((self.pushforward.mean.argmax(1) != self.labels).double().mean())


def push_path(store: Path, identity: str, splits: Splits, part: Part) -> Path:
    """Where the pushforward of a prior is, under the store: named by prior, part and the part's points."""
    return store / "pushforwards" / identity / f"{part}-{splits.hash(part)[:16]}"


def push(
    prior: Prior,
    dataset: Dataset,
    splits: Splits,
    part: Part,
    store: Path,
    resources: Resources = Resources(),
    console: Console | None = None,
) -> Path:
    """Push the prior forward on one part of the data, unless that was done; returns the directory under `store`.

    Refuses, with a `LeakError`, a prior that saw a certificate or test point of these splits.
    """
    require_unseen(prior.seen, splits)
    path = push_path(store, prior.identity, splits, part)
    if path.is_dir():
        return path
    indices: np.ndarray[Any, np.dtype[np.int64]] = getattr(splits, part)
    shards = [indices[begin : begin + SHARD] for begin in range(0, len(indices), SHARD)]
    with whole_directory(path) as directory:
        arrays: dict[str, Any] = {}
        for number, results in _shards(prior, dataset, shards, fitted(resources), part, console or Console()):
            for name, result in results.items():
                if name not in arrays:
                    whole = (len(indices), *result.shape[1:])
                    arrays[name] = open_memmap(directory / f"{name}.npy", "w+", result.dtype, whole)
                arrays[name][number * SHARD : number * SHARD + len(result)] = result
        for array in arrays.values():
            array.flush()
        np.save(directory / "labels.npy", dataset.labels[indices])
        np.save(directory / "indices.npy", indices)
        content = {
            "prior": prior.identity,
            "part": part,
            "points": {"size": len(indices), "hash": splits.hash(part)},
            "dataset": dataset.sha256,
            "worst_error": float(arrays["error"].max()),
        }
        write_manifest(directory, MANIFEST, content)
    return path


def _shards(
    prior: Prior, dataset: Dataset, shards: list[Any], resources: Resources, part: Part, console: Console
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, arrays) of every shard as it is done; never more shards under way than twice the workers."""
    held = ray.put(prior)
    task = _push_shard.options(num_cpus=resources.cpus_per_worker, num_gpus=resources.gpus_per_worker)
    waiting = iter(enumerate(shards))
    running: dict[Any, int] = {}

    def start() -> None:
        for number, indices in waiting:
            running[task.remote(held, dataset.images[indices], resources)] = number
            return

    for _ in range(2 * resources.workers):
        start()
    for _ in track(
        shards, f"pushing the {part} part", console=console, transient=True, disable=not console.is_terminal
    ):
        (done,), _rest = ray.wait(list(running), num_returns=1)
        yield running.pop(done), ray.get(done)
        start()


@ray.remote(max_retries=3)
def _push_shard(prior: Prior, images: np.ndarray[Any, np.dtype[np.uint8]], resources: Resources) -> dict[str, Any]:
    """(M, G) of one shard, in a worker."""
    device = device_of(resources)
    batch = torch.from_numpy(images.copy()).to(device)
    pushed = push_images(prior.config, prior.model().to(device), batch)
    return {name: value.cpu().numpy() for name, value in pushed._asdict().items()}


def load_pushed(path: Path) -> Pushed:
    """Read a pushforward, memory-mapped, after checking its files against their checksums."""
    record = read_manifest(path, MANIFEST)
    try:
        # "c": copy on write, so that torch may have the memory and the file stays as it is.
        tensors = {
            name: torch.from_numpy(np.load(path / f"{name}.npy", mmap_mode="c", allow_pickle=False))
            for name in (*Pushforward._fields, "labels")
        }
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} does not hold a pushforward ({error}): delete it and push again.") from error
    labels = tensors.pop("labels")
    return Pushed(Pushforward(**tensors), labels, record)
