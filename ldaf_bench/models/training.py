r"""The training loop: plain torch, one process or many, and able to go on from after any step.

All that a step does follows from (configuration, step, weights, momentum): the order of the data and their
augmentation are drawn from named seeds. So a checkpoint is weights, momentum and the number of steps done, and a run
that was interrupted ends at the same weights as one that was not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ldaf_bench.data.augment import Batches
from ldaf_bench.models.recipe import Recipe, set_rate
from ldaf_bench.theory.arguments import NotFiniteError


class DivergenceError(Exception):
    """The loss is not finite any more."""


@dataclass
class Epoch:
    """One row of the training curve; sums over the epoch's steps so far."""

    epoch: int
    steps: int = 0
    loss: float = 0.0
    """The sum of the cross-entropy (with smoothed labels) over the data seen."""
    correct: int = 0
    data: int = 0
    seconds: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Cross-entropy per datum."""
        return self.loss / max(self.data, 1)

    @property
    def accuracy(self) -> float:
        """On the augmented training data, measured before the update."""
        return self.correct / max(self.data, 1)


class Snapshot(NamedTuple):
    """All that training needs to go on."""

    tensors: dict[str, Tensor]
    """Weights as `model.*`, momentum as `momentum.*`, averaged weights as `average.*`."""
    state: dict[str, Any]
    """Steps done and the curve, as JSON has them."""


def weights_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The trained weights in a snapshot: averaged where there is an average, BatchNorm's statistics included."""
    parts = ({name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)} for kind in KINDS)
    last, average = parts
    return {**last, **average}


KINDS = ("model.", "average.")


def precision_on(device: torch.device, recipe: Recipe) -> str:
    """The recipe's precision where the device computes with it; elsewhere bfloat16 would be emulated, and slower."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has = torch.cpu.get_capabilities()
        native = any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return recipe.precision if native else "float32"


class Training:
    """Training of one classifier; every worker of a group holds one, and they step together."""

    def __init__(self, model: nn.Module, recipe: Recipe, batches: Batches) -> None:
        self.model = model
        """Perhaps wrapped for data-parallel training."""
        self.recipe, self.batches = recipe, batches
        self.precision = precision_on(batches.images.device, recipe)
        self.bare: nn.Module = getattr(model, "module", model)
        self.optimizer = recipe.optimizer(self.bare)
        self.step = 0
        self.curve: list[Epoch] = []
        self.average: dict[str, Tensor] = {}
        """The mean of the weights over the recipe's last steps so far; empty before them."""

    @property
    def num_steps(self) -> int:
        """Of the whole run."""
        return self.recipe.epochs * self.batches.steps

    @property
    def first_averaged(self) -> int:
        """The step after which averaging begins."""
        return self.num_steps - round(self.recipe.average * self.num_steps)

    def _add_to_average(self) -> None:
        count = self.step - self.first_averaged
        for name, value in self.bare.state_dict().items():
            if count >= 1 and value.is_floating_point():
                mean = self.average.setdefault(name, torch.zeros_like(value))
                mean += (value.detach() - mean) / count

    def run(self, wants_pause: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Train to the end. Yields after every step whether worker 0 asked for a pause before it.

        The question travels with the step's statistics, so all workers get the same answer at the same step.
        """
        self.model.train()
        begin = time.perf_counter()
        while self.step < self.num_steps:
            epoch, first = divmod(self.step, self.batches.steps)
            if not self.curve or self.curve[-1].epoch != epoch:
                self.curve.append(Epoch(epoch))
            for images, labels in self.batches.epoch(epoch, first):
                set_rate(self.optimizer, self.recipe.rate(self.step / self.num_steps))
                paused = self._one_step(self._resized(images), labels, wants_pause())
                # All of the time: batches, and what is done between two steps, like checkpoints.
                self.curve[-1].seconds += (now := time.perf_counter()) - begin
                begin = now
                yield paused

    def _resized(self, images: Tensor) -> Tensor:
        """Images of the size that the recipe has for this step."""
        size = self.recipe.size(self.step / self.num_steps, *images.shape[-2:])
        if size == images.shape[-2:]:
            return images
        return nn.functional.interpolate(images.float(), size, mode="bilinear", antialias=True)

    def _one_step(self, images: Tensor, labels: Tensor, wants_pause: bool) -> bool:
        loss, correct = self._forward(images, labels)
        told = torch.stack(
            [loss.detach().double(), correct.double(), torch.tensor(float(wants_pause)).to(loss).double()]
        )
        if self.batches.num_workers > 1:
            dist.all_reduce(told)
        total, right, pause = told.tolist()
        if not math.isfinite(total):
            raise DivergenceError(
                f"The loss is {total} in step {self.step + 1} of {self.num_steps} (epoch {self.curve[-1].epoch + 1}), "
                f"at the learning rate {self.optimizer.param_groups[0]['lr']:.3g}: "
                "lower the recipe's learning_rate or lengthen its warmup."
            )
        self.optimizer.zero_grad()
        # Workers average their gradients: scaled like this, the average is the gradient of the global batch's mean.
        (loss * (self.batches.num_workers / self.batches.batch_size)).backward()
        self.optimizer.step()
        self.step += 1
        self._add_to_average()
        row = self.curve[-1]
        row.steps, row.loss, row.correct = row.steps + 1, row.loss + total, row.correct + int(right)
        row.data += self.batches.batch_size
        return pause > 0

    def _forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """This worker's summed cross-entropy, and how many it got right."""
        try:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == "bfloat16"):
                logits = self.model(images)
        except (NotFiniteError, ArithmeticError):
            # The flow refuses features or a fitness beyond all measure. Every worker has to hear of it in the
            # all-reduce that comes next, or the others would wait there for ever.
            return torch.tensor(math.nan, device=images.device), torch.zeros((), device=images.device)
        smoothing = self.recipe.label_smoothing
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing, reduction="sum")
        return loss, (logits.detach().argmax(1) == labels).sum()

    def snapshot(self) -> Snapshot:
        """A copy of all that is needed to go on."""
        tensors = {f"model.{name}": tensor for name, tensor in self.bare.state_dict().items()}
        for name, parameter in self.bare.named_parameters():
            buffer = self.optimizer.state.get(parameter, {}).get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        tensors |= {f"average.{name}": tensor for name, tensor in self.average.items()}
        copies = {
            name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
            for name, tensor in tensors.items()
        }
        return Snapshot(copies, {"step": self.step, "curve": [asdict(row) for row in self.curve]})

    def restore(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Go on from a snapshot."""
        self.bare.load_state_dict(
            {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        )
        for name, parameter in self.bare.named_parameters():
            if f"momentum.{name}" in tensors:
                buffer = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer.detach()
        state_dict = self.bare.state_dict()
        self.average = {
            name: torch.empty_like(value).copy_(tensors[f"average.{name}"])
            for name, value in state_dict.items()
            if f"average.{name}" in tensors
        }
        self.step = int(state["step"])
        self.curve = [Epoch(**row) for row in state["curve"]]
