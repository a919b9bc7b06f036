"""The pushforward on disk is that of the prior, in the order of the split, and only for data that it never saw."""

import dataclasses
import io
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.data.splits import LeakError, Seen
from ldaf_bench.methods import METHODS, build, push_images
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.pushed import load_pushed
from ldaf_bench.methods.store import load_prior, save_prior
from ldaf_bench.resources import Resources
from ldaf_bench.stages import push as stage
from ldaf_bench.stages.push import push
from tests.priors import CONFIG, digits_splits

TWO = Resources(workers=2, cpus_per_worker=1)


def prior_of(store, seed=0, **change):
    """A prior with random weights: pushing does not care."""
    dataset, splits = digits_splits()
    config = PriorConfig(**{**CONFIG.model_dump(), **change})
    model = build(config.model_copy(update={"seed": seed}), (1, 8, 8), 10)
    images = torch.from_numpy(dataset.images[splits.prior])
    model.prepare(images)
    model.train()(images)  # so that BatchNorm's statistics are not those of the start
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    return load_prior(save_prior(store, config, dataset, weights, {}))


@pytest.mark.parametrize("method", METHODS)
def test_shards_together_are_the_whole_in_order(cluster, tmp_path, monkeypatch, method):
    monkeypatch.setattr(stage, "SHARD", 100)  # 359 test points: four shards, the last one smaller
    dataset, splits = digits_splits()
    prior = prior_of(tmp_path, method=method)
    pushed = push(prior, dataset, "test", tmp_path, TWO)
    expected, features = push_images(prior.config, prior.model(), torch.from_numpy(dataset.images[splits.test]))
    for name, value in expected._asdict().items():
        torch.testing.assert_close(getattr(pushed.pushforward, name), value, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(pushed.features, features, rtol=1e-4, atol=1e-5)
    assert torch.equal(pushed.labels, torch.from_numpy(dataset.labels[splits.test]))
    assert pushed.record["points"] == splits.hash("test")
    assert pushed.record["num_data"] == 359
    wrong = (expected.mean.argmax(1).numpy() != dataset.labels[splits.test]).mean()
    assert pushed.mean_error == pytest.approx(wrong, abs=1 / 359)


def test_a_pushforward_is_made_once_and_read_memory_mapped(cluster, tmp_path):
    dataset, _ = digits_splits()
    prior = prior_of(tmp_path)
    path = push(prior, dataset, "certificate", tmp_path, TWO).path
    made = (path / "rows.npy").stat().st_mtime_ns
    pushed = push(prior, dataset, "certificate", tmp_path, TWO)
    assert pushed.path == path
    assert (path / "rows.npy").stat().st_mtime_ns == made
    assert str(path / "rows.npy") in Path("/proc/self/maps").read_text()
    before = (path / "rows.npy").read_bytes()
    pushed.pushforward.rows[0] = 0  # copy on write: the file is not touched
    assert (path / "rows.npy").read_bytes() == before


def test_a_prior_trained_again_to_other_weights_is_pushed_forward_again(cluster, tmp_path):
    dataset, _ = digits_splits()
    first = prior_of(tmp_path)
    before = push(first, dataset, "test", tmp_path, TWO)
    shutil.rmtree(tmp_path / "priors")
    again = prior_of(tmp_path, seed=5)
    assert again.identity == first.identity
    after = push(again, dataset, "test", tmp_path, TWO)
    assert not torch.equal(before.pushforward.mean, after.pushforward.mean)


def test_the_prior_must_not_have_seen_what_it_is_pushed_forward_on(cluster, tmp_path):
    dataset, splits = digits_splits()
    honest = prior_of(tmp_path)
    for part in ("certificate", "test"):
        indices = np.sort(np.append(splits.prior, getattr(splits, part)[0]))
        prior = dataclasses.replace(honest, seen=Seen.of(splits.dataset, splits.num_data, indices))
        for other in ("prior", "certificate", "test"):
            with pytest.raises(LeakError, match=f"The prior saw 1 of the .* {part} points"):
                push(prior, dataset, other, tmp_path, TWO)
    assert not (tmp_path / "pushforwards").exists()


def test_a_prior_is_not_pushed_forward_on_data_that_changed(cluster, tmp_path):
    dataset, _ = digits_splits()
    images = dataset.images.copy()
    images[0] += 1
    changed = dataclasses.replace(dataset, images=images)
    with pytest.raises(LeakError, match="other data"):
        push(prior_of(tmp_path), changed, "test", tmp_path, TWO)


def test_an_altered_pushforward_is_refused_and_made_again(cluster, tmp_path):
    dataset, _ = digits_splits()
    prior = prior_of(tmp_path)
    path = push(prior, dataset, "test", tmp_path, TWO).path
    content = (path / "mean.npy").read_bytes()
    (path / "mean.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=r"changed|damaged|does not hold|holds another|There is no"):
        load_pushed(path)
    output = io.StringIO()
    push(prior, dataset, "test", tmp_path, TWO, Console(file=output, width=1000))
    assert "made again" in output.getvalue()
    assert (path / "mean.npy").read_bytes() == content


def test_a_pushforward_under_another_name_is_refused(cluster, tmp_path):
    dataset, _ = digits_splits()
    path = push(prior_of(tmp_path), dataset, "test", tmp_path, TWO).path
    wrong = path.with_name(path.name.replace("test", "certificate"))
    path.rename(wrong)
    with pytest.raises(ArtifactError, match="than its name says"):
        load_pushed(wrong)
