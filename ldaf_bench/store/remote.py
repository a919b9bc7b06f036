"""A store at a URI that pyarrow's filesystems know (s3://, gs://, abfs://, file://, …), with copies on this machine.

Content is uploaded first and the manifest last, so that nobody ever sees half an artifact: what has no manifest is not
there. Of two processes that write the same artifact at the same time the later one wins; a mix of both, which needs two
different results under one key, is noticed by its checksums. Copies are kept under the hash of their manifest, and so
never change.

Credentials come from the environment. A URI with credentials in it is refused, and of any URI only scheme, host and
path are shown to people.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import posixpath
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from ldaf_bench.artifacts import StoreError, fingerprint, plain_if_full, temporary_directory, whole_file
from ldaf_bench.store.patience import Patience

CACHE = "LDAF_BENCH_CACHE"
"""Environment variable: the folder for local copies."""
OBJECT_STORES = {"s3", "gcs", "abfs"}
"""Filesystems whose files appear when they are whole."""
SECRET = re.compile("key|secret|token|passw|sas|sig|cred", re.IGNORECASE)
CHUNK = 4 << 20
LISTINGS = 10
"""Times that a listing is tried while folders come and go in it."""


def shown(place: str) -> str:
    """The URI as people may read it; a `StoreError` if it holds credentials, which would end in logs."""
    parts = urlsplit(place)
    user, _, host = parts.netloc.rpartition("@")
    if parts.scheme in ("abfs", "abfss") and not parts.password:
        user, host = "", parts.netloc  # abfs://container@account has no user
    name = f"{parts.scheme}://{host}{parts.path}".rstrip("/")
    if user or any(SECRET.search(key) for key, _ in parse_qsl(parts.query)):
        raise StoreError(f"The URI {name} … holds credentials: put them into the environment instead.")
    return name


class Remote:
    """See `Store`."""

    def __init__(self, place: str, filesystem: FileSystem | None = None) -> None:
        self.place, self.name = place, shown(place)
        # One request for a small file in place of three.
        quick = f"{'&' if '?' in place else '?'}allow_delayed_open=true" if place.startswith("s3:") else ""
        try:
            found, path = FileSystem.from_uri(place + quick)
        except (pa.ArrowException, OSError, ValueError) as error:
            reason = " ".join(str(error).replace(place, self.name).split())
            raise StoreError(f"{self.name} cannot be opened ({reason.rstrip('.')}).") from error
        self.filesystem = filesystem or found
        self.root = path.rstrip("/")
        base = os.environ.get(CACHE) or Path.home() / ".cache" / "ldaf_bench"
        self.cache = Path(base) / fingerprint(place)
        self.patience = Patience(self.name)

    def __reduce__(self) -> tuple[type[Remote], tuple[str]]:
        return Remote, (self.place,)

    @property
    def retries(self) -> int:
        return self.patience.retries

    def exists(self, key: str) -> bool:
        return self._manifest_name(key) is not None

    def children(self, key: str) -> list[str]:
        begin = f"{self._path(key)}/"
        found = (path.removeprefix(begin).split("/") for path in self._files(key) if path.endswith(".json"))
        return sorted({names[0] for names in found if len(names) > 1})

    def get(self, key: str) -> Path:
        with contextlib.suppress(FileNotFoundError):  # it may be removed while it is looked for
            if (name := self._manifest_name(key)) is not None:
                content = self._read(f"{key}/{name}")
                path = self._copy(key, content)
                if not path.is_dir():
                    self._download(key, name, content, path)
                return path
        return self.cache / key / "missing"

    def forget(self, key: str) -> bool:
        shutil.rmtree(self.cache / key, ignore_errors=True)
        return True

    @contextlib.contextmanager
    def put(self, key: str) -> Iterator[Path]:
        with self._new(key) as directory:
            yield directory
            (manifest,) = directory.glob("*.json")
            if self.exists(key):  # made by another process meanwhile, and the same
                return
            for file in sorted(directory.iterdir()):
                if file != manifest:
                    self._write(f"{key}/{file.name}", file)
            self._write(f"{key}/{manifest.name}", manifest)
            _rename(directory, self._copy(key, manifest.read_bytes()))

    def remove(self, key: str) -> None:
        for path in self._files(key):
            if path.endswith(".json"):  # first what says that the rest is there
                self._delete(path)
        with contextlib.suppress(FileNotFoundError):
            self.patience(lambda: self.filesystem.delete_dir(self._path(key)))
        self.forget(key)

    def set_aside(self, key: str) -> str:
        number = 1
        while self._files(aside := f"{key}.damaged{number}"):
            number += 1
        for path in self._files(key):
            target = f"{self._path(aside)}/{posixpath.basename(path)}"
            with contextlib.suppress(FileNotFoundError):  # another process may be doing the same
                self._making_folders(target, partial(self.filesystem.copy_file, path, target))
        self.remove(key)
        return f"{self.name}/{aside}"

    @contextlib.contextmanager
    def lock(self, name: str, busy: str, say: Callable[[str], None] | None = None) -> Iterator[None]:
        """Such a place cannot lock. Two processes may do the same work there; what they write is the same."""
        yield

    def fetch(self, key: str, names: Sequence[str]) -> Path:
        folder = self.cache / "files" / key
        with plain_if_full(self.cache):
            folder.mkdir(parents=True, exist_ok=True)
            for name in names:
                (folder / name).unlink(missing_ok=True)
                with contextlib.suppress(FileNotFoundError), whole_file(folder / name) as temporary:
                    self._save(f"{key}/{name}", temporary)
        return folder

    def send(self, key: str, names: Sequence[str]) -> None:
        folder = self.cache / "files" / key
        for name in names:
            if (folder / name).exists():
                self._write(f"{key}/{name}", folder / name)
            else:
                self._delete(self._path(f"{key}/{name}"))

    def _path(self, key: str) -> str:
        return "/".join(filter(None, (self.root, key.strip("/"))))

    def _copy(self, key: str, manifest: bytes) -> Path:
        """Where the local copy with this manifest is. It ends with the key, as artifacts are checked by their names."""
        return self.cache / key / hashlib.sha256(manifest).hexdigest()[:16] / key

    @contextlib.contextmanager
    def _new(self, key: str) -> Iterator[Path]:
        """A directory to fill; not below that of the copies, which may be forgotten at any time."""
        with plain_if_full(self.cache):
            self.cache.mkdir(parents=True, exist_ok=True)
            with temporary_directory(self.cache, key.replace("/", "_")) as outer:
                directory = outer / posixpath.basename(key)
                directory.mkdir()
                yield directory

    def _download(self, key: str, name: str, content: bytes, path: Path) -> None:
        """Whole or not at all. What is damaged at the place arrives damaged; who reads it checks it."""
        with self._new(key) as directory:
            (directory / name).write_bytes(content)
            for file in _listed(content):
                with contextlib.suppress(FileNotFoundError):
                    self._save(f"{key}/{file}", directory / file)
            _rename(directory, path)

    def _files(self, key: str) -> list[str]:
        """The paths of all files below a key."""
        return [info.path for info in self._infos(key, recursive=True)]

    def _infos(self, key: str, *, recursive: bool) -> list[Any]:
        selector = FileSelector(self._path(key), recursive=recursive, allow_not_found=True)

        def listed() -> list[Any]:
            for _ in range(LISTINGS - 1):
                # Arrow looks twice whether a local folder is there; one that another process makes in between is an
                # error, although it may be missing.
                with contextlib.suppress(FileNotFoundError):
                    return self.filesystem.get_file_info(selector)
            return self.filesystem.get_file_info(selector)

        infos = self.patience(listed)
        return [info for info in infos if info.type == FileType.File and not info.base_name.startswith(".")]

    def _manifest_name(self, key: str) -> str | None:
        names = (info.base_name for info in self._infos(key, recursive=False))
        return next((name for name in names if name.endswith(".json")), None)

    def _read(self, key: str) -> bytes:
        def read() -> bytes:
            with self.filesystem.open_input_stream(self._path(key)) as stream:
                return bytes(stream.read())

        return self.patience(read)

    def _save(self, key: str, target: Path) -> None:
        """Download a file."""
        size = self.patience(lambda: self.filesystem.get_file_info(self._path(key))).size or 0

        def save() -> None:
            with self.filesystem.open_input_stream(self._path(key)) as stream, target.open("wb") as file:
                shutil.copyfileobj(stream, file, CHUNK)

        self.patience(save, size)

    def _write(self, key: str, content: Path | bytes) -> None:
        """Upload a file, which appears when it is whole. Each writer has a temporary file of its own."""
        path = self._path(key)
        whole = self.filesystem.type_name in OBJECT_STORES
        folder, name = posixpath.split(path)
        target = path if whole else posixpath.join(folder, f".{name}.{uuid.uuid4().hex}.part")

        def write() -> None:
            opened = content.open("rb") if isinstance(content, Path) else io.BytesIO(content)
            with opened as source, self.filesystem.open_output_stream(target) as stream:
                shutil.copyfileobj(source, stream, CHUNK)
            if not whole:
                self.filesystem.move(target, path)

        self._making_folders(target, write, content.stat().st_size if isinstance(content, Path) else len(content))

    def _making_folders(self, path: str, call: Callable[[], None], num_bytes: int = 0) -> None:
        """Some filesystems want a folder before a file in it."""
        try:
            self.patience(call, num_bytes)
        except FileNotFoundError:
            self.patience(lambda: self.filesystem.create_dir(posixpath.dirname(path), recursive=True))
            self.patience(call, num_bytes)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.patience(lambda: self.filesystem.delete_file(path))


def _listed(manifest: bytes) -> list[str]:
    """The files of a manifest; none if it cannot be read."""
    try:
        names = [str(name) for name in json.loads(manifest)["files"]]
    except (ValueError, KeyError, TypeError):
        return []
    return [name for name in names if posixpath.basename(name) == name and not name.startswith(".")]


def _rename(directory: Path, path: Path) -> None:
    """Into the cache; if another process was faster, that copy stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.rename(path)
    except OSError:
        if not path.is_dir():
            raise
