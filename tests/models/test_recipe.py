"""Recipes: schedules, parameter groups, and names with changes."""

import math

import pytest
import torch
from pydantic import ValidationError

from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.network import NetworkConfig
from ldaf_bench.models.recipe import RECIPES, Recipe, recipe_from, set_rate


def test_cosine_falls_from_its_peak_to_zero():
    recipe = RECIPES["paper"]
    assert recipe.rate(0.0) == recipe.learning_rate == 0.1
    assert recipe.rate(0.5) == pytest.approx(0.05)
    assert recipe.rate(1.0) == pytest.approx(0.0)
    assert recipe.rate(0.25) == pytest.approx(0.1 * (1 + math.cos(math.pi / 4)) / 2)


def test_triangle_rises_to_its_peak_and_falls_to_zero():
    recipe = Recipe(epochs=1, batch_size=2, learning_rate=2.0, weight_decay=0, schedule="triangle", warmup=0.25)
    assert [recipe.rate(p) for p in (0.0, 0.125, 0.25, 0.625, 1.0)] == pytest.approx([0, 1, 2, 1, 0])


def test_the_papers_recipe_is_the_papers():
    recipe = RECIPES["paper"]
    assert (recipe.epochs, recipe.batch_size, recipe.momentum, recipe.weight_decay) == (200, 128, 0.9, 1e-3)
    assert (recipe.shift, recipe.padding, recipe.flip, recipe.schedule) == (4, "zero", "random", "cosine")


def test_boosted_biases_learn_faster_at_the_same_decay_and_frozen_weights_not_at_all():
    model = Classifier("speednet", LinearHead(), (1, 28, 28), 4)
    recipe = RECIPES["speed"]
    optimizer = recipe.optimizer(model)
    set_rate(optimizer, 0.5)
    slow, fast = optimizer.param_groups
    assert (slow["lr"], fast["lr"]) == (0.5, 0.5 * recipe.bias_boost)
    assert slow["lr"] * slow["weight_decay"] == pytest.approx(fast["lr"] * fast["weight_decay"])
    grouped = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert grouped == {id(p) for p in model.parameters() if p.requires_grad}
    assert len(fast["params"]) == sum(isinstance(m, torch.nn.BatchNorm2d) for m in model.modules())


def test_a_name_with_changes_is_the_named_recipe_with_them():
    assert Recipe(**recipe_from("tiny")) == RECIPES["tiny"]
    changed = Recipe(**recipe_from({"base": "tiny", "epochs": 3}))
    assert changed == RECIPES["tiny"].model_copy(update={"epochs": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "tinny"},
        {"recipe": {"base": "tiny", "epoch": 3}},
        {"recipe": {"base": "tiny", "learning_rate": float("nan")}},
        {"recipe": {"base": "tiny", "epochs": 0}},
        {"recipe": {"base": ["tiny"]}},
        {"recipe": {"base": "tiny", "epochs": "3"}},
        {"recipe": {"base": "tiny", "epochs": True}},
        {"recipe": {"base": "tiny", "learning_rate": "0.1"}},
        {"head": {"kind": "pbb"}},
        {"head": {"kind": "flow", "num_nodes": "5"}},
        {"head": {"kind": "linear", "num_nodes": 5}},
        {"seed": 1.0},
        {"recipe": {"base": "tiny", "nesterov": True, "momentum": 0}},
        {"backbone": "resnet"},
        {"head": {"kind": "flow", "flow": "dafs"}},
        {"dataset": "cifar"},
        {"head": {"kind": "flow", "horizon": 0}},
        {"split": {"certificate": 1.5}},
        {"nodes": 5},
    ],
)
def test_what_is_misspelt_or_out_of_range_is_refused(change):
    right = {"dataset": "digits", "split": {"certificate": 0.2}, "backbone": "tinynet", "recipe": "tiny"}
    right["head"] = {"kind": "flow"}
    NetworkConfig(**right)
    with pytest.raises(ValidationError):
        NetworkConfig(**{**right, **change})
