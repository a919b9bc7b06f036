"""Decoders of the files in which FashionMNIST and CIFAR-10 travel: idx, pickled batches, PNG sprites with JSON labels.

Every decoder takes one directory or file and returns arrays, or raises a `DataError` that names the file. None of them
executes anything that a file says.
"""

from __future__ import annotations

import gzip
import json
import math
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ldaf_bench.data.dataset import DataError, Images, Labels

LIMIT = 2**30
"""No file of these data sets decodes to more bytes; a header that promises more is not believed."""
BROKEN_IMAGE = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What pillow raises for an image that is not what it should be."""


class Arrays(NamedTuple):
    """Decoded data, training points first."""

    images: Images
    labels: Labels
    num_test: int


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, compressed if its name ends in .gz."""
    opener: Callable[[Path, str], Any] = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            magic = file.read(4)
            if len(magic) < 4 or magic[:3] != b"\0\0\x08" or not 1 <= magic[3] <= 4:
                raise DataError(f"{path} is not an idx file of bytes: it starts with {magic.hex()}.")
            head = file.read(4 * magic[3])
            shape = struct.unpack(f">{magic[3]}I", head)
            size = math.prod(shape)
            if size > LIMIT:
                raise DataError(f"{path} claims to hold {size} bytes, more than this program reads.")
            # One byte more than promised, so that gzip also reaches and checks its own trailer.
            values = file.read(size + 1)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path} is truncated or damaged ({error}).") from error
    if len(values) != size:
        much = "less" if len(values) < size else "more"
        raise DataError(f"{path} is truncated or damaged: it holds {much} than the {size} bytes that it promises.")
    return np.frombuffer(values, np.uint8).reshape(shape)


class _Array:
    """Stands in for a numpy array while a batch is unpickled: keeps its state and does nothing else."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state

    def bytes(self) -> NDArray[np.uint8]:
        """The array, if its state is that of a plain one of unsigned bytes."""
        match self.state:
            case (1, (int(), int()) as shape, _Dtype(name="u1"), False | 0, str() | bytes() as raw):
                flat = np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, np.uint8)
                return flat.reshape(shape)
        raise ValueError("its data are not a table of bytes")


class _Dtype:
    """Stands in for a numpy dtype while a batch is unpickled."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def __setstate__(self, state: object) -> None:
        pass


def _reconstruct(*_: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"it wants the codec {encoding!r}")
    return text.encode("latin1")


class _BatchReader(pickle.Unpickler):
    """Knows the five names that a pickled table of bytes needs, each replaced by an inert stand-in."""

    names = {  # noqa: RUF012 - a constant
        ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.names:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no table of bytes needs")
        return self.names[module, name]


def read_batch(path: Path) -> tuple[Images, Labels]:
    """The images and labels of one of CIFAR's `data_batch` pickles; nothing in it can run."""
    try:
        with path.open("rb") as file:
            content = _BatchReader(file, encoding="latin1").load()
        images, labels = content["data"].bytes(), np.array(content["labels"])
        if images.shape[1] != 3 * 32 * 32 or labels.shape != images.shape[:1] or labels.dtype.kind != "i":
            raise ValueError(f"it holds data of shape {images.shape} with labels of shape {labels.shape}")
    # A damaged pickle may raise nearly anything; none of it is ours.
    except Exception as error:
        raise DataError(f"{path} is truncated, damaged or not one of CIFAR's batches ({error}).") from error
    return images.reshape(-1, 3, 32, 32), labels.astype(np.int64)


def read_sprite(path: Path) -> Images:
    """The 32×32 images of a PNG in which every row of pixels is one image, row by row."""
    try:
        with Image.open(path, formats=("PNG",)) as image:
            if image.mode != "RGB" or image.width != 32 * 32:
                raise DataError(
                    f"{path} must be an RGB image 1024 pixels wide, but is {image.mode} and {image.width} wide."
                )
            pixels = np.asarray(image)
    except BROKEN_IMAGE as error:
        raise DataError(f"{path} is truncated or damaged ({error}).") from error
    return pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)


def read_json_labels(path: Path) -> Labels:
    """A JSON list of integers."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is truncated or damaged ({error}).") from error
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value < 10 for value in values):
        raise DataError(f"{path} must be a list of labels from 0 to 9, but is something else.")
    return np.array(values, np.int64)


def _present(path: Path) -> Path | None:
    """The file itself or its .gz, whichever is there."""
    return next((found for found in (path, path.with_name(f"{path.name}.gz")) if found.is_file()), None)


def fashionmnist(directory: Path) -> Arrays:
    """The four idx files, compressed or not, in this directory, torchvision's place below it, or Debian's."""
    parts = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    for place in (".", "FashionMNIST/raw", "usr/share/datasets/fashion-mnist"):
        found = [path for part in parts if (path := _present(directory / place / part))]
        if len(found) == len(parts):
            return _join_idx(*map(read_idx, found), where=directory / place)
    raise DataError(f"{directory} does not hold the four files {', '.join(parts)} (or the same with .gz).")


def _join_idx(*arrays: NDArray[np.uint8], where: Path) -> Arrays:
    train, train_labels, test, test_labels = arrays
    fits = train.ndim == 3 and train.shape[1:] == test.shape[1:]
    if not fits or train_labels.shape != train.shape[:1] or test_labels.shape != test.shape[:1]:
        raise DataError(f"The idx files in {where} do not fit together: {[array.shape for array in arrays]}.")
    images = np.concatenate([train, test])[:, None]
    return Arrays(images, np.concatenate([train_labels, test_labels]).astype(np.int64), len(test))


def cifar10(directory: Path) -> Arrays:
    """CIFAR's six batches: torchvision's pickles or the mirror's sprites, in this directory or their usual ones."""
    batches = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for place in (directory, directory / "cifar-10-batches-py"):
        if all((place / batch).is_file() for batch in batches):
            parts = [read_batch(place / batch) for batch in batches]
            labels = np.concatenate([part[1] for part in parts])
            return Arrays(np.concatenate([part[0] for part in parts]), labels, len(parts[-1][1]))
    for place in (directory, directory / "package"):
        if all((place / f"{batch}.png").is_file() for batch in batches):
            return _join_sprites([place / f"{batch}.png" for batch in batches], place)
    raise DataError(f"{directory} does not hold the six batches {', '.join(batches)} (or the same with .png).")


def _join_sprites(paths: list[Path], place: Path) -> Arrays:
    # The package spells its label files this way.
    train, test = read_json_labels(place / "train_lables.json"), read_json_labels(place / "test_lables.json")
    sprites = [read_sprite(path) for path in paths]
    counts = [len(sprite) for sprite in sprites]
    if sum(counts[:-1]) != len(train) or counts[-1] != len(test):
        raise DataError(f"The sprites in {place} hold {counts} images for {len(train)} and {len(test)} labels.")
    # Sprites have their channels last; copying them into place once gives the order that networks want.
    images = np.concatenate(sprites, out=np.empty((sum(counts), 3, 32, 32), np.uint8))
    return Arrays(images, np.concatenate([train, test]), len(test))
