"""Training goes on from the furthest checkpoint that is whole, whoever wrote it."""

import torch

from ldaf_bench.stages.checkpoints import KEPT, STATE, TENSORS, newest_checkpoint, next_start, save_checkpoint


def save(place, step):
    save_checkpoint(place, {"model.x": torch.full((3,), step)}, {"step": step})
    return place / f"checkpoint_{step:012}"


def newest(run):
    found = newest_checkpoint(run)
    return found and (int(found[0]["model.x"][0]), found[1]["step"])


def test_training_goes_on_from_the_furthest_whole_checkpoint_of_all_starts(tmp_path):
    assert newest(tmp_path) is None
    # The workers of a killed first start may have come further than the second start, which began before they ended.
    seven, twelve, thirty = save(tmp_path / "1", 7), save(tmp_path / "2", 12), save(tmp_path / "1", 30)
    assert newest(tmp_path) == (30, 30)
    tensors = thirty / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:-1])
    assert newest(tmp_path) == (12, 12)
    (twelve / STATE).write_text('{"step": 12')
    assert newest(tmp_path) == (7, 7)
    (seven / TENSORS).unlink()
    assert newest(tmp_path) is None


def test_the_last_few_checkpoints_of_a_start_are_kept_and_those_of_others_are_left_alone(tmp_path):
    other = save(tmp_path / "1", 5)
    for step in (9, 10, 100):
        save(tmp_path / "2", step)
    assert len(list((tmp_path / "2").iterdir())) == KEPT
    assert newest(tmp_path) == (100, 100)
    assert other.exists()


def test_every_start_has_a_folder_of_its_own(tmp_path):
    assert next_start(tmp_path / "run") == tmp_path / "run" / "1"
    for number in (1, 2, 10):
        (tmp_path / "run" / str(number)).mkdir(parents=True)
    (tmp_path / "run" / "note").mkdir()
    assert next_start(tmp_path / "run").name == "11"
