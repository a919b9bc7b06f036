"""The linearized deep assignment flow: features → flow → Gaussian logits."""

from __future__ import annotations

import torch
from torch import Tensor

from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.models.classifier import Classifier, LDAFClassifier
from ldaf_bench.theory.pushforward import Pushforward, push


def build(config: PriorConfig, shape: tuple[int, int, int], num_classes: int) -> Classifier:
    """An LDAF classifier with random weights."""
    return LDAFClassifier(config.backbone, shape, num_classes, config.num_nodes, config.flow, config.horizon)


ATTEMPTS = 4
SAMPLE = 16
"""So many data of every batch are computed in float64 as well."""


def push_images(model: Classifier, images: Tensor, tolerance: float | None) -> tuple[Pushforward, Tensor]:
    """Network and flow, once per datum; what is less exact than it says is computed again.

    Once, on a busy virtual machine, half of a batch came out a hundred times less exact than its
    error estimate said, and never again from the same input: nothing in the computation, but something below it. So
    some data are compared with float64. If the same comes out twice, it is what the computation gives, and stays.
    """
    assert isinstance(model, LDAFClassifier)
    features = model.features(images)
    seen: list[Pushforward] = []
    while len(seen) < ATTEMPTS:
        pushed = push(model.flow, model.flow_parameter, features, model.horizon, tolerance=tolerance)
        again = any(all(map(torch.equal, pushed, other)) for other in seen)
        if again or is_as_exact_as_it_says(model, features, pushed):
            return pushed, features
        seen.append(pushed)
    raise ArithmeticError(
        f"The flow gave {ATTEMPTS} different results for the same input: check this machine's memory."
    )


def is_as_exact_as_it_says(model: LDAFClassifier, features: Tensor, pushed: Pushforward) -> bool:
    """Whether some data, spread over the batch, agree with float64 within their error estimate."""
    some = torch.linspace(0, len(features) - 1, min(SAMPLE, len(features)), device=features.device).long()
    exact = push(model.flow, model.flow_parameter.double(), features[some].double(), model.horizon)
    pairs = ((exact.mean, pushed.mean), (exact.rows, pushed.rows))
    gaps = (torch.abs(one - other[some]).flatten(1).amax(1) for one, other in pairs)
    return all(bool((gap <= pushed.error[some]).all()) for gap in gaps)
