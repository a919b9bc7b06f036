r"""A classifier whose weights are drawn: every convolution and linear layer of any backbone.

All drawn weights live in one flat vector, so that a draw is one call for the normals and one for their scale. The
BatchNorm layers and a frozen first layer stay as they were trained, in eval mode.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

BATCH_FLOATS = 1 << 21
"""Weights that are drawn at a time: small networks run many draws together, large ones run one by one."""
PASS_IMAGES = 500
"""Images of one pass with given weights."""


class StochasticClassifier:
    """A classifier as a function of a flat vector of weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model.eval()
        parameters = dict(model.named_parameters())
        layers = [(name, one) for name, one in model.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)]
        own = [f"{name}.{key}" for name, one in layers for key, _ in one.named_parameters(recurse=False)]
        self.shapes = {name: parameters[name].shape for name in own if parameters[name].requires_grad}
        self.weights = torch.cat([_flat(parameters[name].detach()) for name in self.shapes])
        """The trained weights."""
        model.requires_grad_(False)

    def __call__(self, weights: Tensor, images: Tensor) -> Tensor:
        """Logits (batch, c) of uint8 images, all with the same weights."""
        return functional_call(self.model, self._named(weights), (images,))

    def _named(self, weights: Tensor) -> dict[str, Tensor]:
        parts = weights.split([shape.numel() for shape in self.shapes.values()])
        return {name: _shaped(part, self.shapes[name]) for name, part in zip(self.shapes, parts, strict=True)}

    def fresh(
        self, mean: Tensor, scale: Tensor, images: Tensor, num_samples: int, generator: torch.Generator
    ) -> Tensor:
        """Logits (batch, samples, c), with weights of its own for every image and sample."""
        size = len(mean)
        together = max(1, BATCH_FLOATS // size)
        buffer = mean.new_empty(together, size)
        every = torch.arange(len(images), device=images.device).repeat_interleave(num_samples)
        logits = []
        with torch.no_grad():
            for some in every.split(together):
                weights = buffer[: len(some)].normal_(generator=generator).mul_(scale).add_(mean)
                if len(some) == 1:
                    logits.append(self(weights[0], images[some]))
                else:
                    logits.append(vmap(lambda w, x: self(w, x[None])[0])(weights, images[some]))
        return torch.cat(logits).unflatten(0, (len(images), num_samples))

    def shared(self, mean: Tensor, scale: Tensor, images: Tensor, generator: torch.Generator) -> Tensor:
        """Logits (m, c) with one draw of the weights for all images."""
        with torch.no_grad():
            weights = torch.empty_like(mean).normal_(generator=generator).mul_(scale).add_(mean)
            return torch.cat([self(weights, some) for some in images.split(PASS_IMAGES)])


def _flat(weight: Tensor) -> Tensor:
    """Convolutions in the order that channels-last kernels read them."""
    return (weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight).reshape(-1)


def _shaped(part: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) != 4:
        return part.view(shape)
    outputs, inputs, height, width = shape
    return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
