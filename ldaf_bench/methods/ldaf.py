"""The linearized deep assignment flow: features → flow → Gaussian logits."""

from __future__ import annotations

from torch import Tensor

from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.models.classifier import Classifier, LDAFClassifier
from ldaf_bench.theory.pushforward import Pushforward, push


def build(config: PriorConfig, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """An LDAF classifier with random weights."""
    return LDAFClassifier(config.backbone, shape, num_classes, config.num_nodes, config.flow, config.horizon)


def push_images(model: Classifier, images: Tensor, tolerance: float | None) -> tuple[Pushforward, Tensor]:
    """Network and flow, once per datum."""
    assert isinstance(model, LDAFClassifier)
    features = model.features(images)
    return push(model.flow, model.flow_parameter, features, model.horizon, tolerance=tolerance), features
