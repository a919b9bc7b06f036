"""How long training would take without a GPU: the network's operations over what this processor does in a second."""

from __future__ import annotations

import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.network import NetworkConfig
from ldaf_bench.models.training import precision_on

SHARE = 0.6
"""Of a convolution's speed that a whole training step reaches on CPUs: 0.64 was measured."""


def operations(config: NetworkConfig, shape: tuple[int, int, int]) -> float:
    """Floating-point operations of the backbone for one image, forward and backward, at the recipe's image sizes."""
    channels, height, width = shape
    recipe = config.recipe
    shares = {recipe.size(0.0, height, width): recipe.small, (height, width): 1 - recipe.small}
    total = 0.0
    for size, share in shares.items():
        backbone = BACKBONES[config.backbone](channels, size).to("meta")
        images = torch.empty(2, channels, *size, device="meta")
        with FlopCounterMode(display=False) as counter:
            backbone(images).sum().backward()
        total += share * counter.get_total_flops() / len(images)
    return total


def operations_per_second(config: NetworkConfig) -> float:
    """What a convolution of a usual size reaches here, with all of this process's threads."""
    kind = torch.bfloat16 if precision_on(torch.device("cpu"), config.recipe) == "bfloat16" else torch.float32
    layer = torch.nn.Conv2d(128, 128, 3, padding=1, bias=False, dtype=kind)
    images = torch.randn(64, 128, 16, 16).to(kind).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        layer(images)
        begin = time.perf_counter()
        for _ in range(5):
            layer(images)
        seconds = (time.perf_counter() - begin) / 5
    return 2 * 9 * 128**2 * images[:, 0].numel() / seconds


def training_seconds(config: NetworkConfig, shape: tuple[int, int, int], images: int) -> float:
    """An estimate for one network that looks at so many images, on the processor of this process."""
    return images * operations(config, shape) / (SHARE * operations_per_second(config))
