"""Every format is read back exactly; a damaged file is a sentence that names it; no file can run anything."""

import gzip
import json
import os
import pickle
import struct

import numpy as np
import pytest
from PIL import Image

from ldaf_bench.data import formats
from ldaf_bench.data.dataset import DataError
from tests.data import files

LAYOUTS = {
    "idx .gz": (formats.fashionmnist, files.write_fashion, ".", files.FASHION),
    "idx .gz of torchvision": (formats.fashionmnist, files.write_fashion, "FashionMNIST/raw", files.FASHION),
    "idx .gz of Debian": (formats.fashionmnist, files.write_fashion, "usr/share/datasets/fashion-mnist", files.FASHION),
    "idx": (formats.fashionmnist, lambda place: files.write_fashion(place, compress=False), ".", files.FASHION),
    "batches of Python 2": (formats.cifar10, files.write_cifar_pickles, "cifar-10-batches-py", files.CIFAR),
    "batches": (formats.cifar10, lambda place: files.write_cifar_pickles(place, python2=False), ".", files.CIFAR),
    "sprites": (formats.cifar10, files.write_cifar_sprites, ".", files.CIFAR),
    "sprites of npm": (formats.cifar10, files.write_cifar_sprites, "package", files.CIFAR),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_is_read_back_exactly(tmp_path, layout):
    decode, write, place, written = LAYOUTS[layout]
    write(tmp_path / place)
    read = decode(tmp_path)
    assert files.same(read, written)
    assert read.images.dtype == np.uint8
    assert read.images.flags.c_contiguous
    assert read.labels.dtype == np.int64


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_numpy_and_the_restricted_reader_agree_on_what_python_2_wrote():
    table = files.CIFAR.images[:4].reshape(4, -1)
    content = files.python2_pickle(table, [1, 2, 3, 4])
    read = pickle.loads(content, encoding="latin1")
    assert np.array_equal(read["data"], table)
    assert read["labels"] == [1, 2, 3, 4]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_file_cut_anywhere_is_a_sentence_that_names_it(tmp_path, layout):
    decode, write, place, _ = LAYOUTS[layout]
    write(tmp_path / place)
    for path in sorted((tmp_path / place).iterdir()):
        content = path.read_bytes()
        # The last bytes of a PNG mark its end and repeat checksums; all pixels are there without them.
        for length in (0, 1, 3, 7, len(content) // 2, len(content) - (100 if path.suffix == ".png" else 2)):
            path.write_bytes(content[:length])
            with pytest.raises(DataError, match=path.name.split(".")[0]):
                decode(tmp_path)
        path.write_bytes(content)
    decode(tmp_path)


def test_an_altered_byte_in_a_compressed_file_is_noticed(tmp_path):
    files.write_fashion(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    content = bytearray(path.read_bytes())
    content[-6] ^= 1  # the checksum in gzip's trailer
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"train-images.*truncated or damaged"):
        formats.fashionmnist(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\0\0\x0d\1" + struct.pack(">I", 1) + b"\0\0\0\0",
        b"\0\0\x08\3" + struct.pack(">III", 60_000, 2**31, 2**31),
        b"\0\0\x08\1" + struct.pack(">I", 2) + b"abc",
        b"PNG",
    ],
    ids=["floats", "a huge promise", "too long", "another format"],
)
def test_idx_files_that_are_none_are_refused(tmp_path, content):
    for path in (tmp_path / "x", tmp_path / "x.gz"):
        path.write_bytes(gzip.compress(content) if path.suffix else content)
        with pytest.raises(DataError, match=path.name):
            formats.read_idx(path)


def test_idx_files_that_do_not_fit_together_are_refused(tmp_path):
    files.write_fashion(tmp_path)
    files.write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.zeros(2), compress=False)
    with pytest.raises(DataError, match="do not fit together"):
        formats.fashionmnist(tmp_path)


class Malice:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("function", [os.system, os.mkdir, eval, getattr], ids=lambda function: function.__name__)
@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_executes_nothing(tmp_path, function, protocol):
    target = tmp_path / "harm"
    argument = {"system": f"mkdir {target}", "mkdir": str(target), "eval": f"__import__('os').mkdir({str(target)!r})"}
    arguments = (argument[function.__name__],) if function.__name__ in argument else (os, "mkdir")
    if function is getattr:
        arguments = ("", "join")
    path = tmp_path / "data_batch_1"
    for content in (Malice(function, *arguments), {"data": Malice(function, *arguments), "labels": []}):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        with pytest.raises(DataError, match="it asks for"):
            formats.read_batch(path)
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"c_codecs\nencode\n(X\x01\0\0\0aX\x05\0\0\0rot13tR.",
        b"cnumpy\nndarray\n(tR.",
        b"cnumpy.core.multiarray\n_reconstruct\n.",
        b"(lp0\n.",
        b"}U\x04datacnumpy\nndarray\n(tR(K\x02K\x01tbs.",
    ],
)
def test_misused_names_and_strange_structures_are_refused(tmp_path, content):
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    with pytest.raises(DataError, match="data_batch_1"):
        formats.read_batch(path)


def test_batches_of_another_shape_or_type_are_refused(tmp_path):
    path = tmp_path / "data_batch_1"
    for data, labels in (
        (np.zeros((2, 5), np.uint8), [1, 2]),
        (np.zeros((2, 3072), np.uint8), [1]),
        (np.zeros((2, 3072), np.float64), [1, 2]),
        (np.zeros((2, 3072), np.uint8), [1.5, 2]),
        (np.asfortranarray(np.zeros((2, 3072), np.uint8)), [1, 2]),
    ):
        path.write_bytes(pickle.dumps({"data": data, "labels": labels}, protocol=2))
        with pytest.raises(DataError, match="data_batch_1"):
            formats.read_batch(path)


def test_sprites_and_labels_that_do_not_fit_are_refused(tmp_path):
    files.write_cifar_sprites(tmp_path)
    labels = tmp_path / "test_lables.json"
    for content, reason in (([0, 1, 2], "for 20 and 3 labels"), ([0, 1, 2, 10], "0 to 9"), ({"a": 1}, "0 to 9")):
        labels.write_text(json.dumps(content))
        with pytest.raises(DataError, match=reason):
            formats.cifar10(tmp_path)
    labels.write_text("[0, 1, 2, true]")
    with pytest.raises(DataError, match="0 to 9"):
        formats.cifar10(tmp_path)


@pytest.mark.parametrize(("mode", "width"), [("L", 1024), ("RGB", 1000)])
def test_sprites_of_another_kind_are_refused(tmp_path, mode, width):
    Image.new(mode, (width, 4)).save(tmp_path / "x.png")
    with pytest.raises(DataError, match="must be an RGB image 1024 pixels wide"):
        formats.read_sprite(tmp_path / "x.png")


def test_missing_files_are_listed(tmp_path):
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        formats.fashionmnist(tmp_path)
    with pytest.raises(DataError, match="test_batch"):
        formats.cifar10(tmp_path)
