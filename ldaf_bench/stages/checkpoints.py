"""Checkpoints of a training in the store: they outlive the driver and its Ray, and workers need no common disk."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ldaf_bench.artifacts import ArtifactError, read_manifest, write_manifest
from ldaf_bench.store.store import Store, load_from

TENSORS, STATE, BEGIN = "training.safetensors", "training.json", "checkpoint_"
KEPT = 2
"""Checkpoints of one start that stay."""
Checkpoint = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors of the model and the optimizer; step, curve and starts."""


def save_checkpoint(store: Store, start: str, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint, and remove all but the last few of this start."""
    with store.put(f"{start}/{BEGIN}{state['step']:012}") as directory:
        save_file(tensors, directory / TENSORS)
        write_manifest(directory, STATE, state)
    for old in _checkpoints(store, start)[:-KEPT]:
        store.remove(f"{start}/{old}")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint."""
    state = read_manifest(path, STATE, {TENSORS})
    del state["files"]
    return load_file(path / TENSORS), state


def newest_checkpoint(store: Store, run: str) -> Checkpoint | None:
    """The checkpoint of all starts of a run that is furthest on and can be read.

    Whoever still runs may remove one while it is read.
    """
    starts = [f"{run}/{name}" for name in store.children(run)]
    found = [(name, f"{start}/{name}") for start in starts for name in _checkpoints(store, start)]
    for _, key in sorted(found, reverse=True):
        with contextlib.suppress(ArtifactError, OSError, SafetensorError):
            return load_from(store, load_checkpoint, key)
    return None


def _checkpoints(store: Store, start: str) -> list[str]:
    return [name for name in store.children(start) if name.startswith(BEGIN)]


def next_start(store: Store, run: str) -> str:
    """A key for the checkpoints of a new start.

    The workers of a driver that was killed live on for some seconds. So every start writes under a key of its own and
    only reads what is under those of earlier ones: nobody writes where another does.
    """
    start = f"{run}/{1 + max((int(name) for name in store.children(run) if name.isdigit()), default=0)}"
    with store.put(f"{start}/begun") as directory:  # so that the next start sees this one before its first checkpoint
        write_manifest(directory, "begun.json", {"host": socket.gethostname()})
    return start
