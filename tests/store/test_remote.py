"""A store that fails: for a while, for ever, or between content and manifest; and URIs that hold secrets."""

import logging
import pickle
import threading
import time

import pytest
from pyarrow.fs import FileSelector, LocalFileSystem, SubTreeFileSystem, _MockFileSystem

from ldaf_bench.artifacts import ArtifactError, StoreError
from ldaf_bench.store import patience
from ldaf_bench.store.patience import Patience
from ldaf_bench.store.remote import Remote
from ldaf_bench.store.store import find, load_from, open_store
from tests.store.test_store import load, put

KEY = "networks/abc"


class Faulty:
    """A filesystem that asks `fault` before every call: what it raises is what happens."""

    def __init__(self, filesystem, fault):
        self.filesystem, self.fault, self.type_name = filesystem, fault, filesystem.type_name

    def __getattr__(self, name):
        def call(*arguments, **settings):
            self.fault(name, *arguments)
            return getattr(self.filesystem, name)(*arguments, **settings)

        return call


@pytest.fixture(autouse=True)
def hurried(tmp_path, monkeypatch):
    monkeypatch.setenv("LDAF_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(patience, "PAUSE", 0.02)
    monkeypatch.setattr(patience, "LATE", 0.1)


@pytest.fixture
def place(tmp_path):
    return f"file://{tmp_path}/store"


def faulty(place, fault, seconds=5.0):
    store = Remote(place, Faulty(LocalFileSystem(), fault))
    store.patience = Patience(store.name, seconds)
    return store


class Away:
    """Every call fails until a time has come, after some that work."""

    def __init__(self, seconds, after=0, message="AWS Error NETWORK_CONNECTION during PutObject: 10.1.2.3"):
        self.seconds, self.after, self.message, self.end = seconds, after, message, None

    def __call__(self, *_):
        self.after -= 1
        if self.after < 0:
            self.end = self.end or time.monotonic() + self.seconds
            if time.monotonic() < self.end:
                raise OSError(self.message)


@pytest.mark.parametrize("after", range(0, 10, 2))
def test_a_store_that_is_away_for_a_while_is_waited_for_and_the_waiting_is_told_once(place, caplog, after):
    store = faulty(place, Away(0.5, after))
    with caplog.at_level(logging.WARNING):
        put(store, KEY)
        assert load_from(store, load, KEY) == 42
    assert store.retries >= 2
    assert [record.message for record in caplog.records] == [
        f"The store {store.name} does not answer; trying again for up to 5 s.",
        f"The store {store.name} answers again.",
    ]
    assert load_from(open_store(place), load, KEY) == 42


@pytest.mark.parametrize("after", range(0, 12, 2))
def test_a_store_that_stays_away_is_given_up_with_one_sentence_and_nothing_half_is_seen(place, after):
    store = faulty(place, Away(1000, after), seconds=0.3)
    begin = time.monotonic()

    def put_many():
        for number in range(9):
            put(store, f"networks/{number}")

    with pytest.raises(StoreError, match=r"did not answer for 0 seconds \(network connection\)\. Run") as caught:
        put_many()
    assert time.monotonic() - begin < 20  # others are waited for two minutes
    assert "10.1.2.3" not in str(caught.value)
    fresh = open_store(place)
    for name in fresh.children("networks"):
        assert load_from(fresh, load, f"networks/{name}") == 42


def test_a_server_that_is_frozen_in_the_middle_of_an_answer_is_given_up_as_well(place):
    never = threading.Event()
    store = faulty(place, lambda *_: never.wait(), seconds=0.5)
    begin = time.monotonic()
    with pytest.raises(StoreError, match="did not answer"):
        store.exists(KEY)
    assert 0.4 < time.monotonic() - begin < 30  # it would wait for ever
    never.set()


def test_a_server_that_refuses_is_not_asked_again(place):
    store = faulty(place, Away(1000, message="AWS Error ACCESS_DENIED during ListObjects: key AKIA123"))
    begin = time.monotonic()
    with pytest.raises(StoreError, match=r"refuses \(access denied\)\. Check its name, and the credentials") as caught:
        store.exists(KEY)
    assert time.monotonic() - begin < 10  # others are asked for two minutes
    assert "AKIA123" not in str(caught.value)
    assert store.retries == 0


class DeathError(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("call", range(8))
def test_a_writer_may_die_before_any_of_its_calls_and_nothing_half_is_seen(place, call):
    count, reader = iter(range(100)), open_store(place)
    seen = []

    def fault(*_):
        seen.append(reader.exists(KEY) and load_from(reader, load, KEY))
        if next(count) == call:
            raise DeathError

    died = False
    try:
        put(faulty(place, fault), KEY)
    except DeathError:
        died = True
    assert died or call > 5
    assert set(seen) <= {False, 42}
    assert reader.exists(KEY) == (not died) or load_from(reader, load, KEY) == 42
    # Whoever is next makes it, and reads it.
    put(open_store(place), KEY)
    assert load_from(open_store(place), load, KEY) == 42


def test_a_folder_that_another_process_makes_while_it_is_looked_for_is_no_error(place):
    """Arrow says so of local folders, even where a folder may be missing."""
    times = []

    def made_meanwhile(name, *arguments):
        if name == "get_file_info" and isinstance(arguments[0], FileSelector) and len(times) < 2:
            times.append(name)
            raise FileNotFoundError(2, "Cannot list directory")

    store = faulty(place, made_meanwhile)
    put(store, KEY)
    assert load_from(store, load, KEY) == 42
    assert len(times) == 2
    assert store.retries == 0


@pytest.mark.parametrize("filesystem", ["mock", "subtree"])
def test_other_filesystems_of_pyarrow_do_as_well(tmp_path, filesystem):
    (tmp_path / "below").mkdir()
    found = _MockFileSystem() if filesystem == "mock" else SubTreeFileSystem(str(tmp_path / "below"), LocalFileSystem())
    store = Remote("mock:///root", found)
    put(store, KEY)
    store.forget(KEY)
    assert load_from(store, load, KEY) == 42
    assert store.children("networks") == ["abc"]
    assert store.set_aside(KEY) == "mock:///root/networks/abc.damaged1"
    assert store.children("networks") == ["abc.damaged1"]


def test_a_damaged_copy_is_fetched_once_more_and_the_store_is_left_alone(place, tmp_path):
    store, said = open_store(place), []
    put(store, KEY)
    (store.get(KEY) / "data").write_bytes(b"x")
    assert find(store, load, KEY, said.append) == 42
    assert (tmp_path / "store" / KEY / "data").read_bytes() == b"12345"
    assert not said


def test_what_is_removed_while_it_is_looked_for_is_not_there(place):
    put(open_store(place), KEY)

    def fault(name, *_):
        if name == "open_input_stream":
            open_store(place).remove(KEY)

    assert not faulty(place, fault).get(KEY).exists()


def test_a_copy_is_downloaded_once(place):
    put(open_store(place), KEY)
    opened = []
    store = faulty(place, lambda name, *arguments: opened.append(arguments[0]) if name == "open_input_stream" else None)
    store.forget(KEY)
    for _ in range(3):
        assert load_from(store, load, KEY) == 42
    assert sum(path.endswith("data") for path in opened) == 1


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIA:hunter2@bucket/path",
        "s3://hunter2@bucket/path",
        "s3://bucket/path?region=x&secret_key=hunter2",
        "s3://bucket/path?access_key=hunter2",
        "abfs://container:hunter2@account.dfs.core.windows.net/path",
        "abfs://container@account.dfs.core.windows.net/path?sas_token=hunter2",
    ],
)
def test_credentials_in_a_uri_are_refused_and_not_repeated(uri):
    with pytest.raises(StoreError, match="holds credentials: put them into the environment") as caught:
        open_store(uri)
    assert "hunter2" not in str(caught.value)


