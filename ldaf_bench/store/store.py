"""The store: artifacts by their keys, in a folder or at a URI; and the one rule "make it unless it is there".

A key is a relative name such as `networks/<name>`. An artifact is a directory with one JSON file, its manifest, which
lists all other files with their checksums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol, TypeVar

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.store.folder import Folder
from ldaf_bench.store.remote import Remote

Loaded = TypeVar("Loaded")


class Store(Protocol):
    """What everything that reads or writes artifacts uses. Safe for several threads and several processes."""

    @property
    def place(self) -> str:
        """`open_store` makes the same store of it in another process."""

    @property
    def name(self) -> str:
        """The place as people may read it: without anything that could be a secret."""

    @property
    def retries(self) -> int:
        """Calls that had to be repeated, because the store did not answer."""

    def exists(self, key: str) -> bool:
        """Whether a whole artifact is there."""

    def children(self, key: str) -> list[str]:
        """Names of the directories right below a key that hold artifacts."""

    def get(self, key: str) -> Path:
        """A local directory with the artifact's files. If there is no such artifact, there is no such directory."""

    def forget(self, key: str) -> bool:
        """Drop the local copy of an artifact; False if the store has no copies."""

    def put(self, key: str) -> AbstractContextManager[Path]:
        """A local directory that becomes the artifact when the block ends well, and vanishes when it does not."""

    def remove(self, key: str) -> None:
        """Remove an artifact, or all artifacts below a key. It need not be there."""

    def set_aside(self, key: str) -> str:
        """Give an artifact another name; returns it."""

    def lock(self, name: str, busy: str, say: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        """Keep others from doing the same work at the same time.

        If another process has the lock: wait for it, after telling `say` the sentence `busy`; without `say`, a
        `StoreError` with that sentence. Locks save work and nothing else: what has the same key has the same content.
        """

    def fetch(self, key: str, names: Sequence[str]) -> Path:
        """A local directory with those of these plain files that are there, for reading and writing."""

    def send(self, key: str, names: Sequence[str]) -> None:
        """Publish plain files of that directory, in this order; remove those that are not in it."""


def open_store(place: str | Path) -> Store:
    """The store at a place: a URI if it has a scheme, else a folder."""
    return Remote(place) if isinstance(place, str) and "://" in place else Folder(place)


def load_from(store: Store, load: Callable[[Path], Loaded], key: str) -> Loaded:
    """What `load` reads. A local copy that is damaged is fetched once more."""
    path = store.get(key)
    if not path.exists():
        raise ArtifactError(f"There is no {key} in {store.name}.")
    return _load(store, load, key, path)


def _load(store: Store, load: Callable[[Path], Loaded], key: str, path: Path) -> Loaded:
    try:
        return load(path)
    except ArtifactError:
        if not store.forget(key):
            raise
        return load(store.get(key))


def find(store: Store, load: Callable[[Path], Loaded], key: str, say: Callable[[str], None]) -> Loaded | None:
    """What `load` reads; `None` if nothing is there.

    A damaged artifact is renamed, with a sentence to `say`, so that it can be made again.
    """
    path = store.get(key)
    if not path.exists():
        return None
    try:
        return _load(store, load, key, path)
    except ArtifactError as error:
        say(f"{error} It was set aside as {store.set_aside(key)} and is made again.")
        return None


def find_or_make(
    store: Store, load: Callable[[Path], Loaded], key: str, make: Callable[[], object], say: Callable[[str], None]
) -> Loaded:
    """What is there, made first unless it is there and whole. The one place of this rule."""
    found = find(store, load, key, say)
    if found is None:
        make()
        found = load_from(store, load, key)
    return found
