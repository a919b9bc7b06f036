"""Artifacts are whole or not there, and what was changed is not read."""

import json
import subprocess
import sys

import pytest

from ldaf_bench.artifacts import ArtifactError, exclusive, fingerprint, read_manifest, whole_directory, write_manifest


def test_a_fingerprint_depends_on_content_and_not_on_order():
    assert fingerprint({"a": 1, "b": [1.5, "x"]}) == fingerprint({"b": [1.5, "x"], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})
    assert fingerprint({"a": 1}) != fingerprint({"a": "1"})
    with pytest.raises(ValueError, match="not JSON compliant"):
        fingerprint({"a": float("nan")})


def test_a_directory_appears_only_when_it_is_whole(tmp_path):
    goal = tmp_path / "deep" / "thing"
    with whole_directory(goal) as directory:
        (directory / "file").write_text("x")
        assert not goal.exists()
    assert [path.name for path in goal.parent.iterdir()] == ["thing"]
    assert (goal / "file").read_text() == "x"


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_leaves_nothing(tmp_path, interruption):
    def interrupted():
        with whole_directory(tmp_path / "thing") as directory:
            (directory / "file").write_text("half")
            raise interruption

    with pytest.raises(interruption):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_who_comes_second_leaves_the_first_ones_work_alone(tmp_path):
    with whole_directory(tmp_path / "thing") as late:
        (late / "file").write_text("second")
        early = tmp_path / "thing"
        early.mkdir()
        (early / "file").write_text("first")
    assert (early / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def test_what_a_killed_process_left_is_swept_away_and_the_thing_is_made(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from ldaf_bench.artifacts import whole_directory\n"
        "with whole_directory(Path(sys.argv[1])) as directory:\n"
        "    (directory / 'file').write_text('half'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    goal = tmp_path / "thing"
    assert subprocess.run([sys.executable, "-c", code, str(goal)]).returncode == -9
    assert len(list(tmp_path.iterdir())) == 1
    assert not goal.exists()
    with whole_directory(goal) as directory:
        (directory / "file").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["thing"]


def make(directory):
    (directory / "data").write_bytes(b"12345")
    write_manifest(directory, "about.json", {"answer": 42})


def test_a_manifest_is_read_back_with_its_files_checked(tmp_path):
    make(tmp_path)
    assert read_manifest(tmp_path, "about.json")["answer"] == 42


def truncate(directory):
    (directory / "data").write_bytes(b"1234")


def alter(directory):
    (directory / "data").write_bytes(b"12346")


def remove(directory):
    (directory / "data").unlink()


def break_json(directory):
    (directory / "about.json").write_text('{"answer": 42')


def no_files(directory):
    (directory / "about.json").write_text("[]")


def lead_elsewhere(directory):
    (directory.parent / "outside").write_text("x")
    (directory / "about.json").write_text(json.dumps({"files": {"../outside": "0" * 64}}))


@pytest.mark.parametrize("damage", [truncate, alter, remove, break_json, no_files, lead_elsewhere])
def test_damage_is_refused_with_a_sentence(tmp_path, damage):
    directory = tmp_path / "thing"
    directory.mkdir()
    make(directory)
    damage(directory)
    with pytest.raises(ArtifactError, match="delete"):
        read_manifest(directory, "about.json")


def test_a_lock_is_held_by_one_and_free_after_it(tmp_path):
    def hold():
        with exclusive(tmp_path / "thing.lock", "Somebody is at it"):
            return True

    with (
        exclusive(tmp_path / "thing.lock", "Somebody is at it"),
        pytest.raises(ArtifactError, match="Somebody is at it"),
    ):
        hold()
    assert hold()
