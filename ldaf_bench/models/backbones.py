r"""BACKBONES: networks from normalized images (batch, channels, height, width) to feature vectors (batch, width).

`resnet18` is the paper's: torchvision's network with a 3×3 stem of stride 1 in place of 7×7 of stride 2 and no
pooling after it [Boll22, App. B]. `speednet` is small and fast, in the spirit of the public CIFAR-10 speed records
[Jordan24]: a frozen first layer that whitens patches, three groups of two wide convolutions started as identities, and
BatchNorm without scales. `speednet_wide` has more channels, for two and a half times the price. `tinynet` is for tests
and for the digits.

- [Boll22] Boll, Zeilmann, Petra, Schnörr. Self-certifying classification by linearized deep assignment. 2022.
- [Jordan24] Jordan. 94% on CIFAR-10 in 3.29 seconds on a single GPU. 2024.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn


class Backbone(nn.Module):
    """A network to vectors of length `width`."""

    width: int
    scale: float = 1.0
    """What the linear layer after it is multiplied by: a network made for large learning rates wants small logits."""

    def prepare(self, images: Tensor) -> None:
        """Set what is computed from data rather than trained, from a sample of normalized *prior* images."""


class ResNet18(Backbone):
    """torchvision's ResNet18 for small images."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        # Here, because it takes longer to import than torch, and every worker of every other backbone would wait.
        from torchvision.models import resnet18

        super().__init__()
        network = resnet18(weights=None)
        network.conv1 = nn.Conv2d(channels, 64, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
        network.maxpool = nn.Identity()
        self.width = network.fc.in_features
        network.fc = nn.Identity()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)


class Whitening(nn.Conv2d):
    r"""A frozen convolution that decorrelates patches: its filters are ±v_i / √(λ_i + η).

    (λ_i, v_i) is the spectrum of the patches' second moments. The bias is trained.
    """

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__(channels, 2 * channels * kernel**2, kernel, bias=True)
        self.weight.requires_grad_(False)
        nn.init.zeros_(self.bias)  # type: ignore[arg-type]

    def fit(self, images: Tensor, floor: float = 5e-4) -> None:
        """Whiten the patches of these images."""
        patches = nn.functional.unfold(images, self.kernel_size[0]).movedim(1, -1).flatten(0, 1).double()
        values, vectors = torch.linalg.eigh(patches.mT @ patches / len(patches))
        # Eigenvectors come with any sign; both signs are used, so that does not matter but to the order: fix it.
        vectors = vectors * torch.sign(vectors.sum(0) + torch.finfo(vectors.dtype).tiny)
        filters = (vectors / (values.clamp_min(0) + floor).sqrt()).mT.reshape(-1, *self.weight.shape[1:])
        with torch.no_grad():
            self.weight.copy_(torch.cat([filters, -filters]))


def _batch_norm(width: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(width, momentum=0.4)
    norm.weight.requires_grad_(False)
    return norm


def _identity_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    # The first filters copy their input: the group starts as a residual block would, without the addition.
    nn.init.dirac_(layer.weight[: min(inputs, outputs)].data)
    return layer


def _group(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        _identity_convolution(inputs, outputs),
        nn.MaxPool2d(2),
        _batch_norm(outputs),
        nn.GELU(),
        _identity_convolution(outputs, outputs),
        _batch_norm(outputs),
        nn.GELU(),
    )


class SpeedNet(Backbone):
    """Whitening, three groups of two convolutions, global maximum."""

    scale = 1 / 9

    def __init__(self, channels: int, size: tuple[int, int], widths: tuple[int, int, int] = (64, 256, 256)) -> None:
        super().__init__()
        if min(size) < 16:
            raise ValueError(
                f"speednet needs images of at least 16 × 16 pixels, not {size[0]} × {size[1]}: use tinynet."
            )
        # Grey patches carry little: take larger ones.
        self.whitening = Whitening(channels, 2 if channels > 1 else 3)
        ends = itertools.pairwise((self.whitening.out_channels, *widths))
        self.groups = nn.Sequential(nn.GELU(), *(_group(inputs, outputs) for inputs, outputs in ends))
        self.width = widths[-1]

    def prepare(self, images: Tensor) -> None:
        self.whitening.fit(images)

    def forward(self, images: Tensor) -> Tensor:
        return self.groups(self.whitening(images)).amax((-2, -1))


class TinyNet(Backbone):
    """Two convolutions, for tests and for 8 × 8 digits."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.width = 128

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


BACKBONES: dict[str, Callable[[int, tuple[int, int]], Backbone]] = {
    "resnet18": ResNet18,
    "speednet": SpeedNet,
    "speednet_wide": functools.partial(SpeedNet, widths=(128, 384, 384)),
    "tinynet": TinyNet,
}
"""(channels, (height, width)) → network, with random weights from torch's global generator."""
