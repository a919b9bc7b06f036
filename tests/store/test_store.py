"""The same promises of a folder and of a URI: whole or not there, made once, one holder of a lock."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ldaf_bench.artifacts import ArtifactError, StoreError, read_manifest, write_manifest
from ldaf_bench.store.store import find, find_or_make, load_from, open_store


@pytest.fixture(params=["folder", "file"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("LDAF_BENCH_CACHE", str(tmp_path / "cache"))
    return str(tmp_path / "store") if request.param == "folder" else f"file://{tmp_path}/store"


@pytest.fixture
def store(place):
    return open_store(place)


def put(store, key, data=b"12345", answer=42):
    with store.put(key) as directory:
        (directory / "data").write_bytes(data)
        write_manifest(directory, "about.json", {"answer": answer})


def load(path):
    return read_manifest(path, "about.json", {"data"})["answer"]


def damage(tmp_path, key):
    """At the place, as if a disk had lost a byte."""
    (tmp_path / "store" / key / "data").write_bytes(b"x")


def test_an_artifact_is_there_when_it_was_put_and_a_folder_holds_the_same_files(store, place, tmp_path):
    key = "networks/abc"
    assert not store.exists(key)
    assert not store.get(key).exists()
    with pytest.raises(ArtifactError, match="There is no networks/abc in"):
        load_from(store, load, key)
    put(store, key)
    assert store.exists(key)
    assert load_from(store, load, key) == 42
    assert (store.get(key).name, store.get(key).parent.name) == ("abc", "networks")
    assert sorted(path.name for path in (tmp_path / "store" / key).iterdir()) == ["about.json", "data"]
    # The other kind of store reads the same place; and so does the same kind elsewhere, with no copies yet.
    for other in (str(tmp_path / "store"), f"file://{tmp_path}/store", place):
        assert load_from(open_store(other), load, key) == 42
    store.remove(key)
    store.remove(key)
    assert not store.exists(key)
    assert not open_store(place).get(key).exists()


def test_the_children_of_a_key_are_named_and_nothing_that_is_only_being_written(store):
    assert store.children("ledger/x") == []
    for key in ("ledger/x/b", "ledger/x/a", "ledger/y/c"):
        put(store, key)
    with store.put("ledger/x/new") as directory:
        (directory / "about.json").write_text('{"files": {}}')
        assert store.children("ledger/x") == ["a", "b"]
    assert store.children("ledger/x") == ["a", "b", "new"]
    assert store.children("ledger") == ["x", "y"]
    store.remove("ledger/x")
    assert store.children("ledger") == ["y"]


@pytest.mark.parametrize("interruption", [RuntimeError, KeyboardInterrupt])
def test_an_interruption_publishes_nothing_and_leaves_nothing(store, tmp_path, interruption):
    def interrupted():
        with store.put("networks/abc") as directory:
            (directory / "data").write_text("half")
            raise interruption

    with pytest.raises(interruption):
        interrupted()
    assert not store.exists("networks/abc")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_who_comes_second_leaves_the_first_ones_work_alone(store, place):
    with store.put("a/b") as late:
        (late / "data").write_bytes(b"late")
        write_manifest(late, "about.json", {"answer": 2})
        put(open_store(place), "a/b", b"early", 1)
    assert load_from(store, load, "a/b") == 1
    assert (store.get("a/b") / "data").read_bytes() == b"early"


def test_what_is_replaced_is_read_anew(store, place):
    put(store, "a/b", b"one", 1)
    other = open_store(place)
    assert load_from(other, load, "a/b") == 1
    store.remove("a/b")
    put(store, "a/b", b"two", 2)
    assert load_from(other, load, "a/b") == 2
    assert (other.get("a/b") / "data").read_bytes() == b"two"


def test_what_is_damaged_is_set_aside_to_be_made_again(store, tmp_path):
    said = []
    assert find(store, load, "a/b", said.append) is None
    put(store, "a/b")
    assert find(store, load, "a/b", said.append) == 42
    assert not said
    for number in (1, 2):
        if number == 2:
            put(store, "a/b")
        store.forget("a/b")
        damage(tmp_path, "a/b")
        assert find(store, load, "a/b", said.append) is None
        assert not store.exists("a/b")
        assert (tmp_path / f"store/a/b.damaged{number}" / "data").read_bytes() == b"x"
    assert "set aside" in said[1]


def test_what_is_there_and_whole_is_not_made_again(store, tmp_path):
    made, said = [], []

    def make():
        made.append(1)
        put(store, "a/b")

    def ask():
        return find_or_make(store, load, "a/b", make, said.append)

    assert (ask(), ask(), len(made), said) == (42, 42, 1, [])
    store.forget("a/b")
    damage(tmp_path, "a/b")
    assert (ask(), ask(), len(made), len(said)) == (42, 42, 2, 1)


def test_plain_files_are_fetched_and_sent(store, place):
    folder = store.fetch("suite", ["plan.json"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "figures").mkdir()
    (folder / "plan.json").write_text("plan")
    (folder / "figures" / "one.png").write_text("png")
    store.send("suite", ["figures/one.png", "plan.json"])
    other = open_store(f"{place}/suite").fetch("", ["plan.json", "figures/one.png", "none"])
    assert (other / "plan.json").read_text() == "plan"
    assert (other / "figures" / "one.png").read_text() == "png"
    assert not (other / "none").exists()


def test_a_full_disk_is_one_plain_sentence_and_what_is_there_stays(store):
    def full():
        with store.put("a/c") as directory:
            (directory / "data").write_text("half")
            raise OSError(28, "No space left on device")

    put(store, "a/b")
    with pytest.raises(StoreError, match=r"The disk of .* is full\. Make room there and run the same command again"):
        full()
    assert store.children("a") == ["b"]


def test_a_folders_lock_is_held_by_one_and_free_after_it(tmp_path):
    store = open_store(tmp_path)

    def hold():
        with open_store(tmp_path).lock("deep/thing", "Somebody is at it"):
            return True

    with store.lock("deep/thing", "Somebody is at it"), pytest.raises(StoreError, match=r"Somebody is at it .*: wait"):
        hold()
    assert hold()
    with pytest.raises(RuntimeError), store.lock("deep/thing", ""):
        raise RuntimeError
    assert hold()


def test_of_many_who_wait_for_a_folders_lock_one_has_it_at_a_time_and_all_get_it(tmp_path):
    inside, most, said = [], [], []

    def work(number):
        with open_store(tmp_path).lock("thing", "Busy", said.append):
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(number)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert most == [1] * 6
    assert said
    assert all(sentence.startswith("Busy") and sentence.endswith("waiting for it.") for sentence in said)


def test_a_place_that_cannot_lock_lets_everybody_in(tmp_path):
    store = open_store(f"file://{tmp_path}/store")
    with store.lock("thing", "Busy"), store.lock("thing", "Busy"):
        assert store.children("") == []


def test_a_store_is_used_by_several_threads(store):
    barrier, rounds = threading.Barrier(8), 10

    def work(number):
        answers = []
        for turn in range(rounds):
            key = f"many/{turn}{number % 4}"
            barrier.wait(300)  # two threads write the same artifact at the same time
            try:
                put(store, key, answer=number % 4)
                answers.append(load_from(store, load, key))
            except BaseException:
                barrier.abort()  # the others need not wait for this one
                raise
        return answers

    with ThreadPoolExecutor(8) as pool:
        threads = [pool.submit(work, number) for number in range(8)]
    errors = [thread.exception() for thread in threads]
    assert [error for error in errors if not isinstance(error, threading.BrokenBarrierError | None)] == []
    assert [thread.result() for thread in threads] == [[number % 4] * rounds for number in range(8)]
    assert store.children("many") == sorted(f"{turn}{place}" for turn in range(rounds) for place in range(4))


def test_a_manifest_may_not_name_files_elsewhere(tmp_path, place, store):
    put(store, "a/b")
    store.forget("a/b")
    (tmp_path / "secret").write_text("secret")
    path = tmp_path / "store" / "a" / "b" / "about.json"
    content = json.loads(path.read_text())
    content["files"]["../../../secret"] = "0"
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="was changed"):
        load_from(store, load, "a/b")
    assert not list((tmp_path / "cache").rglob("secret"))
