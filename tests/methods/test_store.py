"""Priors come back as they were written, under a name that says what they are; reading executes nothing."""

import dataclasses
import hashlib
import json
import math
import pickle

import pytest
import torch

from ldaf_bench.artifacts import ArtifactError, fingerprint
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.splits import LeakError, Seen, require_unseen
from ldaf_bench.methods import build
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.store import MANIFEST, WEIGHTS, load_prior, prior_id, save_prior
from tests.priors import CONFIG, digits_splits


@pytest.fixture
def saved(tmp_path):
    dataset, splits = digits_splits()
    model = build(CONFIG, (1, 8, 8), 10)
    model.prepare(torch.from_numpy(dataset.images[splits.prior]))
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    path = save_prior(tmp_path, CONFIG, dataset, weights, {"curve": [], "seconds": 1.0})
    return path, model.eval()


def test_a_prior_comes_back_as_it_was(saved):
    path, model = saved
    dataset, splits = digits_splits()
    prior = load_prior(path)
    images = torch.from_numpy(dataset.images[:7].copy())
    assert torch.equal(prior.model()(images), model(images))
    assert prior.config == CONFIG
    assert prior.identity == path.name == prior_id(CONFIG, splits.hash("prior"))
    assert prior.record["splits"]["certificate"]["hash"] == splits.hash("certificate")
    assert set(prior.record["versions"]) == {"commit", "ldaf_bench", "python", "ray", "torch", "torchvision"}
    require_unseen(prior.seen, splits)


def test_a_prior_of_another_split_cannot_be_certified(saved):
    _, other = digits_splits(seed=1)
    with pytest.raises(LeakError, match="The prior saw"):
        require_unseen(load_prior(saved[0]).seen, other)


def test_a_prior_that_saw_one_certificate_point_cannot_be_certified():
    _, splits = digits_splits()
    seen = Seen.of(splits.dataset, splits.num_data, splits.certificate[:1])
    with pytest.raises(LeakError, match="saw 1 of"):
        require_unseen(seen, splits)


def rewrite(path, change):
    """Edit the record, and its checksum too: what a person determined to would do."""
    content = json.loads((path / MANIFEST).read_text())
    content.pop("checksum")
    change(content)
    (path / MANIFEST).write_text(json.dumps({**content, "checksum": fingerprint(content)}))


def flip_a_byte(path):
    content = bytearray((path / WEIGHTS).read_bytes())
    content[-1] ^= 1
    (path / WEIGHTS).write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_byte,
        lambda path: (path / WEIGHTS).unlink(),
        lambda path: rewrite(path, lambda content: content.pop("seen")),
        lambda path: rewrite(path, lambda content: content["config"].update(flow="other")),
        lambda path: rewrite(path, lambda content: content["dataset"].update(shape=[1, 8])),
        lambda path: rewrite(path, lambda content: content["config"].update(horizon=2.0)),
        lambda path: rewrite(path, lambda content: content["config"]["split"].update(seed=1)),
        lambda path: rewrite(path, lambda content: content.update(prior="../../outside")),
        lambda path: rewrite(path, lambda content: content["seen"].update(bits=content["seen"]["bits"][::-1])),
        lambda path: rewrite(path, lambda content: content.update(files={})),
    ],
    ids=["altered", "missing", "unseen", "flow", "shape", "horizon", "split", "name", "bits", "unlisted"],
)
def test_damaged_priors_are_refused(saved, damage):
    damage(saved[0])
    with pytest.raises(ArtifactError, match=r"changed|damaged|does not hold|holds another|There is no"):
        load_prior(saved[0])


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    dataset, _ = digits_splits()
    weights = {name: value.contiguous() for name, value in build(CONFIG, (1, 8, 8), 10).state_dict().items()}
    weights["linear.bias"][3] = math.nan
    with pytest.raises(ValueError, match=r"linear\.bias must be finite"):
        save_prior(tmp_path, CONFIG, dataset, weights, {})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_prior_for_one_data_set_is_not_trained_on_another():
    dataset, _ = digits_splits()
    other = dataclasses.replace(dataset, name="folder")
    with pytest.raises(DataError, match="cannot be trained on folder"):
        CONFIG.splits(other)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("A pickle was loaded.",))


def test_weights_that_are_a_pickle_are_refused_and_not_loaded(saved):
    path, _ = saved
    content = pickle.dumps(Trap())
    (path / WEIGHTS).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    rewrite(path, lambda record: record["files"].update({WEIGHTS: digest}))
    with pytest.raises(ArtifactError, match="does not hold a prior"):
        load_prior(path)


def test_whatever_changes_the_weights_changes_the_name():
    _, splits = digits_splits()
    _, other_splits = digits_splits(seed=1)
    base = CONFIG.model_dump()
    changes = [
        {"flow": "sflow"}, {"num_nodes": 6}, {"horizon": 2.0}, {"seed": 1}, {"method": "deterministic"},
        {"backbone": "speednet"}, *({"recipe": {**base["recipe"], **change}} for change in (
            {"epochs": 3}, {"batch_size": 65}, {"learning_rate": 0.2}, {"momentum": 0.8}, {"nesterov": True},
            {"weight_decay": 0.1}, {"schedule": "triangle"}, {"warmup": 0.2}, {"bias_boost": 2},
            {"label_smoothing": 0.1}, {"shift": 1}, {"padding": "reflect"}, {"flip": "random"},
        )),
    ]  # fmt: skip
    points = splits.hash("prior")
    names = {prior_id(PriorConfig(**{**base, **change}), points) for change in [{}, *changes]}
    names.add(prior_id(CONFIG, other_splits.hash("prior")))
    assert len(names) == len(changes) + 2


def test_the_baseline_has_one_name_whatever_flow_it_does_not_use():
    _, splits = digits_splits()
    base = {**CONFIG.model_dump(), "method": "deterministic"}
    names = {
        prior_id(PriorConfig(**{**base, **change}), splits.hash("prior"))
        for change in [{"flow": "daf"}, {"flow": "sflow"}, {"num_nodes": 9}, {"horizon": 3.0}]
    }
    assert len(names) == 1
