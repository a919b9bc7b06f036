"""`run` fetches a known data set that is not there, and says in one sentence what to do where it cannot."""

from dataclasses import replace

import numpy as np
import pytest

from ldaf_bench.data.datasets import DATASETS, load
from ldaf_bench.data.fetch import fetch
from ldaf_bench.data.formats import Arrays
from ldaf_bench.data.sources import Origin
from ldaf_bench.run import main
from ldaf_bench.stages.progress import FetchView, bytes_in_work
from tests.data.files import offline
from tests.places import Place

SUITE = {
    "suite": "made",
    "data": {"dataset": "digits", "certificate": 0.5},
    "networks": {"backbone": "tinynet", "recipe": {"base": "tiny", "epochs": 1}},
    "methods": {"deterministic": {}},
    "certificates": {"bound": "test_set"},
}


@pytest.fixture
def made(monkeypatch):
    """The digits as a data set that has to be fetched: the mirror leaves a file."""
    digits = load("digits")

    def mirror(directory):
        np.savez(directory / "made.npz", images=digits.images, labels=digits.labels)

    def decode(directory):
        found = np.load(directory / "made.npz")
        return Arrays(found["images"], found["labels"], 0)

    entry = replace(DATASETS["digits"], read=None, origin=Origin(decode, offline, mirror))
    monkeypatch.setitem(DATASETS, "digits", entry)
    return entry


def test_what_is_not_there_is_fetched_and_verified_and_the_second_run_finds_it(cluster, made, tmp_path, capsys):
    place = Place(tmp_path, SUITE)
    root = tmp_path / "root"
    assert main([*place.arguments, "--root", str(root)]) == 0
    assert "digits: Trying the package mirror" in capsys.readouterr().out
    assert [path.name for path in root.iterdir()] == ["digits.safetensors"]
    assert main([*place.arguments, "--root", str(root)]) == 0
    assert "Trying" not in capsys.readouterr().out


def test_what_cannot_be_fetched_is_one_sentence_and_nothing_is_left(made, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(DATASETS, "digits", replace(made, origin=replace(made.origin, mirror=offline)))
    place = Place(tmp_path, SUITE)
    root = tmp_path / "root"
    assert main([*place.arguments, "--root", str(root)]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"python -m ldaf_bench.data digits --root {root} --source DIRECTORY" in said
    assert not root.exists()
    assert not place.results.exists()


def test_a_dry_run_fetches_nothing(made, tmp_path):
    place = Place(tmp_path, SUITE)
    assert main([*place.arguments, "--root", str(tmp_path / "root"), "--dry-run"]) == 0
    assert not (tmp_path / "root").exists()


def test_people_see_how_much_has_arrived(made, monkeypatch, tmp_path):
    seen = []

    def slow(directory):
        (directory / "part").write_bytes(bytes(3_000_000))
        seen.append(bytes_in_work(tmp_path, "digits"))
        made.origin.mirror(directory)

    monkeypatch.setitem(DATASETS, "digits", replace(made, origin=replace(made.origin, mirror=slow)))
    from rich.console import Console

    with FetchView(Console(), "digits", tmp_path) as view:
        fetch("digits", tmp_path, say=view.say)
    assert seen == [3_000_000]
    assert bytes_in_work(tmp_path, "digits") == 0
