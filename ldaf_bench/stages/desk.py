"""The desk: the one process that writes for the cluster, and where workers say how far they are.

It stands on the driver's node, so workers need no common disk, and one serves all networks and posteriors of a run: a
process takes seconds to start. It keeps nothing but words. If it is lost, Ray starts it again and asks it once more,
and whatever is written twice is written once: equal names have equal content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import ray
import torch

from ldaf_bench.methods import METHODS
from ldaf_bench.stages.checkpoints import Checkpoint, newest_checkpoint, save_checkpoint
from ldaf_bench.stages.session import this_node
from ldaf_bench.store.posteriors import (
    Posterior,
    integration_path,
    load_integration,
    load_posterior,
    posterior_path,
    save_convergence,
    save_integration,
    save_posterior,
)
from ldaf_bench.store.store import Store, load_from, open_store
from ldaf_bench.theory.integrate import Integration

Word = Mapping[str, Any]
RESTARTS = 10
AT_ONCE = 8
"""Calls at a time: a checkpoint that is written must not keep others from reading a word."""


@ray.remote(num_cpus=0, max_restarts=RESTARTS, max_task_retries=RESTARTS, max_concurrency=AT_ONCE)
class Desk:
    """Writes to the store at a place."""

    def __init__(self, place: str) -> None:
        self.store = open_store(place)
        self.words: dict[str, Word] = {}
        self.urged: set[str] = set()

    # Trainings, each known by the key of its checkpoints.

    def post(self, run: str, word: Word) -> bool:
        """Replace a training's word; the answer is whether a checkpoint was asked for since the last one."""
        self.words[run] = word
        urged = run in self.urged
        self.urged.discard(run)
        return urged

    def urge(self, run: str) -> None:
        """Ask the workers of a training for a checkpoint."""
        self.urged.add(run)

    def read(self, run: str) -> Word:
        """What was posted last."""
        return self.words.get(run, {})

    def newest_checkpoint(self, run: str) -> Checkpoint | None:
        """Where to resume."""
        return newest_checkpoint(self.store, run)

    def save_checkpoint(self, start: str, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """It is in the store when this returns."""
        save_checkpoint(self.store, start, tensors, state)

    # Posteriors.

    def save_posterior(self, identity: str, planned: Mapping[str, Any], source: str, posterior: Posterior) -> None:
        """Write a posterior."""
        save_posterior(self.store, identity, planned, source, posterior)

    def posterior(self, identity: str, method: str, source: str) -> Posterior:
        """Read a posterior of a method."""
        restore = METHODS[method].restore
        assert restore is not None
        load = partial(load_posterior, source=source, restore=restore)
        return load_from(self.store, load, posterior_path(identity))

    def save_integration(
        self, identity: str, source: str, posterior: str, integration: Integration, about: dict[str, Any]
    ) -> None:
        """Write an integration."""
        save_integration(self.store, identity, source, posterior, integration, about)

    def integration(self, identity: str, source: str) -> Integration:
        """Read an integration."""
        return load_from(self.store, partial(load_integration, source=source), integration_path(identity)).integration

    def save_convergence(self, identity: str, source: str, rows: list[dict[str, Any]]) -> None:
        """Write a convergence run."""
        save_convergence(self.store, identity, source, rows)


@contextlib.contextmanager
def open_desk(store: Store) -> Iterator[Any]:
    """A desk that is gone afterwards."""
    desk = Desk.options(scheduling_strategy=this_node()).remote(store.place)  # type: ignore[attr-defined]
    try:
        yield desk
    finally:
        if ray.is_initialized():
            ray.kill(desk)
