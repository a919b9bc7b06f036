"""The deterministic baseline: the same network and recipe, a plain linear layer, nothing random."""

from __future__ import annotations

import torch
from torch import Tensor

from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.theory.pushforward import Pushforward


def build(config: PriorConfig, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """A plain classifier with random weights."""
    return Classifier(config.backbone, shape, num_classes)


def push_images(model: Classifier, images: Tensor, tolerance: float | None) -> tuple[Pushforward, Tensor]:
    """Logits without uncertainty: G has no columns, and there are no nodes."""
    logits = model(images)
    num_data, num_classes = logits.shape
    error = torch.zeros(num_data, dtype=torch.float64, device=logits.device)
    pushed = Pushforward(logits, logits.new_empty(num_data, num_classes - 1, 0), error)
    return pushed, logits.new_empty(num_data, 0, num_classes)
