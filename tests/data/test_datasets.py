"""Data sets are checked when made, verified when read, and the command says in sentences what it did."""

import os
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from PIL import Image

from ldaf_bench.data.__main__ import main
from ldaf_bench.data.dataset import DataError, Dataset, checksum
from ldaf_bench.data.datasets import DATASETS, load
from ldaf_bench.messages import printable
from tests.data import files


def tiny(**change):
    fields = {
        "name": "tiny",
        "images": np.arange(24, dtype=np.uint8).reshape(3, 2, 2, 2),
        "labels": np.array([0, 1, 1]),
        "num_test": 1,
        "classes": ("a", "b"),
    }
    return Dataset(**{**fields, **change})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"images": np.zeros((3, 2, 2, 2))}, "images must be uint8"),
        ({"images": np.zeros((3, 2, 2), np.uint8)}, "images must be uint8"),
        ({"images": np.zeros((0, 2, 2, 2), np.uint8), "labels": np.zeros(0, np.int64)}, "no images"),
        ({"labels": np.array([0, 1])}, "one int64 label"),
        ({"labels": np.array([0, 1, 1], np.int32)}, "one int64 label"),
        ({"labels": np.array([0, 1, 2])}, r"labels must be in 0 … 1, but are in 0 … 2"),
        ({"labels": np.array([0, 1, -1])}, "labels must be in"),
        ({"classes": ("a",), "labels": np.zeros(3, np.int64)}, "at least two classes"),
        ({"num_test": 3}, "leave points"),
        ({"num_test": -1}, "leave points"),
    ],
)
def test_a_data_set_that_is_none_cannot_be_made(change, reason):
    with pytest.raises(DataError, match=f"The data set tiny cannot be used: .*{reason}"):
        tiny(**change)


def test_a_data_set_cannot_be_changed_but_its_makers_arrays_can():
    images = np.zeros((3, 2, 2, 2), np.uint8)
    dataset = tiny(images=images)
    with pytest.raises(ValueError, match="read-only"):
        dataset.images[0] = 1
    with pytest.raises(FrozenInstanceError):
        dataset.num_test = 0
    images[0] = 1
    assert (len(dataset), dataset.num_train, dataset.num_classes) == (3, 2, 2)


def test_the_checksum_depends_on_values_shapes_dtypes_and_the_test_set_only():
    reference = tiny().sha256
    altered = tiny().images.copy()
    altered[1, 1, 1, 1] ^= 1
    others = [
        tiny(images=altered),
        tiny(images=tiny().images.reshape(3, 1, 4, 2)),
        tiny(labels=np.array([0, 1, 0])),
        tiny(num_test=0),
    ]
    assert len({reference, *(other.sha256 for other in others)}) == 5
    assert tiny(images=np.asfortranarray(tiny().images), name="x", classes=("c", "d")).sha256 == reference
    # Written down, because artifacts carry it: it must never change.
    assert reference == "7c90d0a601785058fd0bf7cc0860bf5a1ce97d21dfd8998206c81965e70b1fe4"


def test_digits_are_scikit_learns_scaled_to_bytes():
    from sklearn.datasets import load_digits

    dataset = load("digits")
    assert dataset.images.shape == (1797, 1, 8, 8)
    assert np.array_equal(np.round(dataset.images[:, 0] / 255 * 16), load_digits().images)
    assert (dataset.images.min(), dataset.images.max(), dataset.num_test) == (0, 255, 0)


@pytest.mark.parametrize("name", DATASETS)
def test_every_entry_is_read_directly_or_fetched_and_knows_its_checksum(name):
    entry = DATASETS[name]
    assert (entry.read is None) != (entry.origin is None)
    assert entry.about
    assert name == "folder" or len(entry.sha256) == 64
    if entry.origin is not None:
        assert len(set(entry.classes)) == 10


