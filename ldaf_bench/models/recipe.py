r"""RECIPES: how a network is trained. The suite names one and may change any field."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema
from torch import nn

from ldaf_bench.data.augment import Augmentation, Flip, Padding
from ldaf_bench.models.classifier import Views
from ldaf_bench.theory.arguments import require_entry


class Recipe(BaseModel):
    """SGD with momentum over a fixed number of epochs: nothing is selected, nothing stops early."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(ge=1, strict=True)
    batch_size: int = Field(ge=2, strict=True)
    """Of all workers together."""
    learning_rate: float = Field(gt=0, allow_inf_nan=False, strict=True)
    """Its peak."""
    momentum: float = Field(0.9, ge=0, lt=1, strict=True)
    nesterov: bool = Field(False, strict=True)
    weight_decay: float = Field(ge=0, allow_inf_nan=False, strict=True)
    schedule: Literal["cosine", "triangle"] = "cosine"
    """`cosine` falls from the peak to 0; `triangle` rises linearly over `warmup` and falls linearly to 0."""
    warmup: float = Field(0.0, ge=0, lt=1, strict=True)
    """Fraction of all steps."""
    bias_boost: float = Field(1.0, gt=0, allow_inf_nan=False, strict=True)
    """The biases of BatchNorm learn this many times faster, at the same decay per step."""
    label_smoothing: float = Field(0.0, ge=0, lt=1, strict=True)
    shift: int = Field(4, ge=0, strict=True)
    """Images are shifted by up to this many pixels."""
    padding: Padding = "zero"
    flip: Flip = "random"
    cutout: int = Field(0, ge=0, strict=True)
    """Side of a square of each image that is painted over, at a random place; 0: none."""
    small: float = Field(0.0, ge=0, lt=1, strict=True)
    """Fraction of all steps, the first ones, that see smaller images, which cost less."""
    small_size: float = Field(0.75, gt=0, le=1, strict=True)
    """Height and width of the smaller images, as a fraction of those of the data."""
    views: Views = "plain"
    """What the trained classifier looks at. `mirrored` averages the features of an image and of its mirror image;
    `shifted` gives that weight ½, and weight ½ to the same of the image moved diagonally by a pixel to either side."""
    average: float = Field(0.0, ge=0, lt=1, strict=True)
    """Fraction of all steps, the last ones, over which the weights are averaged in the end."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of convolutions and matrix products in training. `bfloat16` is used where the processor has it (most GPUs, recent
    CPUs); elsewhere training is in float32. Weights, flows and trained classifiers are always in float32."""

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> Self:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """As files have it: a name, or `base` and what differs, or everything."""
        whole = handler.resolve_ref_schema(handler(core))
        named = {"type": "string", "enum": list(RECIPES)}
        fields = {**whole, "properties": {"base": named, **whole["properties"]}}
        needed = [{"required": ["base"]}, {"required": fields.pop("required")}]
        return {"anyOf": [named, {**fields, "anyOf": needed}]}

    @property
    def augmentation(self) -> Augmentation:
        """The part that concerns images."""
        return Augmentation(shift=self.shift, padding=self.padding, flip=self.flip, cutout=self.cutout)

    def rate(self, progress: float) -> float:
        """The learning rate when this fraction of all steps is done."""
        if progress < self.warmup:
            return self.learning_rate * progress / self.warmup
        fallen = (progress - self.warmup) / (1 - self.warmup)
        if self.schedule == "cosine":
            return self.learning_rate * (1 + math.cos(math.pi * fallen)) / 2
        return self.learning_rate * (1 - fallen)

    def size(self, progress: float, height: int, width: int) -> tuple[int, int]:
        """Height and width of the images when this fraction of all steps is done."""
        factor = self.small_size if progress < self.small else 1.0
        return round(factor * height), round(factor * width)

    def optimizer(self, model: nn.Module) -> torch.optim.SGD:
        """SGD with one group for BatchNorm's biases and one for everything else that is trained."""
        fast = [
            module.bias for module in model.modules() if isinstance(module, nn.BatchNorm2d) and self.bias_boost != 1
        ]
        among = {id(parameter) for parameter in fast}
        others = [p for p in model.parameters() if p.requires_grad and id(p) not in among]
        groups: list[dict[str, object]] = [{"params": others, "boost": 1.0, "weight_decay": self.weight_decay}]
        if fast:
            groups.append(
                {"params": fast, "boost": self.bias_boost, "weight_decay": self.weight_decay / self.bias_boost}
            )
        return torch.optim.SGD(groups, lr=self.learning_rate, momentum=self.momentum, nesterov=self.nesterov)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The same rate for all groups, times each group's boost."""
    groups: Sequence[dict[str, float]] = optimizer.param_groups
    for group in groups:
        group["lr"] = rate * group["boost"]


RECIPES: dict[str, Recipe] = {
    "paper": Recipe(epochs=200, batch_size=128, learning_rate=0.1, weight_decay=1e-3, precision="bfloat16"),
    "speed": Recipe(
        epochs=16, batch_size=500, learning_rate=0.75, momentum=0.85, nesterov=True, weight_decay=1.3e-3,
        schedule="triangle", warmup=0.2, bias_boost=64, label_smoothing=0.2, shift=2, padding="reflect",
        flip="alternating", precision="bfloat16",
    ),
    "tiny": Recipe(epochs=20, batch_size=64, learning_rate=0.1, weight_decay=1e-4, warmup=0.1, shift=0, flip="none"),
}  # fmt: skip
"""`paper` [Boll22, Sec. 5.1]; `speed` for `speednet`, after [Jordan24]; `tiny` for `tinynet` and digits."""


def recipe_from(value: Any) -> Any:
    """A recipe by its name, or by `base` and the fields that differ; anything else is for pydantic to judge."""
    if isinstance(value, str):
        value = {"base": value}
    if not (isinstance(value, Mapping) and "base" in value):
        return value
    base = value["base"]
    if not isinstance(base, str):
        raise ValueError("A recipe's base must be a name: one of " + ", ".join(RECIPES) + ".")
    require_entry("recipe", base, RECIPES)
    changes = {key: field for key, field in value.items() if key != "base"}
    return {**RECIPES[base].model_dump(), **changes}
