r"""Batches for training: which images, shifted and mirrored how, all decided by (seed, epoch, worker).

Images stay uint8 tensors where the network is. A batch is taken out, shifted, mirrored by one indexing operation; its
normalization is the classifier's. Nothing here depends on what happened before, so that training can go on from any
step of any epoch with the very same batches.

- [DeVries17] DeVries, Taylor. Improved regularization of convolutional neural networks with cutout. 2017.
- [Jordan24] Jordan. 94% on CIFAR-10 in 3.29 seconds on a single GPU. 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from ldaf_bench.theory.seeds import named_generator

Padding = Literal["zero", "reflect"]
Flip = Literal["none", "random", "alternating"]


@dataclass(frozen=True)
class Augmentation:
    """Light augmentation: a shift by up to `shift` pixels, a mirror image."""

    shift: int = 4
    padding: Padding = "zero"
    """What comes in at the border: black, as in the paper's recipe, or the mirrored image."""
    flip: Flip = "random"
    """`alternating`: every image is mirrored in every other epoch, which half at first being random [Jordan24]."""
    cutout: int = 0
    """Side of a square at a random place of each image that is painted over with the mean colour [DeVries17]."""


def augment(images: Tensor, chosen: Tensor, shifts: Tensor, flips: Tensor, padding: Padding) -> Tensor:
    """Images[chosen], shifted by `shifts` (batch, 2) down and right, then mirrored where `flips`; uint8 as well."""
    channels, height, width = images.shape[1:]
    rows = torch.arange(height, device=images.device) - shifts[:, :1]
    columns = torch.arange(width, device=images.device).expand(len(chosen), width)
    columns = torch.where(flips[:, None], width - 1 - columns, columns) - shifts[:, 1:]
    inside = None
    if padding == "zero":
        inside = (((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None])[:, None]
    rows, columns = _reflect(rows, height), _reflect(columns, width)
    within = (rows[:, :, None] * width + columns[:, None]).flatten(1)
    flat = images.view(len(images), channels, height * width)
    taken = flat.index_select(0, chosen).gather(2, within[:, None].expand(-1, channels, -1))
    batch = taken.view(len(chosen), channels, height, width)
    return batch if inside is None else batch * inside


def cut_out(batch: Tensor, centres: Tensor, side: int, colour: Tensor) -> Tensor:
    """The batch with a square around each centre (batch, 2) painted over; it may reach beyond the border."""
    height, width = batch.shape[-2:]
    first = centres - side // 2
    rows, columns = (torch.arange(length, device=batch.device) - first[:, k, None]
                     for k, length in enumerate((height, width)))  # fmt: skip
    inside = ((rows >= 0) & (rows < side))[:, :, None] & ((columns >= 0) & (columns < side))[:, None]
    return torch.where(inside[:, None], colour[:, None, None], batch)


def _reflect(index: Tensor, length: int) -> Tensor:
    """An index beyond the border, mirrored back; the border itself is not repeated."""
    index = index.abs()
    return torch.where(index >= length, 2 * (length - 1) - index, index)


def check_batches(
    num_images: int, size: tuple[int, int], batch_size: int, augmentation: Augmentation, num_workers: int
) -> None:
    """Refuse, with a `ValueError`, what cannot be made into batches."""
    if batch_size > num_images:
        raise ValueError(f"A batch of {batch_size} is more than the {num_images} prior images: lower batch_size.")
    if batch_size < 2 * num_workers:
        raise ValueError(f"A batch of {batch_size} is too small for {num_workers} workers: raise batch_size.")
    if augmentation.shift >= min(size):
        raise ValueError(f"Images of {min(size)} pixels cannot be shifted by {augmentation.shift}: lower shift.")
    if augmentation.cutout >= min(size):
        raise ValueError(
            f"Of images of {min(size)} pixels nothing is left by a cutout of {augmentation.cutout}: lower it."
        )


@dataclass(frozen=True)
class Batches:
    """The batches of one worker. All workers' batches of a step together are the global batch."""

    images: Tensor
    """uint8, of shape (m, channels, height, width), on the device."""
    labels: Tensor
    batch_size: int
    """Of all workers together."""
    augmentation: Augmentation
    seed: int
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        height, width = self.images.shape[-2:]
        check_batches(len(self.images), (height, width), self.batch_size, self.augmentation, self.num_workers)

    @property
    def steps(self) -> int:
        """Steps of an epoch; what does not fill a batch waits for the next epoch's order."""
        return len(self.images) // self.batch_size

    @cached_property
    def colour(self) -> Tensor:
        """The mean of each channel, as a pixel has it."""
        return torch.stack([channel.double().mean().round() for channel in self.images.unbind(1)]).to(torch.uint8)

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """This worker's (images, labels) of every step of the epoch from `first_step` on."""
        num_data, device, how = len(self.images), self.images.device, self.augmentation
        order = torch.randperm(num_data, generator=named_generator("order", self.seed, epoch))
        mirrored = torch.zeros(num_data, dtype=torch.bool)
        if how.flip == "alternating":
            bits = torch.randint(2, (num_data,), generator=named_generator("mirror", self.seed))
            mirrored = (bits + epoch) % 2 == 1
        generator = named_generator("augment", self.seed, epoch, self.worker)
        local = (self.batch_size - self.worker + self.num_workers - 1) // self.num_workers
        shifts = torch.randint(-how.shift, how.shift + 1, (self.steps, local, 2), generator=generator)
        coins = torch.randint(2, (self.steps, local), generator=generator) == 1
        places = torch.rand((self.steps, local, 2), generator=generator) * torch.tensor(self.images.shape[-2:])
        for step in range(first_step, self.steps):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            chosen = batch[self.worker :: self.num_workers]
            flips = coins[step] if how.flip == "random" else mirrored[chosen]
            chosen, shift, flips = (part.to(device, non_blocking=True) for part in (chosen, shifts[step], flips))
            images = augment(self.images, chosen, shift, flips, how.padding)
            if how.cutout:
                images = cut_out(images, places[step].long().to(device), how.cutout, self.colour)
            yield images, self.labels[chosen]
