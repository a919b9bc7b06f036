"""The decoded file of a data set: safetensors, written whole or not at all, read memory-mapped.

All processes of a machine that read the same file share its pages, which is why it is mapped rather than read.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ldaf_bench.artifacts import whole_file
from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.formats import Arrays

DTYPES = {"U8": "u1", "I64": "<i8"}
"""The safetensors dtypes that a decoded file uses."""


def write(dataset: Dataset, path: Path) -> None:
    """Write the decoded file, whole or not at all."""
    about = {
        "name": dataset.name,
        "num_test": str(dataset.num_test),
        "classes": json.dumps(dataset.classes),
        "sha256": dataset.sha256,
    }
    arrays: dict[str, NDArray[Any]] = {
        "images": np.ascontiguousarray(dataset.images),
        "labels": np.ascontiguousarray(dataset.labels),
    }
    with whole_file(path) as temporary:
        temporary.write_bytes(save(arrays, metadata=about))


def read(path: Path) -> Arrays:
    """The arrays of a decoded file, mapped and read-only; whether they are the right ones, the checksum tells."""
    try:
        # safetensors checks that the header is sound and that the file is as long as it says.
        with safe_open(path, framework="numpy") as file:
            num_test = int((file.metadata() or {})["num_test"])
            if set(file.keys()) != {"images", "labels"}:
                raise ValueError(f"it holds {sorted(file.keys())}")
        with path.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            header = json.loads(raw.read(length))
        images = _map(path, header["images"], 8 + length)
        labels = _map(path, header["labels"], 8 + length)
    except (OSError, SafetensorError, KeyError, ValueError, struct.error) as error:
        raise DataError(f"{path} is truncated or damaged ({error}).") from error
    return Arrays(images, labels.astype(np.int64), num_test)


def _map(path: Path, entry: dict[str, Any], start: int) -> NDArray[Any]:
    """One array of the file; `start` is where the header ends."""
    offset = start + entry["data_offsets"][0]
    shape = tuple(entry["shape"])
    return np.asarray(np.memmap(path, DTYPES[entry["dtype"]], mode="r", offset=offset, shape=shape))
