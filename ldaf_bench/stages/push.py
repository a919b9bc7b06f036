r"""push: (M, G, labels) of one prior on one part of the data, sharded over Ray, written once, read memory-mapped.

Network and flow see every datum once: BatchNorm in eval mode, no augmentation, float32. Shards are written into
their place as they arrive, so that memory does not grow with the number of data.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from numpy.lib.format import open_memmap
from rich.console import Console
from rich.progress import track

from ldaf_bench.artifacts import if_valid, whole_directory, write_manifest
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Indices, Part, require_unseen
from ldaf_bench.messages import printable
from ldaf_bench.methods import push_images
from ldaf_bench.methods.pushed import MANIFEST, Pushed, chosen, load_pushed, origin_of, pushed_path
from ldaf_bench.methods.store import Prior
from ldaf_bench.resources import Resources
from ldaf_bench.stages.session import device_of, fitted

SHARD = 500
"""Data per task: 8 MB of G at n = 50, c = 10."""


def push(
    prior: Prior,
    dataset: Dataset,
    part: Part,
    store: Path,
    resources: Resources = Resources(),
    console: Console | None = None,
    *,
    tolerance: float | None = None,
    at_most: int | None = None,
) -> Pushed:
    """The prior's pushforward on one part of the data: made unless it is under `store`, and stored there.

    `tolerance` is that of the Krylov spaces. `at_most` takes so many points at most, spread over the part: for what is
    looked at on prior data. Refuses, with a `LeakError`, a prior that saw a certificate or test point.
    """
    console = console or Console()
    splits = prior.config.splits(dataset)
    require_unseen(prior.seen, splits)
    indices = chosen(splits, part, at_most)
    origin = origin_of(prior, splits, part, tolerance, at_most)
    path = pushed_path(store, origin)

    def say(sentence: str) -> None:
        console.print(printable(sentence), markup=False, highlight=False)

    found = if_valid(load_pushed, path, say)
    if found is not None:
        return found
    begun = time.perf_counter()
    with whole_directory(path) as directory:
        arrays: dict[str, Any] = {}
        job = _Job(prior, tolerance, fitted(resources))
        for begin, results in _shards(job, dataset, indices, f"pushing the {part} part", console):
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
        write_manifest(
            directory,
            MANIFEST,
            {**vars(origin), "num_data": len(indices), "worst_error": worst, "seconds": time.perf_counter() - begun},
        )
    return load_pushed(path)


class _Job(NamedTuple):
    """What every shard's task needs besides its images."""

    prior: Prior
    tolerance: float | None
    resources: Resources


def _shards(
    job: _Job, dataset: Dataset, indices: Indices, title: str, console: Console
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(first place, arrays) of every shard as it is done; never more shards under way than twice the workers."""
    held, resources = ray.put(job), job.resources
    task = _push_shard.options(num_cpus=resources.cpus_per_worker, num_gpus=resources.gpus_per_worker)
    begins = range(0, len(indices), SHARD)
    waiting = iter(begins)
    running: dict[Any, int] = {}

    def start() -> None:
        for begin in waiting:
            images = dataset.images[indices[begin : begin + SHARD]]
            running[task.remote(held, images)] = begin
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
def _push_shard(job: _Job, images: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, Any]:
    """(M, G) of one shard, in a worker."""
    device = device_of(job.resources)
    batch = torch.from_numpy(images.copy()).to(device)
    pushed, features = push_images(job.prior.config, job.prior.model().to(device), batch, job.tolerance)
    return {name: value.cpu().numpy() for name, value in {**pushed._asdict(), "features": features}.items()}
