"""METHODS: how each kind of classifier is built, trained and pushed forward; the only room that knows them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ldaf_bench.methods import deterministic, ldaf
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.theory.arguments import require_finite
from ldaf_bench.theory.pushforward import Pushforward
from ldaf_bench.theory.seeds import named_seed


@dataclass(frozen=True)
class Method:
    """An entry of METHODS."""

    build: Callable[[PriorConfig, tuple[int, int, int], int], Classifier]
    """(configuration, shape of an image, number of classes) → a classifier with random weights."""
    push: Callable[[Classifier, Tensor, float | None], tuple[Pushforward, Tensor]]
    """(classifier in eval mode, uint8 images, Krylov tolerance) → (M, G) and the features that they are of."""


METHODS: dict[str, Method] = {
    "ldaf": Method(build=ldaf.build, push=ldaf.push_images),
    "deterministic": Method(build=deterministic.build, push=deterministic.push_images),
}


def build(config: PriorConfig, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """The classifier that the configuration describes; its random weights depend on the configuration's seed only."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(named_seed("weights", config.seed))
        model = METHODS[config.method].build(config, shape, num_classes)
    # Faster on CPU as well (see CONTRIBUTING). The backbone only: Ω has four axes too, but is no image.
    nn.Module.to(model.backbone, memory_format=torch.channels_last)
    return model


def push_images(
    config: PriorConfig, model: Classifier, images: Tensor, tolerance: float | None = None
) -> tuple[Pushforward, Tensor]:
    """(M, G) and features of uint8 images: BatchNorm in eval mode, no augmentation, float32 also in convolutions."""
    model.eval()
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
    with torch.inference_mode(), exact:
        pushed, features = METHODS[config.method].push(model, images, tolerance)
    require_finite("the mean logits", pushed.mean)
    return pushed, features
