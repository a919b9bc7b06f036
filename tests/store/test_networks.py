"""Networks come back as they were written, under a name that says what they are; reading executes nothing."""

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
from ldaf_bench.models.heads import HEADS
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.recipe import Recipe
from ldaf_bench.store.folder import Folder
from ldaf_bench.store.networks import MANIFEST, WEIGHTS, load_network, network_id, save_network
from tests.networks import CONFIG, changed, digits_splits, head_of


def save(store, config):
    dataset, splits = digits_splits()
    model = build(config, (1, 8, 8), 10)
    model.prepare(torch.from_numpy(dataset.images[splits.prior]))
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    key = save_network(Folder(store), config, dataset.summary, weights, {"curve": [], "seconds": 1.0})
    return store / key, model.eval()


@pytest.fixture
def saved(tmp_path):
    return save(tmp_path, CONFIG)


@pytest.mark.parametrize("kind", HEADS)
def test_a_network_comes_back_as_it_was(tmp_path, kind):
    config = changed(head=head_of(kind))
    path, model = save(tmp_path, config)
    dataset, splits = digits_splits()
    network = load_network(path)
    images = torch.from_numpy(dataset.images[:7].copy())
    assert torch.equal(network.model()(images), model(images))
    assert network.config == config
    assert network.identity == path.name == network_id(config, splits.hash("prior"))
    assert network.record["splits"]["certificate"]["hash"] == splits.hash("certificate")
    assert set(network.record["versions"]) == {"commit", "ldaf_bench", "python", "ray", "torch", "torchvision"}
    require_unseen(network.seen, splits)


def test_a_network_of_another_split_cannot_be_certified(saved):
    _, other = digits_splits(seed=1)
    with pytest.raises(LeakError, match="saw"):
        require_unseen(load_network(saved[0]).seen, other)


def test_a_network_that_saw_one_certificate_point_cannot_be_certified():
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
        lambda path: rewrite(path, lambda content: content["config"]["head"].update(flow="other")),
        lambda path: rewrite(path, lambda content: content["dataset"].update(shape=[1, 8])),
        lambda path: rewrite(path, lambda content: content["config"]["head"].update(horizon=2.0)),
        lambda path: rewrite(path, lambda content: content["config"]["split"].update(seed=1)),
        lambda path: rewrite(path, lambda content: content.update(network="../../outside")),
        lambda path: rewrite(path, lambda content: content["seen"].update(bits=content["seen"]["bits"][::-1])),
        lambda path: rewrite(path, lambda content: content.update(files={})),
    ],
    ids=["altered", "missing", "unseen", "flow", "shape", "horizon", "split", "name", "bits", "unlisted"],
)
def test_damaged_networks_are_refused(saved, damage):
    damage(saved[0])
    with pytest.raises(ArtifactError, match=r"changed|damaged|does not hold|holds another|There is no"):
        load_network(saved[0])


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    dataset, _ = digits_splits()
    weights = {name: value.contiguous() for name, value in build(CONFIG, (1, 8, 8), 10).state_dict().items()}
    weights["head.linear.bias"][3] = math.nan
    with pytest.raises(ValueError, match=r"head\.linear\.bias must be finite"):
        save_network(Folder(tmp_path), CONFIG, dataset.summary, weights, {})
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_network_for_one_data_set_is_not_trained_on_another():
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
    with pytest.raises(ArtifactError, match="does not hold a network"):
        load_network(path)


@pytest.mark.parametrize("views", ["plain", "mirrored", "shifted"])
def test_a_network_looks_at_the_views_of_its_recipe(tmp_path, views):
    path, model = save(tmp_path, changed(recipe={**CONFIG.recipe.model_dump(), "views": views}))
    assert model.views == load_network(path).model().views == views


def test_whatever_changes_the_weights_changes_the_name():
    _, splits = digits_splits()
    _, other_splits = digits_splits(seed=1)
    base = CONFIG.model_dump()
    heads = [{"flow": "sflow"}, {"num_nodes": 6}, {"horizon": 2.0}]
    recipes = [
        {"epochs": 3}, {"batch_size": 65}, {"learning_rate": 0.2}, {"momentum": 0.8}, {"nesterov": True},
        {"weight_decay": 0.1}, {"schedule": "triangle"}, {"warmup": 0.2}, {"bias_boost": 2}, {"label_smoothing": 0.1},
        {"shift": 1}, {"padding": "reflect"}, {"flip": "random"}, {"views": "mirrored"}, {"views": "shifted"},
        {"average": 0.1}, {"precision": "bfloat16"}, {"cutout": 3}, {"small": 0.5}, {"small_size": 0.5},
    ]  # fmt: skip
    assert {name for change in recipes for name in change} == set(Recipe.model_fields), "Add the new field here."
    assert {name for change in heads for name in change} == set(type(CONFIG.head).model_fields)
    changes = [
        {"seed": 1},
        {"head": {"kind": "linear"}},
        {"backbone": "speednet"},
        *({"head": {**base["head"], **change}} for change in heads),
        *({"recipe": {**base["recipe"], **change}} for change in recipes),
    ]
    points = splits.hash("prior")
    names = {network_id(NetworkConfig(**{**base, **change}), points) for change in [{}, *changes]}
    names.add(network_id(CONFIG, other_splits.hash("prior")))
    assert len(names) == len(changes) + 2


def test_a_setting_that_is_added_later_keeps_the_names_of_networks():
    class NewRecipe(Recipe):
        sparkle: float = 0.5

    class NewHead(type(CONFIG.head)):
        glitter: int = 3

    class NewConfig(NetworkConfig):
        recipe: NewRecipe

    def newer(sparkle=0.5, glitter=3):
        content = {name: getattr(CONFIG, name) for name in NetworkConfig.model_fields}
        content["recipe"] = NewRecipe(**CONFIG.recipe.model_dump(), sparkle=sparkle)
        content["head"] = NewHead(**CONFIG.head.model_dump(), glitter=glitter)
        return network_id(NewConfig(**content), "points")

    assert newer() == network_id(CONFIG, "points")
    assert len({newer(), newer(sparkle=0.7), newer(glitter=4)}) == 3
