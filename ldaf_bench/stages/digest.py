r"""digest: one pass over a part of the data, written once, read memory-mapped.

The network sees every datum once: BatchNorm in eval mode, no augmentation, float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from torch import Tensor

from ldaf_bench.data.splits import Part, Splits, require_unseen
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import Method
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf
from ldaf_bench.resources import Placed
from ldaf_bench.sections import Spec
from ldaf_bench.stages.session import device_of
from ldaf_bench.stages.writer import Access
from ldaf_bench.store.digests import DigestKey, chosen, digest_key, save_digest
from ldaf_bench.store.store import Store, open_store
from ldaf_bench.theory.arguments import require_finite

SHARD = 500
"""Data at a time: 8 MB of G at n = 50, c = 10."""
REPORT_SECONDS = 2.0
Arrays = dict[str, "np.ndarray[Any, Any]"]
Shards = Iterator[tuple[int, Arrays]]
"""(first place, arrays) of every shard, in any order."""


@dataclass(frozen=True)
class Work:
    """A digest to make."""

    planned: DigestOf
    network: Network
    splits: Splits
    part: Part
    at_most: int | None
    """Of at most so many points, spread over the part."""
    images: Any
    """References to the images and labels of the whole part."""
    labels: Any
    placed: Placed
    access: Access

    @property
    def key(self) -> DigestKey:
        """Its key."""
        one = self.planned
        return digest_key(self.network, self.splits, one.method, one.spec, self.part, self.at_most)


def digest(work: Work, alone: bool, report: Callable[[dict[str, Any]], object]) -> None:
    """Make a digest and store it, in this process or by tasks of Ray. `report` is told how far it is.

    Refuses, with a `LeakError`, a network that saw a certificate or test point.
    """
    require_unseen(work.network.seen, work.splits)
    part, some = getattr(work.splits, work.part), chosen(work.splits, work.part, work.at_most)
    step = -(-len(part) // len(some))
    assert np.array_equal(part[::step], some)
    images, labels = ray.get(work.images)[::step], ray.get(work.labels)[::step]
    shards = _told(_here(work, images) if alone else _by_tasks(work, images), work, len(images), report)
    # Closed here: what is under way is cancelled while there is a Ray to cancel it.
    with closing(shards):
        if work.access.near:
            save_digest(open_store(work.access.place), work.key, labels, some, shards)
        else:
            held = [(begin, ray.put(arrays)) for begin, arrays in shards]
            work.access(save_held, work.key, labels, some, held)


def save_held(store: Store, key: DigestKey, labels: Any, indices: Any, held: Iterable[tuple[int, Any]]) -> None:
    """Write a digest whose shards are in the object store, one after the other."""
    save_digest(store, key, labels, indices, ((begin, ray.get(reference)) for begin, reference in held))


def digest_images(method: Method, spec: Spec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """A method's digest of uint8 images: eval mode, no gradients, float32 also in convolutions, finite."""
    model.eval()
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), exact:
        tensors = method.digest(spec, model, images)
    for name, tensor in tensors.items():
        require_finite(f"the digest's {name}", tensor)
    return tensors


def _told(shards: Shards, work: Work, num_data: int, report: Callable[[dict[str, Any]], object]) -> Any:
    last, done, total = time.monotonic(), 0, -(-num_data // SHARD)
    with closing(shards):  # type: ignore[type-var]
        for shard in shards:
            yield shard
            done += 1
            if time.monotonic() - last >= REPORT_SECONDS:
                last = time.monotonic()
                report({"digest": f"{work.planned.method}, {work.part} part", "shards": done, "num_shards": total})


def _here(work: Work, images: Any) -> Shards:
    """In this process."""
    device = device_of(work.placed.cpus_per_worker, work.placed.gpus_per_worker)
    model = work.network.model().to(device)
    for begin in range(0, len(images), SHARD):
        yield begin, _arrays(work.planned, model, images[begin : begin + SHARD], device)


def _arrays(planned: DigestOf, model: Classifier, images: Any, device: torch.device) -> Arrays:
    batch = torch.from_numpy(images.copy()).to(device)
    tensors: Mapping[str, Tensor] = digest_images(METHODS[planned.method], planned.digest_spec, model, batch)
    return {name: value.cpu().numpy() for name, value in tensors.items()}


def _by_tasks(work: Work, images: Any) -> Shards:
    """By tasks of Ray as they are done; never more under way than twice the workers."""
    own = work.placed
    held = ray.put((work.planned, work.network, own))
    # Not within the trial, which has no cores of its own to give.
    task = _digest_shard.options(
        num_cpus=own.cpus_per_worker, num_gpus=own.gpus_per_worker, scheduling_strategy="DEFAULT"
    )
    waiting = iter(range(0, len(images), SHARD))
    running: dict[Any, int] = {}
    try:
        while True:
            for begin in waiting:
                running[task.remote(held, images[begin : begin + SHARD])] = begin
                if len(running) >= 2 * own.workers:
                    break
            if not running:
                return
            (done,), _rest = ray.wait(list(running), num_returns=1)
            yield running.pop(done), ray.get(done)
    finally:
        for left in running:
            ray.cancel(left)


@ray.remote(max_retries=3)
def _digest_shard(held: tuple[DigestOf, Network, Placed], images: Any) -> Arrays:
    """The digest of one shard, in a worker."""
    planned, network, own = held
    device = device_of(own.cpus_per_worker, own.gpus_per_worker)
    return _arrays(planned, network.model().to(device), images, device)
