r"""HEADS: what sits on a backbone and is trained with it. Methods with the same head share the trained network.

A head is a `HeadSpec`: its fields are the axes that change the network, and `build` makes the module. The flow head's
linear layer makes features F of shape (n, c); the flow carries them to the logits of the class node, node 0
[Boll22, Sec. 5.1].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from ldaf_bench.sections import EntryOf, Positive, Shown, Spec
from ldaf_bench.theory.arguments import require_entry
from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from ldaf_bench.theory.seeds import named_generator


class HeadSpec(Spec, ABC):
    """An entry of HEADS."""

    kind: ClassVar[str]
    """Its name."""

    @abstractmethod
    def build(self, width: int, num_classes: int) -> nn.Module:
        """A module from vectors (batch, width) and the backbone's output scale to logits (batch, c)."""

    def refusal(self, num_classes: int) -> str:
        """Why it cannot be trained for so many classes; empty if it can."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """All that it is, for a JSON file."""
        return {"kind": self.kind, **self.used()}


class LinearHead(HeadSpec):
    """Logits straight from a linear layer."""

    kind = "linear"

    def build(self, width: int, num_classes: int) -> nn.Module:
        return Linear(width, num_classes)


class FlowHead(HeadSpec):
    """A linear layer to node features, and an assignment flow from these to logits."""

    kind = "flow"

    flow: Annotated[str, EntryOf("flow", FLOWS)] = "daf"
    """Fitness operator of the flow."""
    num_nodes: Annotated[int, Field(ge=1, le=10_000, strict=True), Shown("n")] = 50
    """n: nodes of the flow."""
    horizon: Annotated[Positive, Shown("T")] = 1.0
    """T: how long the flow runs."""

    def build(self, width: int, num_classes: int) -> nn.Module:
        return Flow(width, num_classes, self)

    def refusal(self, num_classes: int) -> str:
        entries = math.prod(FLOWS[self.flow].shape(self.num_nodes, num_classes))
        if entries > MOST_ENTRIES:
            return (
                f"{self.num_nodes} nodes of {num_classes} classes are too many for {self.flow}, whose fitness would "
                f"have {entries} entries: lower num_nodes, or use sflow."
            )
        return ""


MOST_ENTRIES = 400_000_000
"""Of a flow's fitness: it takes 1.6 GB then, its momentum as much again."""
HEADS: dict[str, type[HeadSpec]] = {head.kind: head for head in (LinearHead, FlowHead)}


def head_from(value: Any) -> HeadSpec:
    """A head from what `to_json` gave."""
    if isinstance(value, HeadSpec):
        return value
    content = dict(value)
    kind = content.pop("kind")
    require_entry("head", kind, HEADS)
    return HEADS[kind](**content)


class Linear(nn.Module):
    """A linear layer."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)

    def forward(self, vectors: Tensor, scale: float) -> Tensor:
        """Logits, in float32 whatever the precision inside."""
        return self.linear(vectors).float() * scale


class Flow(nn.Module):
    """A linear layer to features (n, c), and the flow started at v₀ = 0."""

    def __init__(self, width: int, num_classes: int, spec: FlowHead) -> None:
        super().__init__()
        self.spec, self.num_classes = spec, num_classes
        self.linear = nn.Linear(width, spec.num_nodes * num_classes)
        # The seed comes from torch's generator, which `build` fixes; the scale is that of `initial_parameter`.
        generator = named_generator("flow", int(torch.randint(2**31, ())))
        self.weight = nn.Parameter(initial_parameter(spec.flow, spec.num_nodes, num_classes, generator=generator))

    @property
    def parameter(self) -> Tensor:
        """Ω: symmetric, as the flow wants it."""
        return FLOWS[self.spec.flow].constrain(self.weight)

    def features(self, vectors: Tensor, scale: float) -> Tensor:
        """F of shape (batch, n, c), in float32 whatever the precision inside."""
        return (self.linear(vectors).float() * scale).unflatten(1, (self.spec.num_nodes, self.num_classes))

    def forward(self, vectors: Tensor, scale: float) -> Tensor:
        """Logits of the mean classifier."""
        return forward(self.spec.flow, self.parameter, self.features(vectors, scale), self.spec.horizon)
