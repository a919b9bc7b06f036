"""DATASETS, and `load`, by which everything else gets its data: verified at every reading."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ldaf_bench.data import folder, sources, store
from ldaf_bench.data.dataset import DataError, Dataset, Summary


def read_digits(root: Path | None) -> Dataset:
    """1,797 handwritten digits of 8×8 pixels that come with scikit-learn; `root` is not used."""
    # Imported here because it takes a second, and only this data set needs it.
    from sklearn.datasets import load_digits

    source = load_digits()
    # 0 … 16 to 0 … 255, rounded to nearest.
    images = ((source.images.astype(np.int64) * 255 + 8) // 16).astype(np.uint8)
    return Dataset("digits", images[:, None], source.target.astype(np.int64), 0, tuple("0123456789"))


def read_folder(root: Path | None) -> Dataset:
    """A person's own images: `root` is a directory of class folders or a Parquet file."""
    if root is None:
        raise DataError("The data set folder needs a root: a directory of class folders or a Parquet file.")
    return folder.read(root)


@dataclass(frozen=True)
class Entry:
    """One data set: read directly, or decoded from files that `fetch` obtains."""

    about: str
    """What it is, for `--help`."""
    read: Callable[[Path | None], Dataset] | None = None
    """For data that need no fetching."""
    origin: sources.Origin | None = None
    """For data that do; then the decoded file is `<root>/<name>.safetensors`."""
    classes: tuple[str, ...] = ()
    """The names of the classes, if they are not read with the data."""
    sha256: str | None = None
    """The checksum of the right data; none for people's own."""
    shape: tuple[int, int, int, int] | None = None
    """(N, channels, height, width); none for people's own."""
    num_test: int = 0
    """How many of the N are the official test set."""


CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
DATASETS: dict[str, Entry] = {
    "digits": Entry(
        "scikit-learn's 1,797 handwritten digits, embedded",
        read=read_digits,
        sha256="c8a9a6fe1d9d285300777aacf9666b7b81b3823095698f26d444bf13f13f519f",
        shape=(1797, 1, 8, 8),
        classes=tuple("0123456789"),
    ),
    "fashionmnist": Entry(
        "70,000 grey images of clothes, 28×28",
        origin=sources.FASHIONMNIST,
        classes=CLOTHES,
        sha256="97be8b7db2485cd019163180c11b1e241685c29c8c5974eefae6fc3a256982b0",
        shape=(70_000, 1, 28, 28),
        num_test=10_000,
    ),
    "fashionmnist_pooled": Entry(
        "the same 70,000; the test part is drawn from all of them, so that it is distributed like the rest",
        origin=sources.FASHIONMNIST,
        classes=CLOTHES,
        sha256="35b6602d954e23804ede80c96d6cb5f474d3ba2980fa17bf84823f67bf922441",
        shape=(70_000, 1, 28, 28),
    ),
    "cifar10": Entry(
        "60,000 colour images of things and animals, 32×32",
        origin=sources.CIFAR10,
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        sha256="436aa52e72b85996599ebbd85a5c2c5535a248d4133848bf274066ee417c1aba",
        shape=(60_000, 3, 32, 32),
        num_test=10_000,
    ),
    "folder": Entry(
        "your own: a directory of class folders, or a Parquet file with the columns image and label",
        read=read_folder,
    ),
}  # fmt: skip


def entry_of(name: str) -> Entry:
    """The entry of this name."""
    if name not in DATASETS:
        raise DataError(f"{name!r} is not a data set; choose one of {', '.join(DATASETS)}.")
    return DATASETS[name]


def stored_path(name: str, root: Path) -> Path:
    """Where the decoded file of a fetched data set is."""
    return root / f"{name}.safetensors"


def verify(dataset: Dataset, expected: str | None) -> Dataset:
    """The data set itself if its checksum is the expected one, or none is known."""
    if expected is not None and dataset.sha256 != expected:
        raise DataError(
            f"The data of {dataset.name} were altered: their checksum is {dataset.sha256[:12]}…, "
            f"but that of the right data is {expected[:12]}…."
        )
    return dataset


def read_stored(name: str, root: Path) -> Dataset:
    """The decoded file of a fetched data set, memory-mapped and verified."""
    entry, path = entry_of(name), stored_path(name, root)
    if not path.is_file():
        raise DataError(f"{path} is not there.")
    return verify(Dataset(name, *store.read(path), entry.classes), entry.sha256)


def summarize(name: str, root: Path | None = None) -> Summary:
    """The summary of this data set; people's own data are read for it."""
    entry = entry_of(name)
    if entry.shape is not None and entry.sha256 is not None:
        return Summary(name, entry.sha256, entry.shape, entry.num_test, len(entry.classes))
    return load(name, root).summary


def load(name: str, root: Path | None = None) -> Dataset:
    """The data set of this name, verified; `root` is where `fetch` put it, or what `folder` reads."""
    entry = entry_of(name)
    if entry.read is not None:
        return verify(entry.read(root), entry.sha256)
    if root is None:
        raise DataError(f"The data set {name} needs a root: the directory that holds {name}.safetensors.")
    try:
        return read_stored(name, root)
    except DataError as error:
        command = f"python -m ldaf_bench.data {name} --root {shlex.quote(str(root))}"
        raise DataError(f"{error} Run `{command}` to fetch it.") from error