@pytest.mark.parametrize("name", DATASETS)
def test_missing_data_are_a_sentence_that_says_what_to_do(tmp_path, name):
    if name == "digits":
        return
    with pytest.raises(DataError, match="needs a root"):
        load(name)
    root = tmp_path / "it's here"
    advice = "give a directory" if name == "folder" else f"Run `python -m ldaf_bench.data {name} --root '.*here'` to"
    with pytest.raises(DataError, match=f"is not there.*{advice}"):
        load(name, root)


def test_unknown_names_are_refused():
    with pytest.raises(
        DataError, match=r"'mnist' is not a data set; choose one of digits, fashionmnist, .*cifar10, folder"
    ):
        load("mnist")


def test_embedded_data_are_verified_too(monkeypatch):
    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], sha256="0" * 64))
    with pytest.raises(DataError, match="data of digits were altered"):
        load("digits")


def test_the_command_fetches_and_says_what_it_did(tmp_path, monkeypatch, capsys):
    entry = replace(DATASETS["cifar10"], sha256=checksum(*files.CIFAR))
    monkeypatch.setitem(DATASETS, "cifar10", entry)
    files.write_cifar_sprites(tmp_path / "brought")
    arguments = ["cifar10", "--root", str(tmp_path / "root"), "--source", str(tmp_path / "brought")]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    for said in (
        f"fetched from the files in {tmp_path}/brought.",
        "24 images of 3 × 32 × 32",
        "the last 4 are the official test set",
        f"airplane {np.sum(files.CIFAR.labels == 0)}, automobile",
        f"sha256 {entry.sha256}, as it must be",
        f"Written to {tmp_path}/root/cifar10.safetensors",
    ):
        assert said in out
    assert main(arguments) == 0
    assert "cifar10: already there." in capsys.readouterr().out


def test_the_command_verifies_what_is_embedded(capsys):
    assert main(["digits"]) == 0
    assert "1797 images of 1 × 8 × 8" in capsys.readouterr().out


def test_a_failure_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    assert main(["cifar10", "--root", str(tmp_path), "--source", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("cifar10 could not be fetched: ")
    (tmp_path / "file").touch()
    assert main(["fashionmnist", "--root", str(tmp_path / "file" / "below"), "--source", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert files.listing(tmp_path).keys() == {"file"}


def test_an_interruption_is_told_and_has_its_own_exit_code(monkeypatch, capsys):
    def interrupted(root):
        raise KeyboardInterrupt

    monkeypatch.setitem(DATASETS, "digits", replace(DATASETS["digits"], read=interrupted))
    assert main(["digits"]) == 130
    assert "nothing half-written" in capsys.readouterr().err


def test_names_of_ones_own_cannot_disturb_a_terminal(tmp_path, capsys):
    names = ["[bold red]x", "\x1b[2Jclear", "new\nline", os.fsdecode(b"\xff"), "\u202eevil"]
    for name in names:
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "a.png")
    assert main(["folder", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "[bold red]x 1" in out
    assert r"\x1b[2Jclear 1" in out
    assert r"new\nline 1" in out
    assert r"\udcff 1" in out
    assert r"\u202eevil 1" in out
    (tmp_path / "\x1b[2Jclear" / "b.png").write_bytes(b"no image")
    assert main(["folder", "--root", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert r"\x1b[2Jclear/b.png cannot be read" in err
    assert "\x1b" not in err


def test_many_classes_are_not_all_listed(tmp_path, capsys):
    for number in range(30):
        (tmp_path / f"{number:02}").mkdir()
        Image.new("L", (2, 2)).save(tmp_path / f"{number:02}" / "a.png")
    assert main(["folder", "--root", str(tmp_path)]) == 0
    assert "19 1, and 10 classes more." in capsys.readouterr().out


def test_printable_text_stays_as_it_is():
    assert printable("Ünïcödé × 猫") == "Ünïcödé × 猫"


def test_the_module_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "ldaf_bench.data", "folder", "--root", str(tmp_path / "no")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("is not there; give a directory of class folders or a Parquet file.\n")
