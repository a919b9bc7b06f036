r"""train: a network from its configuration, data-parallel on Ray Train. The only user of `ray.train`.

Workers get the *prior* part's images and labels and nothing else: what they do not have cannot leak. A checkpoint is
taken at an interval. After a lost worker the run resumes from the last one by itself, after a lost driver when it is
run again, with the same final weights as an undisturbed run on as many workers. A single worker has nobody to be
parallel with: it is a plain Ray task, which starts in a second where Ray Train takes fifteen.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
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

from ldaf_bench.artifacts import exclusive
from ldaf_bench.data.augment import Batches, check_batches
from ldaf_bench.data.dataset import Dataset, Summary
from ldaf_bench.data.splits import LeakError, Splits, received_hash, require_received
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.training import DivergenceError, Epoch, Training, weights_of
from ldaf_bench.resources import Resources
from ldaf_bench.stages.checkpoints import Checkpoint, Keeper, newest_checkpoint
from ldaf_bench.stages.progress import Board, TrainingView, follow
from ldaf_bench.stages.session import device_of, fitted, this_node, workers_have_cuda
from ldaf_bench.store.networks import network_id, network_path, save_network

MAX_FAILURES = 3
"""Workers that may be lost between two starts of the driver."""
WORD_SECONDS = 0.5
"""Worker 0 says how far it is at most this often."""


class TrainingError(Exception):
    """Ray gave up."""


class ConfigError(Exception):
    """The configuration cannot be trained."""


def train_worker(job: dict[str, Any]) -> None:
    """What every worker of a group does on Ray Train."""
    context = ray.train.get_context()
    device = device_of(Resources(**job["resources"]), ray.train.torch.get_device)
    train_as(job, context.get_world_rank(), context.get_world_size(), device)


@ray.remote(max_retries=MAX_FAILURES)
def train_alone(job: dict[str, Any]) -> None:
    """What a single worker does; Ray starts it again if its process is lost."""
    train_as(job, 0, 1, device_of(Resources(**job["resources"])))


def train_as(job: dict[str, Any], worker: int, num_workers: int, device: torch.device) -> None:
    """Build, resume from the last checkpoint if there is one, train, take checkpoints."""
    config, resources = NetworkConfig(**job["config"]), Resources(**job["resources"])
    torch.backends.cudnn.deterministic = True
    # Copied, because arrays in the object store are read-only, which torch does not know of.
    images, labels = (torch.from_numpy(np.array(ray.get(job[key]))) for key in ("images", "labels"))
    received = received_hash(images.numpy(), labels.numpy())
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
    start = {"step": training.step, "workers": num_workers, "device": device.type, "gpus_of_worker_0": len(gpus)}
    starts.append({**start, "received": gathered(received, num_workers)})

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


def gathered(received: str, num_workers: int) -> list[str]:
    """The hashes of what every worker received."""
    if num_workers == 1:
        return [received]
    hashes: list[str] = [""] * num_workers
    dist.all_gather_object(hashes, received)
    return hashes


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


def check(config: NetworkConfig, data: Summary, workers: int) -> None:
    """Refuse, with a `ConfigError`, what no worker could train; cheap, and before anything starts."""
    channels, height, width = data.shape[1:]
    recipe, num_images = config.recipe, len(config.splits(data).prior)
    try:
        check_batches(num_images, (height, width), recipe.batch_size, recipe.augmentation, workers)
        BACKBONES[config.backbone](channels, (height, width))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if why := config.head.refusal(data.num_classes):
        raise ConfigError(why)


def run_folder(store: Path, identity: str) -> Path:
    """Where the checkpoints of a network are while it is trained."""
    return (store / "training").resolve() / identity


def train(config: NetworkConfig, dataset: Dataset, store: Path, resources: Resources, console: Console) -> None:
    """Train the network of this configuration and store it, from the last checkpoint if there is one."""
    splits = config.splits(dataset)
    identity = network_id(config, splits.hash("prior"))
    run = run_folder(store, identity)
    with exclusive(run.with_suffix(".lock"), "Another process is training this network already"):
        if not network_path(store, identity).exists():  # another process may just have finished it
            check(config, dataset.summary, resources.workers)
            resources = fitted(resources)
            tensors, state = _train_on_ray(config, dataset, splits, run, resources, console)
            try:
                require_received(state["starts"], dataset, splits)
            except LeakError:
                shutil.rmtree(run, ignore_errors=True)  # or the next start would load it again
                raise
            save_network(store, config, dataset, *_outcome(tensors, state, resources))
        shutil.rmtree(run, ignore_errors=True)


def _outcome(
    tensors: dict[str, torch.Tensor], state: dict[str, Any], resources: Resources
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights, and what there is to say about the training."""
    rows = [Epoch(**row) for row in state["curve"]]
    return weights_of(tensors), {
        **resources.model_dump(),
        "starts": state["starts"],
        "steps": state["step"],
        "seconds": sum(row.seconds for row in rows),
        "curve": curve_of(rows, rows[-1].steps),
    }


