"""The pushforward on disk is that of the prior, in the order of the split, and only for data that it never saw."""

import numpy as np
import pytest
import torch

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.data.splits import LeakError
from ldaf_bench.methods import METHODS, build, push_images
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.store import load_prior, save_prior
from ldaf_bench.stages import push as stage
from ldaf_bench.stages.push import load_pushed, push
from ldaf_bench.stages.session import Resources
from tests.priors import CONFIG, digits_splits

TWO = Resources(workers=2, cpus_per_worker=1)


def prior_of(store, **change):
    """A prior with random weights: pushing does not care."""
    dataset, splits = digits_splits()
    config = PriorConfig(**{**CONFIG.model_dump(), **change})
    model = build(config, (1, 8, 8), 10)
    images = torch.from_numpy(dataset.images[splits.prior])
    model.prepare(images)
    model.train()(images)  # so that BatchNorm's statistics are not those of the start
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    return load_prior(save_prior(store, config, dataset, splits, weights, {}))


@pytest.mark.parametrize("method", METHODS)
def test_shards_together_are_the_whole_in_order(cluster, tmp_path, monkeypatch, method):
    monkeypatch.setattr(stage, "SHARD", 100)  # 359 test points: four shards, the last one smaller
    dataset, splits = digits_splits()
    prior = prior_of(tmp_path, method=method)
    pushed = load_pushed(push(prior, dataset, splits, "test", tmp_path, TWO))
    expected = push_images(prior.config, prior.model(), torch.from_numpy(dataset.images[splits.test]))
    for name, value in expected._asdict().items():
        torch.testing.assert_close(getattr(pushed.pushforward, name), value, rtol=1e-4, atol=1e-5)
    assert torch.equal(pushed.labels, torch.from_numpy(dataset.labels[splits.test]))
    assert pushed.record["points"] == {"size": 359, "hash": splits.hash("test")}
    wrong = (expected.mean.argmax(1).numpy() != dataset.labels[splits.test]).mean()
    assert pushed.mean_error == pytest.approx(wrong, abs=1 / 359)


def test_a_pushforward_is_made_once_and_read_without_a_copy(cluster, tmp_path):
    dataset, splits = digits_splits()
    prior = prior_of(tmp_path)
    path = push(prior, dataset, splits, "certificate", tmp_path, TWO)
    made = (path / "rows.npy").stat().st_mtime_ns
    assert push(prior, dataset, splits, "certificate", tmp_path, TWO) == path
    assert (path / "rows.npy").stat().st_mtime_ns == made
    rows = load_pushed(path).pushforward.rows
    assert isinstance(np.load(path / "rows.npy", mmap_mode="r"), np.memmap)
    before = (path / "rows.npy").read_bytes()
    rows[0] = 0  # copy on write: the file is not touched
    assert (path / "rows.npy").read_bytes() == before


def test_the_prior_must_not_have_seen_what_it_is_pushed_forward_on(cluster, tmp_path):
    dataset, _ = digits_splits()
    _, other = digits_splits(seed=1)
    prior = prior_of(tmp_path)
    for part in ("certificate", "test"):
        with pytest.raises(LeakError, match="The prior saw"):
            push(prior, dataset, other, part, tmp_path, TWO)
    assert not (tmp_path / "pushforwards").exists()


def test_an_altered_pushforward_is_refused(cluster, tmp_path):
    dataset, splits = digits_splits()
    path = push(prior_of(tmp_path), dataset, splits, "test", tmp_path, TWO)
    content = bytearray((path / "mean.npy").read_bytes())
    content[-1] ^= 1
    (path / "mean.npy").write_bytes(content)
    with pytest.raises(ArtifactError, match="delete"):
        load_pushed(path)
