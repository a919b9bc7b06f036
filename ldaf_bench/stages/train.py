r"""train: a network from its configuration, in this process or data-parallel on Ray Train.

Workers get the *prior* part's images and labels and nothing else: what they do not have cannot leak. A checkpoint is
taken at an interval. Whoever is lost, worker or driver, training goes on from the last one, with the same final weights
as an undisturbed run on as many workers. The same function trains in either place: Ray Train is for several workers and
for GPUs, because it takes seven seconds to start, and refuses to be used by the process of a trial itself.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import ray.train
import ray.train.torch
import torch
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.tune.integration.ray_train import TuneReportCallback
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ldaf_bench.artifacts import store_error
from ldaf_bench.data.augment import Batches, check_batches
from ldaf_bench.data.dataset import Summary
from ldaf_bench.data.splits import LeakError, received_hash, require_received
from ldaf_bench.messages import clean_reason, counted
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.training import DivergenceError, Epoch, Training, weights_of
from ldaf_bench.resources import Placed
from ldaf_bench.stages.checkpoints import Checkpoint, newest_checkpoint, next_start, save_checkpoint
from ldaf_bench.stages.interface import OwnNetworkConfig
from ldaf_bench.stages.session import device_of, workers_have_cuda
from ldaf_bench.stages.writer import Access
from ldaf_bench.store.networks import save_network
from ldaf_bench.store.store import Store

MAX_FAILURES = 3
"""Workers that may be lost between two starts of the driver."""
REPORT_SECONDS = 2.0
"""Worker 0 wants to say how far it is this often."""
DRAIN_SECONDS = 0.2
Report = Callable[[dict[str, Any]], object]


class TrainingError(Exception):
    """Ray gave up."""


class ConfigError(Exception):
    """The configuration cannot be trained."""


@dataclass(frozen=True)
class Job:
    """A network to train."""

    identity: str
    config: NetworkConfig
    data: Summary
    images: Any
    """A reference to the prior part's images, and so on."""
    labels: Any
    received: str
    """The hash that every worker must find its images and labels to have."""
    placed: Placed
    access: Access

    @property
    def num_steps(self) -> int:
        """Of the whole training."""
        recipe = self.config.recipe
        return recipe.epochs * (len(self.config.splits(self.data).prior) // recipe.batch_size)


def train(job: Job, alone: bool, report: Report) -> None:
    """Train a network and store it, from the last checkpoint if there is one. `report` is told how far it is.

    A `DivergenceError` if the loss is not finite any more, a `TrainingError` if Ray lost workers too often.
    """
    run = run_folder(job.identity)
    begun = job.access(progress_of, run)
    if begun.get("step") != job.num_steps:
        if begun:
            last, own = begun["starts"][-1], job.placed
            before, now = (
                workers_of(last["workers"], last["gpus_of_worker_0"]),
                workers_of(own.workers, own.gpus_per_worker),
            )
            if before != now:
                report({"says": f"Network {job.identity} was begun by {before} and goes on with {now}: its weights "
                                "will not be those of an undisturbed training."})  # fmt: skip
        start = job.access(next_start, run)
        own = job.placed
        if alone:
            diverged = train_as(job, start, 0, 1, device_of(own.cpus_per_worker, 0), report)
        else:
            diverged = _in_group(job, start)
        if diverged:
            job.access(forget, run)
            raise DivergenceError(diverged)
    job.access(save_trained, run, job.config, job.data, job.received, job.placed, job.num_steps)


def workers_of(workers: int, gpus: float) -> str:
    """What trains a network."""
    return counted(workers, "worker") + (f" with {counted(math.ceil(gpus), 'GPU')} each" if gpus else "")


def train_worker(given: dict[str, Any]) -> str:
    """What every worker of a group does on Ray Train."""
    job, context = given["job"], ray.train.get_context()
    own = job.placed
    device = device_of(own.cpus_per_worker, own.gpus_per_worker, ray.train.torch.get_device)
    return train_as(job, given["start"], context.get_world_rank(), context.get_world_size(), device, ray.train.report,
                    lambda: ray.train.get_preemption_info() is not None)  # fmt: skip


def train_as(
    job: Job,
    start: str,
    worker: int,
    num_workers: int,
    device: torch.device,
    report: Report,
    is_leaving: Callable[[], bool] = lambda: False,
) -> str:
    """Build, resume from the last checkpoint if there is one, train, take checkpoints. Returns why it diverged, if so.

    `report` and `is_leaving` are called by all workers at the same steps, because on Ray Train each waits for all.
    """
    recipe = job.config.recipe
    torch.backends.cudnn.deterministic = True
    # Copied, because arrays in the object store are read-only, which torch does not know of.
    images, labels = (torch.from_numpy(np.array(ray.get(one))) for one in (job.images, job.labels))
    received = received_hash(images.numpy(), labels.numpy())
    channels, height, width = images.shape[1:]
    model = build(job.config, (channels, height, width), job.data.num_classes)
    model.prepare(images)
    batches = Batches(
        images.to(device), labels.to(device), recipe.batch_size, recipe.augmentation, job.config.seed, worker,
        num_workers,
    )  # fmt: skip
    model.to(device)
    training = Training(DistributedDataParallel(model) if num_workers > 1 else model, recipe, batches)
    starts: list[dict[str, Any]] = []
    begun: Checkpoint | None = job.access(newest_checkpoint, run_folder(job.identity))
    if begun is not None:
        tensors, state = begun
        training.restore(tensors, state)
        starts = state["starts"]
    agree_on(training.step, num_workers)
    gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    here = {"step": training.step, "workers": num_workers, "device": device.type, "gpus_of_worker_0": len(gpus)}
    starts.append({**here, "precision": training.precision, "received": gathered(received, num_workers)})

    last_checkpoint = last_report = time.monotonic()
    leaving = False

    def wants_pause() -> bool:
        """Asked of worker 0: time for a checkpoint, or to say how far it is. All workers hear the answer."""
        now = time.monotonic()
        every = job.placed.checkpoint_seconds
        return worker == 0 and (now - last_checkpoint >= every or now - last_report >= REPORT_SECONDS)

    try:
        for pause in training.run(wants_pause):
            ended = training.step == training.num_steps
            if not (pause or ended):
                continue
            told, leaving = leaving, is_leaving()
            due = time.monotonic() - last_checkpoint >= job.placed.checkpoint_seconds or leaving > told
            if worker == 0 and (due or ended):  # the others wait for it in the next step
                snapshot = training.snapshot()
                job.access(save_checkpoint, start, snapshot.tensors, {**snapshot.state, "starts": starts})
                last_checkpoint = time.monotonic()
            report(progress(training))
            last_report = time.monotonic()
    except DivergenceError as error:
        # Not raised: Ray would start again from the last checkpoint, only to come here again.
        return str(error)
    return ""


def gathered(received: str, num_workers: int) -> list[str]:
    """The hashes of what every worker received."""
    if num_workers == 1:
        return [received]
    hashes: list[str] = [""] * num_workers
    dist.all_gather_object(hashes, received)
    return hashes


def agree_on(step: int, num_workers: int) -> None:
    """All workers begin at the same step, or none: lost ones may have saved a checkpoint in between."""
    if num_workers > 1:
        steps: list[int | None] = [None] * num_workers
        dist.all_gather_object(steps, step)
        if len(set(steps)) > 1:
            raise RuntimeError(f"The workers would begin at different steps ({steps}).")


def progress(training: Training) -> dict[str, Any]:
    """How far training is: the current epoch so far."""
    row = training.curve[-1]
    return {
        "step": training.step,
        "num_steps": training.num_steps,
        "epoch": row.epoch + 1,
        "epochs": training.recipe.epochs,
        "loss": row.mean_loss,
        "accuracy": row.accuracy,
        "images_per_second": row.data / row.seconds,
        "seconds": sum(one.seconds for one in training.curve),
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
        for size in {(height, width), recipe.size(0.0, height, width)}:
            BACKBONES[config.backbone](channels, size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if why := config.head.refusal(data.num_classes):
        raise ConfigError(why)


def run_folder(identity: str) -> str:
    """The key under which the checkpoints of a network are while it is trained."""
    return f"training/{identity}"


def forget(store: Store, run: str) -> None:
    """Remove the checkpoints of a training."""
    store.remove(run)


def progress_of(store: Store, run: str) -> Mapping[str, Any]:
    """The state of the newest checkpoint; empty if there is none."""
    found = newest_checkpoint(store, run)
    return {} if found is None else found[1]


def save_trained(
    store: Store, run: str, config: NetworkConfig, data: Summary, received: str, placed: Placed, num_steps: int
) -> None:
    """The network of a training that is over; its checkpoints go."""
    if store.exists(f"networks/{run.rpartition('/')[2]}"):
        return  # another process was faster
    found = newest_checkpoint(store, run)
    if found is None or found[1]["step"] != num_steps:
        raise TrainingError("Training ended early. Run the same command again to resume.")
    tensors, state = found
    try:
        require_received(state["starts"], received)
    except LeakError:
        store.remove(run)  # or the next start would load it again
        raise
    rows = [Epoch(**row) for row in state["curve"]]
    about = {
        **placed.model_dump(),
        "starts": state["starts"],
        "steps": state["step"],
        "seconds": sum(row.seconds for row in rows),
        "curve": curve_of(rows, rows[-1].steps),
    }
    save_network(store, config, data, weights_of(tensors), about)
    store.remove(run)


def _in_group(job: Job, start: str) -> str:
    """Workers that average their gradients, on Ray Train; a trial of Ray Tune is their driver."""
    own = job.placed
    # NCCL wants a device for every worker.
    nccl = own.gpus_per_worker >= 1 and workers_have_cuda(own.gpus_per_worker)
    notes, reports = tempfile.mkdtemp(prefix="ldaf_bench_train_"), TuneReportCallback()
    gpus = {"GPU": own.gpus_per_worker} if own.gpus_per_worker else {}
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={"job": job, "start": start},
        torch_config=OwnNetworkConfig(backend="nccl" if nccl else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=own.workers,
            use_gpu=own.gpus_per_worker > 0,
            resources_per_worker={"CPU": own.cpus_per_worker, **gpus},
        ),
        run_config=RunConfig(
            name=start.replace("/", "-"),
            storage_path=notes,
            callbacks=[reports],
            # A controller that fails is not tried for ever.
            failure_config=FailureConfig(max_failures=MAX_FAILURES, controller_failure_limit=MAX_FAILURES),
            logging_config=LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        ended = trainer.fit()
        # What workers reported last comes before what the trial reports: Ray would wait for ever for one of the two.
        while not reports._training_actor_item_queue.empty():
            time.sleep(DRAIN_SECONDS)
        time.sleep(DRAIN_SECONDS)
        return str(ended.return_value or "")
    except (ray.train.TrainingFailedError, ray.exceptions.RayTaskError, ray.exceptions.WorkerCrashedError) as error:
        if (lost := store_error(error)) is not None:
            raise lost from error
        why = f"Training failed on Ray ({clean_reason(error)}). Run the same command again to resume."
        raise TrainingError(why) from error
    finally:
        shutil.rmtree(notes, ignore_errors=True)
