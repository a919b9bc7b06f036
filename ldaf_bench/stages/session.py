"""A Ray to run on: the one that was named, or one of our own that ends with us; and what it has."""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import NamedTuple

import ray
import torch
from ray.autoscaler.sdk import request_resources
from ray.exceptions import AuthenticationError

from ldaf_bench.messages import clean_reason, duration
from ldaf_bench.methods import PLUGINS
from ldaf_bench.provenance import COMMIT, commit
from ldaf_bench.resources import Placed, Resources, TrainResources

RayError = ray.exceptions.RayError
"""What Ray raises where a task or an actor is lost."""
ENVIRONMENT = {
    # Lost workers are noticed within a second, and a start that cannot succeed ends.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # Tune draws no boxes between our lines, writes no logs of its own, and leaves Ctrl-C to Python.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    # The store is the truth. What Tune knows of an experiment is not kept, and a trial does not change its folder.
    "TUNE_GLOBAL_CHECKPOINT_S": "inf",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    # Of trials that wait for a place; two hundred of them would keep the driver busy.
    "TUNE_MAX_PENDING_TRIALS_PG": "4",
    # Ray's own future default, and one warning less.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
SAY_SECONDS = 60
"""Whoever waits is told so this often."""
NO_TOKEN = (
    "Ray refuses, because its token is missing here or is another one: copy ~/.ray/auth_token of the cluster's head to "
    "this machine, and set RAY_AUTH_MODE=token."
)


class ResourceError(Exception):
    """The cluster does not have what was asked for, or there is none."""


@contextlib.contextmanager
def ray_session(
    address: str | None = None, *, verbose: bool = False, num_cpus: int | None = None, num_gpus: int | None = None
) -> Iterator[None]:
    """Ray, started here unless there is one; shut down afterwards only if it was started here.

    A Ray that cannot be had is a `ResourceError`. `num_cpus` and `num_gpus` are what a Ray of our own says it has,
    instead of counting.
    """
    if ray.is_initialized():
        yield
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    where = cluster_address(address)
    # The code of this machine goes to all others; a Ray of our own finds it where it is.
    own = (
        {"runtime_env": shipped()}
        if where
        else {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus}
    )
    if not verbose:
        # What Tune says of a lost process is a traceback; `run` says what was begun again.
        logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    try:
        _knock(where)
        ray.init(
            address=where or "local",
            log_to_driver=verbose,
            logging_level=logging.INFO if verbose else logging.ERROR,
            configure_logging=True,
            **own,
        )
    except AuthenticationError as error:
        raise ResourceError(NO_TOKEN) from error
    except Exception as error:  # Ray raises all kinds, a bare Exception among them
        what = f"There is no Ray to join at {where}" if where else "Ray cannot be started"
        raise ResourceError(f"{what} ({clean_reason(error)}).") from error
    if threading.current_thread() is threading.main_thread():
        # Batch systems stop a job by SIGTERM. It ends as by Ctrl-C, where Ray would write pages about it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        ray.shutdown()


def shipped() -> dict[str, object]:
    """What every process of a cluster gets: this package, the plug-ins, and the commit, as a copy has no .git."""
    plugins = [name.strip() for name in os.environ.get(PLUGINS, "").split(",") if name.strip()]
    variables = {COMMIT: commit(), **({PLUGINS: ",".join(plugins)} if plugins else {})}
    roots = dict.fromkeys(["ldaf_bench", *(name.partition(".")[0] for name in plugins)])
    return {"py_modules": [_place_of(importlib.import_module(name)) for name in roots], "env_vars": variables}


def _place_of(module: ModuleType) -> str:
    """The folder of a package, or the file of a module. Within `ray job submit` Ray refuses the modules themselves."""
    return str(next(iter(module.__path__)) if hasattr(module, "__path__") else module.__file__)


def _knock(where: str | None) -> None:
    """An `OSError` if nothing listens there. Ray itself would end this process after a minute."""
    if where and (parts := re.fullmatch(r"([^/:]+):(\d+)", where)):
        socket.create_connection((parts[1], int(parts[2])), timeout=10).close()


def cluster_address(named: str | None) -> str | None:
    """The cluster to join: the one that was named, or RAY_ADDRESS, which `ray job submit` sets too."""
    return named or os.environ.get("RAY_ADDRESS")


def ray_is_there() -> bool:
    """Whether this process is connected to a Ray."""
    return bool(ray.is_initialized())


class Node(NamedTuple):
    """What a machine of the cluster has."""

    cpus: int
    gpus: float

    def holds(self, cpus: float, gpus: float) -> int:
        """How many processes with so many cores and GPUs fit on it."""
        return min(int(self.cpus // cpus) if cpus else sys.maxsize, int(self.gpus // gpus) if gpus else sys.maxsize)


def nodes() -> list[Node]:
    """The machines that are there."""
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    return [Node(int(found.get("CPU", 0)), found.get("GPU", 0)) for found in alive]


def num_places(some: Sequence[Node], cpus: float, gpus: float) -> int:
    """How many processes with so many cores and GPUs fit on all machines: none can stand on two."""
    return sum(node.holds(cpus, gpus) for node in some)


def driver_place() -> str:
    """The resource by which Ray places something on the driver's machine."""
    here = ray.get_runtime_context().get_node_id()
    (own,) = (node["Resources"] for node in ray.nodes() if node["NodeID"] == here)
    return next(name for name in own if name.startswith("node:") and not name.startswith("node:__"))


class Placement(NamedTuple):
    """Where networks are trained and digested."""

    groups: int
    """Networks at a time."""
    train: Placed
    digest: Placed

    @property
    def alone(self) -> bool:
        """Whether a network is one process on a CPU, which trains and digests; else Ray Train starts the workers."""
        both = (self.train, self.digest)
        return all(one.workers == 1 and one.gpus_per_worker == 0 for one in both)


def place(some: Sequence[Node], train: TrainResources, digest: Resources, networks: int, batch_size: int) -> Placement:
    """What `auto` and 0 stand for on these machines, for so many networks. A `ResourceError` if they do not hold one.

    GPUs are divided among the networks that run side by side, at least one each, as a number that divides the batch:
    then every worker sees the same share of it. Cores are shared evenly; where workers have GPUs they get half of the
    cores, and the rest is for what runs beside.
    """
    have = sum(node.gpus for node in some) >= 1
    gpus = (1.0 if have else 0.0) if train.gpus_per_worker == "auto" else train.gpus_per_worker
    most = max(1, num_places(some, 1, gpus))
    wanted = min(networks, train.at_once or networks)
    if train.workers == "auto":
        share = max(1, most // min(wanted, most)) if gpus else 1
        workers = max(count for count in range(1, share + 1) if batch_size % count == 0 and batch_size >= 2 * count)
    else:
        workers = train.workers
    groups = max(1, min(wanted, num_places(some, train.cpus_per_worker or 1, gpus) // workers))
    placed = _placed(some, train, workers, gpus, groups)
    # `auto` digests a network as it is trained; on a GPU also if training keeps to cores.
    their = (gpus or float(have)) if digest.gpus_per_worker == "auto" else digest.gpus_per_worker
    count = (workers if gpus and their else 1) if digest.workers == "auto" else digest.workers
    try:
        digested = _placed(some, digest, count, their, groups)
    except ResourceError:  # those of several networks wait for each other
        digested = _placed(some, digest, count, their, 1)
    return Placement(groups, placed.model_copy(update={"at_once": train.at_once}), digested)


def _placed(some: Sequence[Node], asked: Resources, workers: int, gpus: float, groups: int) -> Placed:
    most = max((node.cpus for node in some), default=0)
    for cpus in [asked.cpus_per_worker] if asked.cpus_per_worker else range(most, 0, -1):
        if num_places(some, cpus, gpus) >= workers * groups:
            mine = max(1, cpus // 2) if gpus and not asked.cpus_per_worker else cpus
            return Placed(
                workers=workers, cpus_per_worker=mine, gpus_per_worker=gpus, checkpoint_seconds=asked.checkpoint_seconds
            )
    there = "; ".join(f"{node.cpus} CPUs and {node.gpus:g} GPUs" for node in some)
    raise ResourceError(
        f"{workers * groups} workers with {asked.cpus_per_worker or 1} CPUs and {gpus:g} GPUs each do not fit on the "
        f"cluster's nodes ({there}): lower workers, cpus_per_worker or gpus_per_worker."
    )


def wait_for_nodes(fits: Callable[[Sequence[Node]], object], asked: Sequence[Resources], minutes: float,
                   say: Callable[[str], None]) -> None:  # fmt: skip
    """Wait until `fits` raises no `ResourceError` any more, at most so long.

    A cluster that scales by itself is asked for what is missing. A Ray of our own never gets more: give it 0 minutes.
    """
    end, said = time.monotonic() + 60 * minutes, -math.inf
    while True:
        try:
            fits(nodes())
        except ResourceError as error:
            if time.monotonic() >= end:
                waited = f" We waited {minutes:g} minutes." if minutes else ""
                raise ResourceError(f"{error}{waited}") from None
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                say(f"Waiting for the cluster, at most {duration(end - said)}. {error}")
                request_resources(bundles=[bundle for one in asked for bundle in _bundles(one)])
            time.sleep(1)
        else:
            if said > -math.inf:
                request_resources(bundles=[])  # what runs asks for itself
            return


def _bundles(asked: Resources) -> list[dict[str, float]]:
    gpus = 0.0 if asked.gpus_per_worker == "auto" else asked.gpus_per_worker
    workers = 1 if asked.workers == "auto" else asked.workers
    return [{"CPU": asked.cpus_per_worker or 1, "GPU": gpus}] * workers


def workers_have_cuda(gpus: float) -> bool:
    """Whether a worker finds a GPU that torch can use: asked of one, as the driver may have none."""
    # Not within the trial, which has no GPU of its own to give.
    task = _has_cuda.options(num_gpus=gpus, num_cpus=0, scheduling_strategy="DEFAULT")
    return gpus > 0 and bool(ray.get(task.remote()))


@ray.remote
def _has_cuda() -> bool:
    return torch.cuda.is_available()


def device_of(
    cpus: int,
    gpus: float,
    gpu: Callable[[], torch.device] = lambda: torch.device("cuda", torch.cuda.current_device()),
) -> torch.device:
    """Inside a worker: its GPU if it has one, else its CPU, with as many threads as it was given."""
    if gpus > 0 and torch.cuda.is_available():
        return gpu()
    torch.set_num_threads(max(1, cpus))
    return torch.device("cpu")
