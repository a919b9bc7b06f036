"""A network: what determines it, and its trained weights. Trained on the prior part only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from torch import Tensor, nn

from ldaf_bench.data.dataset import DataError, Dataset, Summary
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.splits import Seen, Splits, split
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import HeadSpec, head_from
from ldaf_bench.models.recipe import Recipe, recipe_from
from ldaf_bench.sections import EntryOf, Section
from ldaf_bench.theory.seeds import named_seed


class SplitConfig(Section):
    """How the data are divided."""

    seed: int = Field(0, strict=True)
    certificate: float = Field(gt=0, lt=1, strict=True)
    """Fraction of the points outside the test part that certify; all others train networks."""
    test: float = Field(0.2, gt=0, lt=1, strict=True)
    """Fraction of all points that test, for data without a test set of their own."""
    validation: float | None = Field(None, gt=0, lt=1, strict=True)
    """Fraction of the prior part that takes the places of certificate and test part, to compare recipes."""


class NetworkConfig(Section):
    """All that determines a network: data, backbone, head and how they are trained.

    Two networks of one configuration are as good as each other. Their weights differ if they were trained by different
    numbers of workers (each normalizes its own part of a batch), on other devices, or by other versions of torch: the
    record says which.
    """

    dataset: Annotated[str, EntryOf("dataset", DATASETS)]
    split: SplitConfig
    backbone: Annotated[str, EntryOf("backbone", BACKBONES)]
    head: Annotated[HeadSpec, BeforeValidator(head_from), PlainSerializer(lambda head: head.to_json())]
    recipe: Annotated[Recipe, BeforeValidator(recipe_from)]
    seed: int = Field(0, strict=True)
    """Seed of initial weights, order of the data and augmentation."""

    def splits(self, dataset: Dataset | Summary) -> Splits:
        """The split that the configuration draws from its data set."""
        if dataset.name != self.dataset:
            raise DataError(f"This network is for {self.dataset}; it cannot be trained on {dataset.name}.")
        return split(dataset, **self.split.model_dump())


@dataclass(frozen=True)
class Network:
    """A trained network, and all that is known about it."""

    identity: str
    config: NetworkConfig
    shape: tuple[int, int, int]
    num_classes: int
    seen: Seen
    """The points that it was trained on."""
    weights: dict[str, Tensor]
    record: dict[str, Any]
    """The manifest: split hashes, versions, where it was trained, the training curve."""

    def model(self) -> Classifier:
        """The classifier itself, in eval mode."""
        model = build(self.config, self.shape, self.num_classes)
        model.load_state_dict(self.weights)
        return model.eval()


def build(config: NetworkConfig, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """The classifier that the configuration describes; its random weights depend on the configuration's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed("weights", config.seed))
        model = Classifier(config.backbone, config.head, shape, num_classes, config.recipe.views)
    # Faster on CPU as well (see CONTRIBUTING). The backbone only: Ω has four axes too, but is no image.
    nn.Module.to(model.backbone, memory_format=torch.channels_last)
    return model
