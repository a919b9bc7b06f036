"""Checkpoints of a training, kept by one process on the driver's node: workers elsewhere need no common disk.

Ray's own checkpoints are uploaded by the worker that took them, which has to see the driver's folder.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ldaf_bench.artifacts import whole_directory

TENSORS, STATE = "training.safetensors", "training.json"
KEPT = 2
"""Checkpoints of one start that stay."""
Checkpoint = tuple[dict[str, torch.Tensor], dict[str, Any]]
"""Tensors of the model and the optimizer; step, curve and starts."""


def save_checkpoint(place: Path, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
    """Write a checkpoint, and remove all but the last few."""
    with whole_directory(place / f"checkpoint_{state['step']:012}") as directory:
        save_file(tensors, directory / TENSORS)
        (directory / STATE).write_text(json.dumps(state), encoding="utf-8")
    for old in sorted(place.glob("checkpoint_*/"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def newest_checkpoint(run: Path) -> Checkpoint | None:
    """The checkpoint of all starts of a run that is furthest on and can be read.

    Whoever still runs may remove one while it is read.
    """
    for directory in sorted(run.glob("*/checkpoint_*/"), key=lambda path: path.name, reverse=True):
        with contextlib.suppress(OSError, ValueError, SafetensorError):
            return load_file(directory / TENSORS), json.loads((directory / STATE).read_text(encoding="utf-8"))
    return None


def next_start(run: Path) -> Path:
    """A folder for the checkpoints of a new start.

    The workers of a driver that was killed live on for some seconds. So every start writes into a folder of its own
    and only reads those of earlier ones: nobody writes where another does.
    """
    return run / str(1 + max(_starts(run), default=0))


def _starts(run: Path) -> Iterator[int]:
    return (int(path.name) for path in run.glob("*/") if path.name.isdigit())


@ray.remote(num_cpus=0, max_restarts=0)
class Keeper:
    """The one process that writes the checkpoints of a run."""

    def __init__(self, run: str) -> None:
        self.run = Path(run)
        self.place = next_start(self.run)
        self.place.mkdir(parents=True)

    def load(self) -> Checkpoint | None:
        """The newest one."""
        return newest_checkpoint(self.run)

    def save(self, tensors: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        """It is on the disk when this returns."""
        save_checkpoint(self.place, tensors, state)
