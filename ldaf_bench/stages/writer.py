"""How a trial reaches the store: by itself where it can, else through one process beside the store.

A store at a URI is reached from every machine, a folder from the driver's only. Elsewhere a process on the driver's
machine calls the function in place of the trial, so that workers need no common disk. It keeps nothing that is not in
the store: if it is lost, Ray starts it again and asks it once more, and what is written twice is the same.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ldaf_bench.artifacts import ArtifactError, StoreError
from ldaf_bench.stages.session import nodes
from ldaf_bench.store.digests import load_digest
from ldaf_bench.store.store import Store, load_from, open_store

Result = TypeVar("Result")
RESTARTS = 10
AT_ONCE = 8
"""Calls at a time: a checkpoint that is written must not keep others from writing an integration."""
SHARED_BYTES = 2 << 30
"""Digests that the writer holds in the object store at a time."""
Arrays = dict[str, "np.ndarray[Any, Any]"]
"""A digest as it travels: its tensors, and `labels`."""

_opened = lru_cache(open_store)


@ray.remote(num_cpus=0, max_restarts=RESTARTS, max_task_retries=RESTARTS, max_concurrency=AT_ONCE)
class Writer:
    """Calls functions of the store at a place, for those who do not see it."""

    def __init__(self, place: str) -> None:
        self.store = open_store(place)
        self.shared: dict[str, tuple[Any, int]] = {}
        self.sharing = threading.Lock()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function answers, given the store first."""
        return function(self.store, *arguments)

    def share(self, key: str) -> Any:
        """A reference to a digest's arrays in the object store, which all processes of a machine read without a copy.

        The oldest are let go when there are too many; who still uses one keeps it.
        """
        with self.sharing:
            if key not in self.shared:
                arrays = arrays_of(self.store, key)
                size = sum(array.nbytes for array in arrays.values())
                while self.shared and size + sum(other for _, other in self.shared.values()) > SHARED_BYTES:
                    del self.shared[next(iter(self.shared))]
                self.shared[key] = ray.put(arrays), size
            return self.shared[key][0]


def arrays_of(store: Store, key: str) -> Arrays:
    """The arrays of a stored digest, memory-mapped where the store is a folder."""
    digested = load_from(store, load_digest, key)
    return {name: tensor.numpy() for name, tensor in {**digested.tensors, "labels": digested.labels}.items()}


class Access(NamedTuple):
    """The store of a run, from wherever it is used. Small: it travels with every trial."""

    place: str
    node: str
    """The driver's machine."""
    writer: Any
    """None if every process of the run reaches the store by itself."""

    @property
    def near(self) -> bool:
        """Whether this process reaches the store."""
        return self.writer is None or ray.get_runtime_context().get_node_id() == self.node

    def __call__(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function whose first argument is the store, here or beside the store."""
        if self.near:
            return function(_opened(self.place), *arguments)
        try:
            return ray.get(self.writer.call.remote(function, *arguments))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ArtifactError | StoreError):
                raise error.cause from error
            raise

    def arrays(self, key: str) -> Arrays:
        """A digest's arrays, read-only."""
        if self.near:
            return arrays_of(_opened(self.place), key)
        return ray.get(ray.get(self.writer.share.remote(key)))


@contextlib.contextmanager
def open_access(store: Store, joined: bool) -> Iterator[Access]:
    """How trials reach the store. With a folder, and a Ray that has or may get other machines, there is a writer."""
    node = ray.get_runtime_context().get_node_id()
    alone = not joined and len(nodes()) == 1
    if alone or ("://" in store.place and not store.place.startswith("file:")):
        yield Access(store.place, node, None)
        return
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    writer = Writer.options(scheduling_strategy=here).remote(store.place)  # type: ignore[attr-defined]
    try:
        yield Access(store.place, node, writer)
    finally:
        if ray.is_initialized():
            ray.kill(writer)
