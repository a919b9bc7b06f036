"""A Ray to run on: the one that was named, or one of our own that ends with us; and quiet either way."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ldaf_bench.resources import Resources

RayError = ray.exceptions.RayError
"""What Ray raises where a task or an actor is lost."""
ENVIRONMENT = {
    # Lost workers are noticed within a second, and a start that cannot succeed ends.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "120",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    # Tune neither draws its own boxes between our lines nor writes logs that nobody reads.
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    # Ray's own future default, and one warning less.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


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
    address = address or os.environ.get("RAY_ADDRESS")
    local = {} if address else {"include_dashboard": False, "num_cpus": num_cpus, "num_gpus": num_gpus}
    ray.init(
        address=address or "local",
        log_to_driver=verbose,
        logging_level=logging.INFO if verbose else logging.ERROR,
        configure_logging=True,
        **local,
    )
    try:
        yield
    finally:
        if not verbose:  # threads that still wait for an answer would have Ray say so, after our last word
            logging.getLogger("ray").setLevel(logging.CRITICAL)
        ray.shutdown()


def ray_is_there() -> bool:
    """Whether this process is connected to a Ray."""
    return bool(ray.is_initialized())


def fitted(resources: Resources) -> Resources:
    """The resources with every default filled in, after checking that the cluster's nodes can hold them."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]

    def places(cpus: int) -> int:
        """How many workers fit: none can stand on two nodes."""
        gpus = resources.gpus_per_worker
        return sum(
            min(int(node.get("CPU", 0) // cpus), int(node.get("GPU", 0) // gpus) if gpus else resources.workers)
            for node in nodes
        )

    wanted = [resources.cpus_per_worker] if resources.cpus_per_worker else range(most_cpus(), 0, -1)
    for cpus in wanted:
        if places(cpus) >= resources.workers:
            return resources.model_copy(update={"cpus_per_worker": cpus})
    there = "; ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
    raise ResourceError(
        f"{resources.workers} workers with {resources.cpus_per_worker or 1} CPUs and {resources.gpus_per_worker:g} "
        f"GPUs each do not fit on the cluster's nodes ({there}): lower workers, cpus_per_worker or gpus_per_worker."
    )


def this_node() -> NodeAffinitySchedulingStrategy:
    """For the one process that writes: where the driver is, there is the store."""
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def most_cpus() -> int:
    """The cores of the largest node: no process can have more."""
    return int(max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=1))


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
    resources: Resources, gpu: Callable[[], torch.device] = lambda: torch.device("cuda", torch.cuda.current_device())
) -> torch.device:
    """Inside a worker: its GPU if it has one, else its CPU, with as many threads as it was given."""
    if resources.gpus_per_worker > 0 and torch.cuda.is_available():
        return gpu()
    torch.set_num_threads(max(1, resources.cpus_per_worker))
    return torch.device("cpu")
