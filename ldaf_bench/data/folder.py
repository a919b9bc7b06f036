"""People's own images: a directory of class folders, or a Parquet file with the columns image and label.

Nothing is left out silently: an image that cannot be read, differs in size or colour, or a file that is no image is an
error that names it. Only hidden files and symbolic links are passed over, the former because systems scatter them, the
latter because they may lead anywhere.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from ldaf_bench.data.dataset import DataError, Dataset, Images
from ldaf_bench.data.formats import BROKEN_IMAGE

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Those that pillow decodes by itself; some others start programs."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
GREY = ("1", "L", "LA")
COLOUR = ("RGB", "RGBA", "RGBX", "P", "PA", "CMYK", "YCbCr", "LAB", "HSV")
BATCH = 256
"""Rows of a Parquet file that are in memory, encoded, at once."""


def read(root: Path) -> Dataset:
    """The images of a directory or of a Parquet file."""
    if root.is_dir():
        return read_directory(root)
    if root.is_file():
        return read_parquet(root)
    raise DataError(f"{root} is not there; give a directory of class folders or a Parquet file.")


class _Decoder:
    """Decodes images one after the other into one array, whose shape the first of them decides."""

    def __init__(self, num_images: int) -> None:
        self.num_images = num_images
        self.images: Images | None = None
        self.first = ""

    def put(self, index: int, file: Path | io.BytesIO, name: str) -> None:
        """Decode a file into row `index`; `name` is what an error calls it."""
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.mode not in (*GREY, *COLOUR):
                    raise DataError(f"{name} has pixels of mode {image.mode}; convert it to 8 bits per channel.")
                mode = "L" if image.mode in GREY else "RGB"
                pixels = np.asarray(image.convert(mode))
        except (*BROKEN_IMAGE, Image.DecompressionBombWarning) as error:
            raise DataError(f"{name} cannot be read as an image ({error}).") from error
        pixels = pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)
        if self.images is None:
            self.images, self.first = np.empty((self.num_images, *pixels.shape), np.uint8), name
        if pixels.shape != self.images.shape[1:]:
            shapes = [" × ".join(map(str, shape)) for shape in (pixels.shape, self.images.shape[1:])]
            raise DataError(
                f"{name} is of shape {shapes[0]} (channels, height, width), but {self.first} is of shape {shapes[1]}; "
                "make all images alike."
            )
        self.images[index] = pixels


def _strictly() -> warnings.catch_warnings[None]:
    """Pillow only warns about images that are suspiciously large; here that is an error."""
    return warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning)


def _visible(directory: Path) -> list[Path]:
    """What a directory holds, by name, without hidden files and symbolic links."""
    try:
        return sorted(path for path in directory.iterdir() if not path.name.startswith(".") and not path.is_symlink())
    except OSError as error:
        raise DataError(f"{directory} cannot be read ({error.strerror}).") from error


def _class_folders(directory: Path) -> list[Path]:
    return [path for path in _visible(directory) if path.is_dir()]


def _images_of(folder: Path) -> list[Path]:
    found = _visible(folder)
    for path in found:
        if not path.is_file() or path.suffix.lower() not in SUFFIXES:
            raise DataError(f"{path} is no image ({', '.join(SUFFIXES)}); class folders may hold nothing else.")
    if not found:
        raise DataError(f"{folder} holds no images (hidden files and symbolic links do not count).")
    return found


def _parts(root: Path) -> list[Path]:
    """[train, test] if these two folders of class folders are all that there is, or else [root]."""
    top = _class_folders(root)
    if [path.name for path in top] == ["test", "train"] and all(_class_folders(path) for path in top):
        return [root / "train", root / "test"]
    return [root]


def read_directory(root: Path) -> Dataset:
    """One folder per class, perhaps below `train` and `test`, which then is the official test set."""
    parts = _parts(root)
    folders = [{path.name: path for path in _class_folders(part)} for part in parts]
    odd = sorted(set(folders[0]) ^ set(folders[-1]))
    if odd:
        raise DataError(f"{parts[0]} and {parts[-1]} must hold the same class folders, but {odd[0]} is in one only.")
    classes = sorted(folders[0])
    if len(classes) < 2:
        raise DataError(f"{parts[0]} must hold at least two class folders, but holds {len(classes)}.")
    paths = [
        [(path, label) for label, name in enumerate(classes) for path in _images_of(by_name[name])]
        for by_name in folders
    ]
    everything = [item for part in paths for item in part]
    decoder = _Decoder(len(everything))
    with _strictly():
        for index, (path, _) in enumerate(everything):
            decoder.put(index, path, str(path))
    assert decoder.images is not None
    labels = np.array([label for _, label in everything], np.int64)
    return Dataset("folder", decoder.images, labels, len(paths[1]) if len(paths) == 2 else 0, tuple(classes))


def read_parquet(path: Path) -> Dataset:
    """Columns image (an encoded image, or a struct with it under `bytes`), label and, if there is one, split."""
    try:
        with pq.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            for needed in ("image", "label"):
                if needed not in columns:
                    raise DataError(f"{path} has no column {needed}; its columns are {', '.join(columns)}.")
            labels, classes = _labels(path, file.read(["label"])["label"].to_pylist())
            is_test = np.zeros(len(labels), bool)
            if "split" in columns:
                is_test = _is_test(path, file.read(["split"])["split"].to_pylist())
            # Training rows first, each part in the file's own order.
            order = np.argsort(is_test, kind="stable")
            row_to_index = np.argsort(order, kind="stable")
            decoder = _Decoder(len(labels))
            with _strictly():
                for row, content in enumerate(_cells(file, path)):
                    decoder.put(int(row_to_index[row]), io.BytesIO(content), f"Row {row} of {path}")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as a Parquet file ({error}).") from error
    if decoder.images is None:
        raise DataError(f"{path} holds no rows.")
    return Dataset("folder", decoder.images, labels[order], int(is_test.sum()), classes)


def _labels(path: Path, values: list[Any]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Labels from 0, and the classes' names: the distinct values, sorted."""
    for kind in (int, str):
        if all(type(value) is kind for value in values):
            distinct = sorted(set(values))
            index = {value: label for label, value in enumerate(distinct)}
            return np.array([index[value] for value in values], np.int64), tuple(map(str, distinct))
    row = next((row for row, value in enumerate(values) if type(value) is not type(values[0]) or value is None), 0)
    raise DataError(f"Row {row} of {path} has the label {values[row]!r}; labels must be all integers or all strings.")


def _is_test(path: Path, values: list[Any]) -> NDArray[np.bool_]:
    for row, value in enumerate(values):
        if value not in ("train", "test"):
            raise DataError(f"Row {row} of {path} has the split {value!r}; it must be train or test.")
    return np.array([value == "test" for value in values], bool)


def _cells(file: pq.ParquetFile, path: Path) -> Iterator[bytes]:
    """The encoded images, row by row."""
    row = 0
    for batch in file.iter_batches(BATCH, columns=["image"]):
        for cell in batch.column(0):
            value = cell.as_py()
            content = value.get("bytes") if isinstance(value, dict) else value
            if not isinstance(content, bytes):
                raise DataError(f"Row {row} of {path} holds no encoded image in its column image.")
            yield content
            row += 1
