r"""Classifiers of uint8 images: normalization → backbone → linear layer → flow (or nothing) → logits.

The LDAF classifier's linear layer makes features F of shape (n, c); the flow carries them to the logits of the class
node, node 0 [Boll22, Sec. 5.1]. Normalization constants are part of the classifier: its weights say all that it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.theory.arguments import require_entry
from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from ldaf_bench.theory.seeds import named_generator

SAMPLE = 5000
"""At most so many prior images are shown to a backbone's `prepare`."""


class Classifier(nn.Module):
    """A backbone with a linear layer: logits straight from it. The deterministic baseline."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, backbone: str, shape: tuple[int, int, int], num_outputs: int) -> None:
        super().__init__()
        require_entry("backbone", backbone, BACKBONES)
        channels, height, width = shape
        self.shape = shape
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("deviation", torch.ones(channels, 1, 1))
        self.backbone = BACKBONES[backbone](channels, (height, width))
        self.linear = nn.Linear(self.backbone.width, num_outputs)

    def prepare(self, images: Tensor) -> None:
        """Fix normalization and whitening, from uint8 images of the *prior* split."""
        channels = images.shape[1]
        # Exact whatever the order: the moments come from the histogram of each channel.
        levels = torch.arange(256, dtype=torch.float64)
        counts = torch.stack([torch.bincount(images[:, k].flatten().int(), minlength=256) for k in range(channels)])
        mean = (counts * levels).sum(1) / counts.sum(1)
        variance = (counts * (levels - mean[:, None]) ** 2).sum(1) / counts.sum(1)
        with torch.no_grad():
            self.mean.copy_(mean.view_as(self.mean))
            self.deviation.copy_(variance.sqrt().clamp_min(1.0).view_as(self.deviation))
        # Spread over all of them: people's own data may be sorted by class.
        self.backbone.prepare(self.normalize(images[:: -(-len(images) // SAMPLE)]))

    def normalize(self, images: Tensor) -> Tensor:
        """From uint8 to mean 0 and deviation 1 per channel."""
        return (images - self.mean) / self.deviation

    def outputs(self, images: Tensor) -> Tensor:
        """The linear layer's outputs, in float32 whatever the precision inside."""
        return self.linear(self.backbone(self.normalize(images))).float() * self.backbone.scale

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, c)."""
        return self.outputs(images)


class LDAFClassifier(Classifier):
    """The classifier whose linear layer makes features (n, c) and whose logits come from a flow started at v₀ = 0."""

    def __init__(
        self, backbone: str, shape: tuple[int, int, int], num_classes: int, num_nodes: int, flow: str, horizon: float
    ) -> None:
        super().__init__(backbone, shape, num_nodes * num_classes)
        self.num_nodes, self.num_classes, self.flow, self.horizon = num_nodes, num_classes, flow, horizon
        # The seed is replaced when `build` fixes torch's generator; the scale is that of `initial_parameter`.
        generator = named_generator("flow", int(torch.randint(2**31, ())))
        self.flow_weight = nn.Parameter(initial_parameter(flow, num_nodes, num_classes, generator=generator))

    @property
    def flow_parameter(self) -> Tensor:
        """Ω: symmetric, as the flow wants it."""
        return FLOWS[self.flow].constrain(self.flow_weight)

    def features(self, images: Tensor) -> Tensor:
        """F of shape (batch, n, c)."""
        return self.outputs(images).unflatten(1, (self.num_nodes, self.num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, c) of the mean classifier."""
        return forward(self.flow, self.flow_parameter, self.features(images), self.horizon)
