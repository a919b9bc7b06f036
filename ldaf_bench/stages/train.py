r"""train: a prior from its configuration, data-parallel on Ray Train. The only user of `ray.train`.

Workers get the *prior* part's images and labels and nothing else: what they do not have cannot leak. A checkpoint is
taken at an interval, and the run goes on from the last one after a lost worker (by itself) or a lost driver (when
started again), with the same final weights as an undisturbed run on as many workers.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.train
import ray.train.torch
import torch
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from rich.console import Console
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ldaf_bench.artifacts import exclusive, if_valid
from ldaf_bench.data.augment import Batches, check_batches
from ldaf_bench.data.dataset import Dataset, Summary
from ldaf_bench.data.splits import Splits
from ldaf_bench.messages import printable
from ldaf_bench.methods import build
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.store import Prior, load_prior, prior_id, prior_path, save_prior
from ldaf_bench.methods.training import DivergenceError, Epoch, Training
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.resources import Resources
from ldaf_bench.stages.checkpoints import Checkpoint, Keeper, newest_checkpoint
from ldaf_bench.stages.progress import Board, TrainingView, follow
from ldaf_bench.stages.session import device_of, fitted, this_node, workers_have_cuda

MAX_FAILURES = 3
"""So often may workers be lost between two starts of the driver."""
LARGEST_STATE = 20_000
"""n c of the dense flow: its Ω takes 1.6 GB then, its momentum as much again."""
WORD_SECONDS = 0.5
"""Worker 0 says how far it is at most this often."""


class TrainingError(Exception):
    """Ray gave up."""


class ConfigError(Exception):
    """The configuration cannot be trained."""


def train_worker(job: dict[str, Any]) -> None:
    """What every worker does: build, go on from the last checkpoint if there is one, train, take checkpoints."""
    config, resources = PriorConfig(**job["config"]), Resources(**job["resources"])
    context = ray.train.get_context()
    worker, num_workers = context.get_world_rank(), context.get_world_size()
    device = device_of(resources, ray.train.torch.get_device)
    torch.backends.cudnn.deterministic = True
    # Copied, because arrays in the object store are read-only, which torch does not know of.
    images, labels = (torch.from_numpy(np.array(ray.get(job[key]))) for key in ("images", "labels"))
    channels, height, width = images.shape[1:]
    model = build(config, (channels, height, width), job["num_classes"])
    model.prepare(images)
    batches = Batches(
        images.to(device), labels.to(device), config.recipe.batch_size, config.recipe.augmentation, config.seed,
        worker, num_workers,
    )  # fmt: skip
    model.to(device)
    training = Training(DistributedDataParallel(model) if num_workers > 1 else model, config.recipe, batches)
    starts: list[dict[str, Any]] = []
    begun: Checkpoint | None = ray.get(job["keeper"].load.remote())
    if begun is not None:
        tensors, state = begun
        training.restore(tensors, state)
        starts = state["starts"]
    agree_on(training.step, num_workers)
    gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    starts.append({"step": training.step, "workers": num_workers, "device": device.type, "gpus_of_worker_0": len(gpus)})

    last_checkpoint = last_word = time.monotonic()

    def checkpoint_is_due() -> bool:
        return worker == 0 and time.monotonic() - last_checkpoint >= resources.checkpoint_seconds

    try:
        for due in training.run(checkpoint_is_due):
            if due or training.step == training.num_steps:
                if worker == 0:  # the others wait for it in the next step
                    snapshot = training.snapshot()
                    ray.get(job["keeper"].save.remote(snapshot.tensors, {**snapshot.state, "starts": starts}))
                last_checkpoint = time.monotonic()
            ended = training.step % batches.steps == 0
            if worker == 0 and (ended or time.monotonic() - last_word >= WORD_SECONDS):
                job["board"].post.remote(word_of(training))
                last_word = time.monotonic()
    except DivergenceError as error:
        # Not raised: Ray would start again from the last checkpoint, only to come here again.
        if worker == 0:
            ray.get(job["board"].post.remote({"diverged": str(error)}))


def agree_on(step: int, num_workers: int) -> None:
    """All workers begin at the same step, or none: the last words of lost ones may have come in between."""
    if num_workers > 1:
        steps: list[int | None] = [None] * num_workers
        dist.all_gather_object(steps, step)
        if len(set(steps)) > 1:
            raise RuntimeError(f"The workers would begin at different steps ({steps}).")


def word_of(training: Training) -> dict[str, Any]:
    """How far training is, for those who watch."""
    row = training.curve[-1]
    return {
        "step": training.step,
        "num_steps": training.num_steps,
        "epochs": training.recipe.epochs,
        "batch_size": training.batches.batch_size,
        "images_per_second": row.data / row.seconds,
        "curve": curve_of(training.curve, training.batches.steps),
    }


def curve_of(rows: list[Epoch], steps: int) -> list[dict[str, Any]]:
    """The training curve as people read it."""
    return [
        {
            "epoch": row.epoch,
            "loss": row.mean_loss,
            "accuracy": row.accuracy,
            "seconds": row.seconds,
            "images_per_second": row.data / row.seconds,
            "whole": row.steps == steps,
        }
        for row in rows
    ]


def check(config: PriorConfig, data: Summary, workers: int) -> None:
    """Refuse, with a `ConfigError`, what no worker could train; cheap, and before anything starts."""
    channels, height, width = data.shape[1:]
    recipe, num_images = config.recipe, len(config.splits(data).prior)
    try:
        check_batches(num_images, (height, width), recipe.batch_size, recipe.augmentation, workers)
        BACKBONES[config.backbone](channels, (height, width))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    size = config.num_nodes * data.num_classes
    if config.method == "ldaf" and config.flow == "daf" and size > LARGEST_STATE:
        raise ConfigError(
            f"{config.num_nodes} nodes of {data.num_classes} classes are too many for daf, whose fitness has "
            f"(n c)² = {size**2} entries: lower num_nodes, or use sflow."
        )


def train(
    config: PriorConfig,
    dataset: Dataset,
    store: Path,
    resources: Resources = Resources(),
    console: Console | None = None,
) -> Prior:
    """The prior of this configuration: trained unless it is under `store`, and stored there."""
    console = console or Console()
    splits = config.splits(dataset)
    identity = prior_id(config, splits.hash("prior"))
    path = prior_path(store, identity)
    run = (store / "training").resolve() / identity

    def say(sentence: str) -> None:
        console.print(printable(sentence), markup=False, highlight=False)

    prior = if_valid(load_prior, path, say)
    if prior is not None and not run.exists():
        return prior
    with exclusive(run.with_suffix(".lock"), "Another process is training this prior already"):
        prior = if_valid(load_prior, path, say)  # perhaps another process just finished it
        if prior is None:
            check(config, dataset.summary, resources.workers)
            resources = fitted(resources)
            tensors, state = _train_on_ray(config, dataset, splits, run, resources, console)
            save_prior(store, config, dataset, *_outcome(tensors, state, resources))
            prior = load_prior(path)
        shutil.rmtree(run, ignore_errors=True)
    return prior


def _outcome(
    tensors: dict[str, torch.Tensor], state: dict[str, Any], resources: Resources
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights, and what there is to say about the training."""
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    rows = [Epoch(**row) for row in state["curve"]]
    return weights, {
        **resources.model_dump(),
        "starts": state["starts"],
        "steps": state["step"],
        "seconds": sum(row.seconds for row in rows),
        "curve": curve_of(rows, rows[-1].steps),
    }


