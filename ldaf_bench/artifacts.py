"""Artifacts: files named by what determines them, written whole or not at all, checked when they are read."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class ArtifactError(Exception):
    """An artifact is missing, damaged or not what it says."""


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that name a JSON value: the same on every machine, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory that becomes `path` when the block ends well, and vanishes when it does not.

    If another process made `path` meanwhile, that one stays: what has the same name has the same content. What killed
    processes of this machine left behind is removed first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    host = socket.gethostname()
    for left in path.parent.glob(f".{path.name}.{host}.*.part"):
        if not _alive(left.name.split(".")[-2]):
            shutil.rmtree(left, ignore_errors=True)
    temporary = path.parent / f".{path.name}.{host}.{os.getpid()}.part"
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        else:
            _sync(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _alive(process: str) -> bool:
    return process.isdigit() and Path(f"/proc/{process}").exists()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(directory: Path, name: str, content: Mapping[str, Any]) -> None:
    """`content` as JSON, with the checksum of every file that is in the directory already."""
    files = {file.name: file_sha256(file) for file in sorted(directory.iterdir())}
    text = json.dumps({**content, "files": files}, indent=1, allow_nan=False)
    (directory / name).write_text(text + "\n", encoding="utf-8")


def read_manifest(directory: Path, name: str) -> dict[str, Any]:
    """What `write_manifest` wrote, after checking every file against its checksum."""
    path = directory / name
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        files = dict(content["files"])
    except FileNotFoundError:
        raise ArtifactError(f"There is no {name} in {directory}: nothing was finished there.") from None
    except (ValueError, TypeError, KeyError) as error:
        raise ArtifactError(f"{path} is damaged ({error}): delete {directory} and run again.") from None
    for file, expected in files.items():
        # Names come from a file that anyone may have edited: they must not lead elsewhere.
        inside = Path(file).name == file and (directory / file).is_file()
        if not inside or file_sha256(directory / file) != expected:
            raise ArtifactError(
                f"{directory / Path(file).name} is missing or was changed: delete {directory} and run again."
            )
    return content


@contextlib.contextmanager
def exclusive(path: Path, otherwise: str) -> Iterator[None]:
    """Hold the lock file at `path`; if another process holds it, an `ArtifactError` that says `otherwise`.

    The operating system takes the lock from a process that dies.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(f"{otherwise} (it holds {path}): wait for it, or stop it.") from None
        yield
