"""A Ray to run on: the one that was named, or one of our own that ends with us; and quiet either way."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import ray
import ray._private.state
import torch
from ray.autoscaler.sdk import request_resources
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ldaf_bench.messages import duration
from ldaf_bench.resources import Resources
from ldaf_bench.store.patience import end_at_once

RayError = ray.exceptions.RayError
"""What Ray raises where a task or an actor is lost."""
ENVIRONMENT = {
    # Lost workers are noticed within a second, and a start that cannot succeed ends.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # Tune neither draws its own boxes between our lines nor writes logs that nobody reads.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ray's own future default, and one warning less.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


SAY_SECONDS = 60
"""Whoever waits is told so this often."""


class ResourceError(Exception):
    """The cluster does not have what was asked for."""


@contextlib.contextmanager
def ray_session(
    address: str | None = None, *, verbose: bool = False, num_cpus: int | None = None, num_gpus: int | None = None
) -> Iterator[None]:
    """Ray, started here unless there is one; shut down afterwards only if it was started here.

    `num_cpus` and `num_gpus` are what a Ray of our own says it has, instead of counting.
    """
    if ray.is_initialized():
        yield
        return
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    address = cluster_address(address)
    local = {} if address else {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus}
    ray.init(
        address=address or "local",
        log_to_driver=verbose,
        logging_level=logging.INFO if verbose else logging.ERROR,
        configure_logging=True,
        **local,
    )
    if threading.current_thread() is threading.main_thread():
        # Batch systems stop a job by SIGTERM. It ends as by Ctrl-C, where Ray would write pages about it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except BaseException:
        # Threads may still talk to Ray, which then ends this process with an exit code of its own. So a command ends
        # first; the processes of a Ray that it has started end by themselves, the last within a minute.
        if not end_at_once():
            _shut_down(verbose)
        raise
    _shut_down(verbose)


def _shut_down(verbose: bool) -> None:
    if not verbose:  # threads that still wait for an answer would have Ray say so, after our last word
        logging.getLogger("ray").setLevel(logging.CRITICAL)
    ray.shutdown()


def cluster_address(named: str | None) -> str | None:
    """The cluster to join: the one that was named, or RAY_ADDRESS, which `ray job submit` sets too."""
    return named or os.environ.get("RAY_ADDRESS")


def ray_is_there() -> bool:
    """Whether this process is connected to a Ray."""
    return bool(ray.is_initialized())


def alive() -> list[dict[str, float]]:
    """What each node of the cluster has."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def places(resources: Resources, cpus: int) -> int:
    """How many workers fit that have so many cores each: none can stand on two nodes."""
    return num_places(cpus, resources.gpus_per_worker)


def num_places(cpus: int, gpus: float) -> int:
    """How many processes with so many cores and GPUs fit on all nodes."""
    return sum(
        min(int(node.get("CPU", 0) // cpus), int(node.get("GPU", 0) // gpus) if gpus else sys.maxsize)
        for node in alive()
    )


def fitted(resources: Resources, groups: int = 1) -> Resources:
    """The resources with every default filled in, for so many groups of workers at a time.

    Cores are shared evenly. Where workers have GPUs they get half of them, and the rest is for what runs beside. A
    `ResourceError` if the cluster's nodes cannot hold one group.
    """
    wanted = [resources.cpus_per_worker] if resources.cpus_per_worker else range(most_cpus(), 0, -1)
    for cpus in wanted:
        if places(resources, cpus) >= resources.workers * groups:
            beside = resources.gpus_per_worker > 0 and not resources.cpus_per_worker
            return resources.model_copy(update={"cpus_per_worker": max(1, cpus // 2) if beside else cpus})
    there = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in alive())
    raise ResourceError(
        f"{resources.workers} workers with {resources.cpus_per_worker or 1} CPUs and {resources.gpus_per_worker:g} "
        f"GPUs each do not fit on the cluster's nodes ({there}): lower workers, cpus_per_worker or gpus_per_worker."
    )


def wait_until_fitted(some: Sequence[Resources], minutes: float, say: Callable[[str], None]) -> None:
    """Wait until the cluster can hold each of these, one group at a time; a `ResourceError` after so many minutes.

    A cluster that scales by itself is asked for what is missing. A Ray of our own never gets more: give it 0 minutes.
    """
    end, said = time.monotonic() + 60 * minutes, -math.inf
    while True:
        try:
            for resources in some:
                fitted(resources)
        except ResourceError as error:
            if time.monotonic() >= end:
                waited = f" We waited {minutes:g} minutes." if minutes else ""
                raise ResourceError(f"{error}{waited}") from None
            if time.monotonic() - said >= SAY_SECONDS:
                said = time.monotonic()
                say(f"Waiting for the cluster, at most {duration(end - said)}. {error}")
                request_resources(bundles=[_bundle(one) for one in some for _ in range(one.workers)])
            time.sleep(1)
        else:
            if said > -math.inf:
                request_resources(bundles=[])  # what runs asks for itself
            return


def _bundle(resources: Resources) -> dict[str, float]:
    return {"CPU": resources.cpus_per_worker or 1, "GPU": resources.gpus_per_worker}


def groups_at_once(resources: Resources, wanted: int) -> int:
    """How many groups of workers can run at a time, of so many that are wanted; at least one."""
    return max(1, min(wanted, places(resources, resources.cpus_per_worker or 1) // resources.workers))


def num(kind: Literal["CPU", "GPU"]) -> float:
    """The cores or GPUs of all nodes."""
    return sum(node.get(kind, 0) for node in alive())


def nodes_that_leave() -> set[str]:
    """Nodes that are about to be taken away, as Ray was told (spot machines, scaling down)."""
    # Ray's own libraries ask it like this; there is no public way for plain tasks.
    return set(ray._private.state.state.get_draining_nodes())


def this_node() -> NodeAffinitySchedulingStrategy:
    """For the one process that writes: where the driver is, there is the store."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def most_cpus() -> int:
    """The cores of the largest node: no process can have more."""
    return int(max((node.get("CPU", 0) for node in alive()), default=1))


def workers_have_cuda(resources: Resources) -> bool:
    """Whether a worker finds a GPU that torch can use: asked of one, as the driver may have none."""
    if resources.gpus_per_worker == 0:
        return False
    asked = _has_cuda.options(num_gpus=resources.gpus_per_worker, num_cpus=0)
    return bool(ray.get(asked.remote()))


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
