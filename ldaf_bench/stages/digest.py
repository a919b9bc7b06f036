r"""digest: one pass over a part of the data, sharded over Ray, written once, read memory-mapped.

The network sees every datum once: BatchNorm in eval mode, no augmentation, float32.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from torch import Tensor

from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import Indices, Part, require_unseen
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import Method
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf
from ldaf_bench.resources import Resources
from ldaf_bench.sections import Spec
from ldaf_bench.stages.session import device_of, fitted
from ldaf_bench.store.digests import chosen, digest_key, save_digest
from ldaf_bench.store.store import Store
from ldaf_bench.theory.arguments import require_finite

SHARD = 500
"""Data per task: 8 MB of G at n = 50, c = 10."""


def digest(
    planned: DigestOf,
    network: Network,
    dataset: Dataset,
    part: Part,
    store: Store,
    resources: Resources,
    at_most: int | None = None,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make the digest of one part of the data and store it; of at most so many points, spread over the part.

    Refuses, with a `LeakError`, a network that saw a certificate or test point. `show` gets the shards that are done,
    and all.
    """
    splits = network.config.splits(dataset)
    require_unseen(network.seen, splits)
    indices = chosen(splits, part, at_most)
    key = digest_key(network, splits, planned.method, planned.spec, part, at_most)
    job = _Job(network, planned.method, planned.digest_spec, fitted(resources))
    # Closed here: what is under way is cancelled while there is a Ray to cancel it.
    with closing(_shards(job, dataset, indices, show)) as shards:
        save_digest(store, key, dataset, indices, shards)


def digest_images(method: Method, spec: Spec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """A method's digest of uint8 images: eval mode, no gradients, float32 also in convolutions, finite."""
    model.eval()
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), exact:
        tensors = method.digest(spec, model, images)
    for name, tensor in tensors.items():
        require_finite(f"the digest's {name}", tensor)
    return tensors


class _Job(NamedTuple):
    """What every shard's task needs besides its images."""

    network: Network
    method: str
    spec: Spec
    resources: Resources


def _shards(
    job: _Job, dataset: Dataset, indices: Indices, show: Callable[[int, int], None]
) -> Generator[tuple[int, dict[str, Any]]]:
    """(first place, arrays) of every shard as it is done; never more shards under way than twice the workers."""
    held, resources = ray.put(job), job.resources
    task = _digest_shard.options(num_cpus=resources.cpus_per_worker, num_gpus=resources.gpus_per_worker)
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
        for number in range(len(begins)):
            show(number, len(begins))
            (done,), _rest = ray.wait(list(running), num_returns=1)
            yield running.pop(done), ray.get(done)
            start()
    finally:
        for left in running:
            ray.cancel(left)


@ray.remote(max_retries=3)
def _digest_shard(job: _Job, images: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, Any]:
    """The digest of one shard, in a worker."""
    device = device_of(job.resources.cpus_per_worker, job.resources.gpus_per_worker)
    batch = torch.from_numpy(images.copy()).to(device)
    tensors = digest_images(METHODS[job.method], job.spec, job.network.model().to(device), batch)
    return {name: value.cpu().numpy() for name, value in tensors.items()}
