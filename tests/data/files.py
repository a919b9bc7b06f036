"""Small files of every format in which data sets travel, written by the formats' definitions."""

import gzip
import hashlib
import json
import pickle
import struct
from dataclasses import replace

import numpy as np
from PIL import Image

from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.formats import Arrays


def random_arrays(num_train, num_test, shape, seed=0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (num_train + num_test, *shape), dtype=np.uint8)
    return Arrays(images, rng.integers(0, 10, len(images)), num_test)


FASHION = random_arrays(7, 3, (1, 28, 28))
CIFAR = random_arrays(20, 4, (3, 32, 32))
WRITTEN = {"fashionmnist": FASHION, "fashionmnist_pooled": (*FASHION[:2], 0), "cifar10": CIFAR}
BATCHES = [*((f"data_batch_{number + 1}", slice(4 * number, 4 * number + 4)) for number in range(5))]
BATCHES += [("test_batch", slice(20, 24))]


def write_idx(path, array, compress):
    content = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if compress:
        path = path.with_name(f"{path.name}.gz")
        content = gzip.compress(content, mtime=0)
    path.write_bytes(content)


def write_fashion(directory, compress=True):
    for prefix, part in (("train", slice(0, 7)), ("t10k", slice(7, 10))):
        write_idx(directory / f"{prefix}-images-idx3-ubyte", FASHION.images[part, 0], compress)
        write_idx(directory / f"{prefix}-labels-idx1-ubyte", FASHION.labels[part], compress)


def python2_pickle(table, labels):
    """The opcodes that Python 2 wrote for {'data': uint8 table, 'labels': list}, as in the original CIFAR files."""
    raw = table.tobytes()
    return b"".join(
        [
            b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R",
            b"(K\x01M" + struct.pack("<H", len(table)) + b"M" + struct.pack("<H", table.shape[1]) + b"\x86",
            b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb",
            b"U\x06labels](" + b"".join(b"K" + bytes([label]) for label in labels) + b"eu.",
        ]
    )


def write_cifar_pickles(directory, python2=True):
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in BATCHES:
        table, labels = CIFAR.images[part].reshape(4, -1), CIFAR.labels[part].tolist()
        content = pickle.dumps({"data": table, "labels": labels}, protocol=2)
        (directory / name).write_bytes(python2_pickle(table, labels) if python2 else content)


def write_cifar_sprites(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in BATCHES:
        pixels = CIFAR.images[part].transpose(0, 2, 3, 1).reshape(4, 1024, 3)
        Image.fromarray(np.ascontiguousarray(pixels)).save(directory / f"{name}.png")
    (directory / "train_lables.json").write_text(json.dumps(CIFAR.labels[:20].tolist()))
    (directory / "test_lables.json").write_text(json.dumps(CIFAR.labels[20:].tolist()))


def listing(directory):
    """All that is in a directory, with contents."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(directory.rglob("*"))
    }


def same(read, written):
    return all(np.array_equal(one, other) for one, other in zip(read[:2], written[:2], strict=True)) and (
        read[2] == written[2]
    )


def offline(work):
    """A source on a machine without a network."""
    (work / "half.part").write_bytes(b"half")
    raise DataError("the network is down.")


def set_origin(monkeypatch, name, **change):
    """Replace one of a data set's sources."""
    entry = DATASETS[name]
    monkeypatch.setitem(DATASETS, name, replace(entry, origin=replace(entry.origin, **change)))