def _train_on_ray(
    config: NetworkConfig, dataset: Dataset, splits: Splits, run: Path, resources: Resources, console: Console
) -> Checkpoint:
    """The last checkpoint of a finished run, which resumes from the newest one there is."""
    num_steps = config.recipe.epochs * (len(splits.prior) // config.recipe.batch_size)
    begun = newest_checkpoint(run)
    if begun is not None and begun[1]["step"] == num_steps:
        return begun
    keeper = Keeper.options(scheduling_strategy=this_node()).remote(str(run))  # type: ignore[attr-defined]
    board = Board.remote()  # type: ignore[attr-defined]
    job = {
        "config": config.model_dump(mode="json"),
        "resources": resources.model_dump(),
        "images": ray.put(dataset.images[splits.prior]),
        "labels": ray.put(dataset.labels[splits.prior]),
        "num_classes": dataset.num_classes,
        "keeper": keeper,
        "board": board,
    }
    work = _alone(job, resources) if resources.workers == 1 else _group(job, resources, run.name)
    try:
        _, word = follow(work, board, TrainingView(console))
        ended: Checkpoint | None = ray.get(keeper.load.remote())
    except (ray.train.TrainingFailedError, ray.exceptions.RayTaskError, ray.exceptions.WorkerCrashedError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise TrainingError(f"Training failed on Ray: {reason} Run the same command again to resume.") from error
    finally:
        if ray.is_initialized():
            ray.kill(board)
            ray.kill(keeper)
    if "diverged" in word:
        shutil.rmtree(run, ignore_errors=True)
        raise DivergenceError(word["diverged"])
    if ended is None or ended[1]["step"] != num_steps:
        raise TrainingError("Training ended early. Run the same command again to resume.")
    return ended


def _alone(job: dict[str, Any], resources: Resources) -> Callable[[], object]:
    """One worker, as a plain task."""
    task = train_alone.options(num_cpus=resources.cpus_per_worker, num_gpus=resources.gpus_per_worker)
    return lambda: ray.get(task.remote(job))


def _group(job: dict[str, Any], resources: Resources, name: str) -> Callable[[], object]:
    """Several workers that average their gradients, on Ray Train."""
    # NCCL wants a device for every worker.
    nccl = workers_have_cuda(resources) and resources.gpus_per_worker >= 1
    notes = tempfile.mkdtemp(prefix="ldaf_bench_train_")
    trainer = TorchTrainer(
        train_worker,
        train_loop_config=job,
        torch_config=TorchConfig(backend="nccl" if nccl else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=resources.workers,
            use_gpu=resources.gpus_per_worker > 0,
            resources_per_worker={"CPU": resources.cpus_per_worker}
            | ({"GPU": resources.gpus_per_worker} if resources.gpus_per_worker else {}),
        ),
        run_config=RunConfig(
            # Ray's own notes, which nobody reads.
            name=name,
            storage_path=notes,
            # Infeasible requests were refused before; a controller that fails is not tried for ever.
            failure_config=FailureConfig(max_failures=MAX_FAILURES, controller_failure_limit=MAX_FAILURES),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )

    def run() -> None:
        try:
            trainer.fit()
        finally:
            shutil.rmtree(notes, ignore_errors=True)

    return run
