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
from typing import Any

import numpy as np
import ray
import ray.train
import ray.train.torch
import torch
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from ldaf_bench.artifacts import store_error
from ldaf_bench.data.augment import Batches, check_batches
from ldaf_bench.data.dataset import Dataset, Summary
from ldaf_bench.data.splits import LeakError, Splits, received_hash, require_received
from ldaf_bench.messages import clean_reason
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.training import DivergenceError, Epoch, Training, weights_of
from ldaf_bench.resources import Resources
from ldaf_bench.stages.checkpoints import Checkpoint, newest_checkpoint, next_start
from ldaf_bench.stages.desk import Word
from ldaf_bench.stages.interface import OwnNetworkConfig
from ldaf_bench.stages.progress import follow
from ldaf_bench.stages.session import device_of, fitted, workers_have_cuda
from ldaf_bench.store.networks import network_id, network_path, save_network
from ldaf_bench.store.store import Store

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
    own = job["resources"]
    device = device_of(own.cpus_per_worker, own.gpus_per_worker, ray.train.torch.get_device)
    train_as(job, context.get_world_rank(), context.get_world_size(), device)


@ray.remote(max_retries=MAX_FAILURES)
def train_alone(job: dict[str, Any]) -> None:
    """What a single worker does; Ray starts it again if its process is lost."""
    train_as(job, 0, 1, device_of(job["resources"].cpus_per_worker, job["resources"].gpus_per_worker))


def train_as(job: dict[str, Any], worker: int, num_workers: int, device: torch.device) -> None:
    """Build, resume from the last checkpoint if there is one, train, take checkpoints."""
    config, resources = NetworkConfig(**job["config"]), job["resources"]
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
    begun: Checkpoint | None = ray.get(job["desk"].newest_checkpoint.remote(job["run"]))
    if begun is not None:
        tensors, state = begun
        training.restore(tensors, state)
        starts = state["starts"]
    agree_on(training.step, num_workers)
    gpus = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    start = {"step": training.step, "workers": num_workers, "device": device.type, "gpus_of_worker_0": len(gpus)}
    starts.append({**start, "precision": training.precision, "received": gathered(received, num_workers)})

    last_checkpoint = last_word = time.monotonic()
    answer: Any = None

    def checkpoint_is_due() -> bool:
        """By the clock, or because a node is about to leave: the desk says so when it is posted to."""
        nonlocal answer
        if worker != 0:
            return False
        urged = False
        if answer is not None and ray.wait([answer], timeout=0)[0]:
            urged, answer = ray.get(answer), None
        return urged or time.monotonic() - last_checkpoint >= resources.checkpoint_seconds

    try:
        for due in training.run(checkpoint_is_due):
            if due or training.step == training.num_steps:
                if worker == 0:  # the others wait for it in the next step
                    snapshot = training.snapshot()
                    state = {**snapshot.state, "starts": starts}
                    ray.get(job["desk"].save_checkpoint.remote(job["start"], snapshot.tensors, state))
                last_checkpoint = time.monotonic()
            ended = training.step % batches.steps == 0
            if worker == 0 and (ended or time.monotonic() - last_word >= WORD_SECONDS):
                answer = job["desk"].post.remote(job["run"], word_of(training))
                last_word = time.monotonic()
    except DivergenceError as error:
        # Not raised: Ray would start again from the last checkpoint, only to come here again.
        if worker == 0:
            ray.get(job["desk"].post.remote(job["run"], {"diverged": str(error)}))


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
        for size in {(height, width), recipe.size(0.0, height, width)}:
            BACKBONES[config.backbone](channels, size)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if why := config.head.refusal(data.num_classes):
        raise ConfigError(why)


def run_folder(identity: str) -> str:
    """The key under which the checkpoints of a network are while it is trained."""
    return f"training/{identity}"


def train(
    config: NetworkConfig,
    dataset: Dataset,
    store: Store,
    resources: Resources,
    desk: Any,
    show: Callable[[Word], None] = lambda word: None,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Train the network of this configuration and store it, from the last checkpoint if there is one.

    `show` gets the words that tell how far it is, `say` a sentence if another process is training it and we wait.
    Several networks may be trained at a time, by threads.
    """
    splits = config.splits(dataset)
    identity = network_id(config, splits.hash("prior"))
    run = run_folder(identity)
    with store.lock(run, "Another process is training this network", say):
        if not store.exists(network_path(identity)):  # another process may just have finished it
            check(config, dataset.summary, resources.workers)
            resources = fitted(resources)
            tensors, state = _train_on_ray(config, dataset, splits, store, resources, desk, show)
            try:
                require_received(state["starts"], dataset, splits)
            except LeakError:
                store.remove(run)  # or the next start would load it again
                raise
            save_network(store, config, dataset, *_outcome(tensors, state, resources))
        store.remove(run)


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
    config: NetworkConfig,
    dataset: Dataset,
    splits: Splits,
    store: Store,
    resources: Resources,
    desk: Any,
    show: Callable[[Word], None],
) -> Checkpoint:
    """The last checkpoint of a finished run, which resumes from the newest one there is."""
    num_steps = config.recipe.epochs * (len(splits.prior) // config.recipe.batch_size)
    run = run_folder(network_id(config, splits.hash("prior")))
    begun = newest_checkpoint(store, run)
    if begun is not None and begun[1]["step"] == num_steps:
        return begun
    job = {
        "config": config.model_dump(mode="json"),
        "resources": resources,
        "images": ray.put(dataset.images[splits.prior]),
        "labels": ray.put(dataset.labels[splits.prior]),
        "num_classes": dataset.num_classes,
        "desk": desk,
        "run": run,
        "start": next_start(store, run),
    }
    work = _alone(job, resources) if resources.workers == 1 else _group(job, resources, run.replace("/", "-"))
    try:
        _, word = follow(work, desk, run, show)
    except (ray.train.TrainingFailedError, ray.exceptions.RayTaskError, ray.exceptions.WorkerCrashedError) as error:
        if (lost := store_error(error)) is not None:
            raise lost from error
        raise TrainingError(
            f"Training failed on Ray ({clean_reason(error)}). Run the same command again to resume."
        ) from error
    if "diverged" in word:
        store.remove(run)
        raise DivergenceError(word["diverged"])
    ended = newest_checkpoint(store, run)
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
        torch_config=OwnNetworkConfig(backend="nccl" if nccl else "gloo"),
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
