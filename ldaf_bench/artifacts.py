"""Artifacts: directories named by what determines them, written whole or not at all, checked when they are read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

_OURS: set[Path] = set()
"""Temporary directories of this process that are in use."""
_SWEEPING = threading.Lock()


class ArtifactError(Exception):
    """An artifact is missing, damaged or not what it says."""


class StoreError(Exception):
    """The place where artifacts are kept cannot be used now; the message is one sentence or two."""


def store_error(error: BaseException | None) -> StoreError | None:
    """The `StoreError` behind an exception, if that is its cause: Ray wraps what was raised in another process."""
    while error is not None:
        if type(error) is StoreError:
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None


def no_space(error: BaseException) -> bool:
    """Whether the disk is full. Not every library says so by an `OSError`."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or "No space left on device" in str(error)


@contextlib.contextmanager
def plain_if_full(path: Path) -> Iterator[None]:
    """Turns whatever says that the disk is full into a `StoreError` that says it plainly."""
    try:
        yield
    except Exception as error:
        if not no_space(error):
            raise
        where = getattr(error, "filename", None) or path
        raise StoreError(
            f"The disk of {where} is full. Make room there and run the same command again to resume."
        ) from error


def fingerprint(value: Any) -> str:
    """Sixteen hexadecimal digits that name a JSON value: the same on every machine, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_sha256(path: Path) -> str:
    """Of the file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def temporary_directory(parent: Path, name: str) -> Iterator[Path]:
    """A hidden directory in `parent` that is gone afterwards.

    What processes of this machine that were killed left behind under the same name is removed first.
    """
    begin = f".{name}.{socket.gethostname()}."
    with _SWEEPING:  # a thread must not take what another has just made for a leftover
        for left in parent.glob(f"{begin}*.part"):
            process = left.name.removeprefix(begin).split("-")[0]
            if left not in _OURS and not _is_another_process(process):
                shutil.rmtree(left, ignore_errors=True)
        directory = Path(tempfile.mkdtemp(prefix=f"{begin}{os.getpid()}-", suffix=".part", dir=parent))
        _OURS.add(directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        _OURS.discard(directory)


def _is_another_process(number: str) -> bool:
    if not number.isdigit() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A temporary directory that becomes `path` when the block ends well, and vanishes when it does not.

    If another process made `path` meanwhile, that one stays: what has the same name has the same content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path.parent, path.name) as outer:
        # Made here, so that it gets the permissions that people expect rather than those of a temporary file.
        inner = outer / path.name
        inner.mkdir()
        yield inner
        for file in inner.iterdir():
            _sync(file)
        _sync(inner)
        try:
            inner.rename(path)
        except OSError:
            if not path.is_dir():
                raise
        else:
            _sync(path.parent)


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file that becomes `path` when the block ends well, and vanishes when it does not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_directory(path.parent, path.name) as directory:
        inner = directory / path.name
        yield inner
        _sync(inner)
        inner.replace(path)
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_manifest(directory: Path, name: str, content: Mapping[str, Any]) -> None:
    """`content` as JSON, with the checksum of every file that is in the directory already, and of itself."""
    files = {file.name: file_sha256(file) for file in sorted(directory.iterdir())}
    whole = {**content, "files": files}
    text = json.dumps({**whole, "checksum": fingerprint(whole)}, indent=1, allow_nan=False)
    (directory / name).write_text(text + "\n", encoding="utf-8")


def read_record(path: Path) -> dict[str, Any]:
    """The content of a manifest, after checking its own checksum; its files need not be there."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        right = content.pop("checksum") == fingerprint(content)
    except FileNotFoundError:
        raise ArtifactError(f"There is no {path.name} in {path.parent}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise ArtifactError(f"{path} is damaged ({error}).") from None
    if not right:
        raise ArtifactError(f"{path} was changed.")
    return dict(content)


def read_manifest(
    directory: Path, name: str, required: Collection[str] | Callable[[Mapping[str, Any]], Collection[str]]
) -> dict[str, Any]:
    """What `write_manifest` wrote, after checking it and all files, which must be the required ones.

    Which files these are may follow from the content.
    """
    path = directory / name
    if not directory.exists():
        raise ArtifactError(f"There is no {directory}.")
    content = read_record(path)
    try:
        files = dict(content["files"])
        names = set(required(content) if callable(required) else required)
        plain = all(Path(file).name == file for file in names)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}).") from None
    if not plain or files.keys() != names:
        raise ArtifactError(f"{path} was changed.")
    for file in sorted(names):
        if not (directory / file).is_file() or file_sha256(directory / file) != files[file]:
            raise ArtifactError(f"{directory / file} is missing or was changed.")
    return content
