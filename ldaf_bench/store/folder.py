"""A store in a folder of this machine, or of a disk that all machines mount."""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ldaf_bench.artifacts import StoreError, plain_if_full, whole_directory

LOOK_SECONDS = 0.5
"""Who waits for a lock looks this often."""


class Folder:
    """See `Store`. An artifact is a directory of the folder, and appears by being renamed."""

    retries = 0

    def __init__(self, place: str | Path) -> None:
        self.path = Path(place)

    @property
    def place(self) -> str:
        return str(self.path.resolve())

    @property
    def name(self) -> str:
        return str(self.path)

    def exists(self, key: str) -> bool:
        return self.get(key).exists()

    def children(self, key: str) -> list[str]:
        # What begins with a dot is being written.
        return sorted(path.name for path in self.get(key).glob("*/") if not path.name.startswith("."))

    def get(self, key: str) -> Path:
        return self.path / key

    def forget(self, key: str) -> bool:
        return False

    @contextlib.contextmanager
    def put(self, key: str) -> Iterator[Path]:
        with plain_if_full(self.path), whole_directory(self.get(key)) as directory:
            yield directory

    def remove(self, key: str) -> None:
        shutil.rmtree(self.get(key), ignore_errors=True)

    def set_aside(self, key: str) -> str:
        path, number = self.get(key), 1
        while (aside := path.with_name(f"{path.name}.damaged{number}")).exists():
            number += 1
        path.rename(aside)
        return str(aside)

    @contextlib.contextmanager
    def lock(self, name: str, busy: str, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """The operating system takes the lock from a process that dies."""
        path = self.path / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            waiting = False
            while not _locked(file.fileno()):
                if say is None:
                    raise StoreError(f"{busy} (it holds {path}): wait for it, or stop it.")
                if not waiting:
                    say(f"{busy} (it holds {path}): waiting for it.")
                waiting = True
                time.sleep(LOOK_SECONDS)
            yield

    def fetch(self, key: str, names: Sequence[str]) -> Path:
        return self.get(key)

    def send(self, key: str, names: Sequence[str]) -> None:
        """They are there."""


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