def _train_on_ray(
    config: PriorConfig,
    dataset: Dataset,
    splits: Splits,
    run: Path,
    resources: Resources,
    console: Console,
) -> Checkpoint:
    """The last checkpoint of a finished run, which goes on from the newest one there is."""
    num_steps = config.recipe.epochs * (len(splits.prior) // config.recipe.batch_size)
    begun = newest_checkpoint(run)
    if begun is not None and begun[1]["step"] == num_steps:
        return begun
    keeper = Keeper.options(scheduling_strategy=this_node()).remote(str(run))  # type: ignore[attr-defined]
    board = Board.remote()  # type: ignore[attr-defined]
    # NCCL wants a device for every worker.
    nccl = workers_have_cuda(resources) and (resources.workers == 1 or resources.gpus_per_worker >= 1)
    notes = tempfile.mkdtemp(prefix="ldaf_bench_train_")
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "config": config.model_dump(mode="json"),
            "resources": resources.model_dump(),
            "images": ray.put(dataset.images[splits.prior]),
            "labels": ray.put(dataset.labels[splits.prior]),
            "num_classes": dataset.num_classes,
            "keeper": keeper,
            "board": board,
        },
        torch_config=TorchConfig(backend="nccl" if nccl else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker={"CPU": resources.cpus_per_worker}
            | ({"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else {}),
        ),
        run_config=RunConfig(
            # Ray's own notes, which nobody reads.
            name=run.name,
            storage_path=notes,
            # Infeasible requests were refused before; a controller that fails is not tried for ever.
            failure_config=FailureConfig(max_failures=MAX_FAILURES, controller_failure_limit=MAX_FAILURES),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        _, word = follow(trainer.fit, board, TrainingView(console))
        ended: Checkpoint | None = ray.get(keeper.load.remote())
    except ray.train.TrainingFailedError as error:
        raise TrainingError(
            f"Training failed on Ray: {error} Start it again to go on from the last checkpoint in {run}."
        ) from error
    finally:
        ray.kill(board)
        ray.kill(keeper)
        shutil.rmtree(notes, ignore_errors=True)
    if "diverged" in word:
        shutil.rmtree(run, ignore_errors=True)
        raise DivergenceError(word["diverged"])
    if ended is None or ended[1]["step"] != num_steps:
        raise TrainingError("Training ended early: start it again to go on from the last checkpoint.")
    return ended
