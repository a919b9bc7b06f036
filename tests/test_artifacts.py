"""Artifacts are whole or not there, and what was changed is not read."""

import json
import subprocess
import sys

import pytest

from ldaf_bench.artifacts import (
    ArtifactError,
    fingerprint,
    read_manifest,
    whole_directory,
    write_manifest,
)


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


def test_a_leftover_with_our_own_process_number_is_swept_away_but_not_what_is_in_use(tmp_path):
    with whole_directory(tmp_path / "thing") as one, whole_directory(tmp_path / "thing") as other:
        assert one.exists()
        name = one.parent.name
        assert other != one
    # a killed process had our number, as in containers where every process is the first
    (tmp_path / name).mkdir()
    with whole_directory(tmp_path / "other_thing"):
        assert (tmp_path / name).exists()
    with whole_directory(tmp_path / "thing"):
        assert not (tmp_path / name).exists()


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


NEEDED = frozenset({"data"})


def make(directory):
    directory.mkdir(exist_ok=True)
    (directory / "data").write_bytes(b"12345")
    (directory / "about.json").unlink(missing_ok=True)
    write_manifest(directory, "about.json", {"answer": 42})


def test_a_manifest_is_read_back_with_its_files_checked(tmp_path):
    make(tmp_path)
    assert read_manifest(tmp_path, "about.json", NEEDED)["answer"] == 42


def rewrite(directory, change, sign=False):
    content = json.loads((directory / "about.json").read_text())
    change(content)
    if sign:
        content.pop("checksum", None)
        content["checksum"] = fingerprint(content)
    (directory / "about.json").write_text(json.dumps(content))


DAMAGES = {
    "truncated": lambda directory: (directory / "data").write_bytes(b"1234"),
    "altered": lambda directory: (directory / "data").write_bytes(b"12346"),
    "removed": lambda directory: (directory / "data").unlink(),
    "broken JSON": lambda directory: (directory / "about.json").write_text('{"answer": 42'),
    "no object": lambda directory: (directory / "about.json").write_text("[]"),
    "no manifest": lambda directory: (directory / "about.json").unlink(),
    "answer edited": lambda directory: rewrite(directory, lambda content: content.update(answer=43)),
    "checksum edited": lambda directory: rewrite(directory, lambda content: content.update(checksum="0" * 16)),
    "files unlisted": lambda directory: rewrite(directory, lambda content: content.update(files={}), sign=True),
    "files elsewhere": lambda directory: rewrite(
        directory, lambda content: content["files"].update({"../x": "0" * 64}), sign=True
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_refused_with_a_sentence(tmp_path, damage):
    make(tmp_path / "thing")
    DAMAGES[damage](tmp_path / "thing")
    with pytest.raises(ArtifactError, match=r"changed|damaged|does not hold|holds another|There is no"):
        read_manifest(tmp_path / "thing", "about.json", NEEDED)


@pytest.mark.parametrize("position", range(0, 100, 7))
def test_any_byte_changed_in_a_manifest_is_noticed(tmp_path, position):
    make(tmp_path)
    content = bytearray((tmp_path / "about.json").read_bytes())
    before = json.loads(content)
    content[position] ^= 1
    (tmp_path / "about.json").write_bytes(content)
    try:
        after = read_manifest(tmp_path, "about.json", NEEDED)
    except ArtifactError:
        return
    before.pop("checksum")
    assert after == before  # it was white space


def test_files_that_follow_from_the_content_are_checked_as_well(tmp_path):
    make(tmp_path)
    assert read_manifest(tmp_path, "about.json", lambda content: {"data"} if content["answer"] == 42 else {})
    for other in ({"data", "more"}, set(), {"../data"}):
        with pytest.raises(ArtifactError, match="was changed"):
            read_manifest(tmp_path, "about.json", lambda content, other=other: other)
    with pytest.raises(ArtifactError, match="damaged"):
        read_manifest(tmp_path, "about.json", lambda content: {content["missing"]})
