"""Training goes on from the furthest checkpoint that is whole, whoever wrote it."""

import pytest
import torch

from ldaf_bench.stages.checkpoints import KEPT, STATE, TENSORS, newest_checkpoint, next_start, save_checkpoint
from ldaf_bench.store.store import open_store


@pytest.fixture(params=["folder", "URI"])
def store(request, tmp_path, monkeypatch):
    monkeypatch.setenv("LDAF_BENCH_CACHE", str(tmp_path / "cache"))
    return open_store(tmp_path / "store" if request.param == "folder" else f"file://{tmp_path}/store")


def save(store, start, step):
    save_checkpoint(store, f"run/{start}", {"model.x": torch.full((3,), step)}, {"step": step})
    return f"run/{start}/checkpoint_{step:012}"


def newest(store):
    found = newest_checkpoint(store, "run")
    return found and (int(found[0]["model.x"][0]), found[1])


def test_training_goes_on_from_the_furthest_whole_checkpoint_of_all_starts(store, tmp_path):
    assert newest(store) is None
    # The workers of a killed first start may have come further than the second start, which began before they ended.
    seven, twelve, thirty = (tmp_path / "store" / save(store, *which) for which in ((1, 7), (2, 12), (1, 30)))
    assert newest(store) == (30, {"step": 30})

    def damaged(path, content):
        path.write_bytes(content)
        for key in ("run/1", "run/2"):
            store.forget(key)

    damaged(thirty / TENSORS, (thirty / TENSORS).read_bytes()[:-1])
    assert newest(store) == (12, {"step": 12})
    damaged(twelve / STATE, b'{"step": 12')
    assert newest(store) == (7, {"step": 7})
    (seven / TENSORS).unlink()
    store.forget("run/1")
    assert newest(store) is None


def test_the_last_few_checkpoints_of_a_start_are_kept_and_those_of_others_are_left_alone(store, tmp_path):
    other = save(store, 1, 5)
    for step in (9, 10, 100):
        save(store, 2, step)
    assert len(store.children("run/2")) == KEPT
    assert newest(store) == (100, {"step": 100})
    assert store.exists(other)
    assert len(list(tmp_path.glob(f"cache/**/{TENSORS}"))) in (0, KEPT + 1)  # copies of what is gone are gone


def test_every_start_has_a_key_of_its_own(store):
    assert [next_start(store, "run") for _ in range(2)] == ["run/1", "run/2"]
    for name in ("10", "note"):
        with store.put(f"run/{name}/begun") as directory:
            (directory / "begun.json").write_text('{"files": {}}')
    assert next_start(store, "run") == "run/11"