def test_only_scheme_host_and_path_of_a_uri_are_shown(tmp_path):
    assert open_store("s3://bucket/path/?endpoint_override=http://host:8333&region=x").name == "s3://bucket/path"
    assert (
        open_store("abfs://container@account.dfs.core.windows.net/x").name
        == "abfs://container@account.dfs.core.windows.net/x"
    )
    assert open_store(tmp_path).name == str(tmp_path)


@pytest.mark.parametrize("uri", ["nonsense://x/y", "s3://bucket/path?nonsense=1", "gs://bucket?region=1"])
def test_a_uri_that_nobody_knows_is_one_sentence(uri):
    with pytest.raises(StoreError, match="cannot be opened"):
        open_store(uri)


def test_a_store_travels_to_other_processes_by_its_place(place, tmp_path):
    for store in (open_store(place), open_store(tmp_path)):
        for other in (pickle.loads(pickle.dumps(store)), open_store(store.place)):
            assert (type(other), other.place) == (type(store), store.place)


def test_what_is_not_an_artifact_is_not_found(place, tmp_path):
    (tmp_path / "store" / KEY).mkdir(parents=True)
    (tmp_path / "store" / KEY / "data").write_bytes(b"half")
    store = open_store(place)
    assert not store.exists(KEY)
    assert store.children("networks") == []
    with pytest.raises(ArtifactError, match="There is no"):
        load_from(store, load, KEY)
