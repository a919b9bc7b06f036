"""A network small enough to train in seconds: real digits, a tiny backbone, each head there is."""

import io
from functools import cache

import torch
from rich.console import Console

from ldaf_bench.data.augment import Batches
from ldaf_bench.data.datasets import load
from ldaf_bench.data.splits import split
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import Data
from ldaf_bench.models.heads import HEADS, FlowHead
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.training import Training
from ldaf_bench.pipeline import Run
from ldaf_bench.plan import make_plan
from ldaf_bench.stages.digest import digest_images
from ldaf_bench.store.networks import load_network, save_network
from ldaf_bench.store.store import load_from, open_store
from ldaf_bench.suite import Suite

RECIPE = {"base": "tiny", "epochs": 2}
CONFIG = NetworkConfig(
    dataset="digits",
    split={"certificate": 0.3},
    backbone="tinynet",
    head=FlowHead(num_nodes=5),
    recipe=RECIPE,
)
SMALL = {"num_nodes": 5}
"""Axes of heads that make a network smaller, whichever heads have them."""
QUICK = {"fit_points": 64, "max_alternations": 2, "fit_epochs": 2}
"""Axes that make a fit quick, whichever methods have them."""


def head_of(kind):
    """A small head of any entry of HEADS."""
    head = HEADS[kind] if isinstance(kind, str) else kind
    return head(**{name: value for name, value in SMALL.items() if name in head.model_fields})


def changed(recipe=None, **change):
    """The configuration with other values; `recipe` holds what differs from the recipe."""
    content = {name: getattr(CONFIG, name) for name in NetworkConfig.model_fields}
    return NetworkConfig(**{**content, "recipe": {**CONFIG.recipe.model_dump(), **(recipe or {})}, **change})


def config_for(method, **change):
    """The configuration of a method's network."""
    return changed(head=head_of(METHODS[method].head), **change)


@cache
def digits_splits(seed=0):
    dataset = load("digits")
    return dataset, split(dataset, seed=seed, certificate=0.3)


def training_of(config):
    """The plain loop of a network, in this process."""
    dataset, splits = digits_splits()
    images, labels = torch.from_numpy(dataset.images[splits.prior]), torch.from_numpy(dataset.labels[splits.prior])
    model, recipe = build(config, (1, 8, 8), dataset.num_classes), config.recipe
    model.prepare(images)
    return Training(model, recipe, Batches(images, labels, recipe.batch_size, recipe.augmentation, config.seed))


def trained(store, config=CONFIG, seed=None):
    """A stored network, trained in this process; with another seed, other weights under the same name."""
    training = training_of(config if seed is None else config.model_copy(update={"seed": seed}))
    for _ in training.run():
        pass
    weights = {name: value.contiguous() for name, value in training.bare.state_dict().items()}
    place = open_store(store)
    return load_from(place, load_network, save_network(place, config, digits_splits()[0].summary, weights, {}))


def data_of(network, method, part, count=120):
    """Some data of a part as a method sees them."""
    dataset, splits = digits_splits()
    some, entry = getattr(splits, part)[:count], METHODS[method]
    images = torch.from_numpy(dataset.images[some])
    found = digest_images(entry, entry.digest_axes(), network.model(), images)
    # Cloned: tensors of inference mode cannot be fitted on.
    tensors = {name: tensor.clone() for name, tensor in found.items()}
    return Data(tensors, torch.from_numpy(dataset.labels[some]), network)


def plan_for(method, recipe=RECIPE, axes=None, **resources):
    """A plan of one method with the configuration that `config_for` gives."""
    small = {name: value for name, value in SMALL.items() if name in METHODS[method].head.model_fields}
    content = {
        "suite": "small",
        "data": {"dataset": "digits", "certificate": 0.3},
        "networks": {"backbone": "tinynet", "recipe": recipe},
        "methods": {method: {**small, **(axes or {})}},
        "certificates": {"bound": "kl" if METHODS[method].prior else "test_set"},
        "resources": resources,
    }
    return make_plan(Suite.model_validate(content), digits_splits()[0].summary)


class Runner:
    """Runs of a plan in one store, and what they say; without Ray where none is allowed."""

    def __init__(self, plan, store):
        self.plan, self.store = plan, store
        (self.digest,) = plan.digests

    def prepared(self, ray=True):
        """A run that has not begun."""
        self.output = io.StringIO()

        def start():
            assert ray, "Ray was started."

        return Run(self.plan, digits_splits()[0], open_store(self.store), Console(file=self.output, width=1000), start)

    def __call__(self, ray=True):
        run = self.prepared(ray)
        run.make()
        return run

    def sources(self, ray=True):
        """What the plan's one digest rests on."""
        return self(ray).sources[self.digest]
