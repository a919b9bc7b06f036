r"""posteriors: all posteriors and integrations of a plan as plain tasks of Ray.

A task is one posterior with all its integrations, because integrating costs less than starting a task elsewhere. Ray
keeps processes from task to task. Every digest goes to the cluster once, as arrays of the object store that tasks read
without a copy, and leaves it when its last posterior is done. What a task computes goes to the desk, the one process
that writes, and is on disk before the task ends: whatever is stopped resumes with what is missing.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
import torch

from ldaf_bench.artifacts import store_error
from ldaf_bench.methods.method import Data, Watch
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, PlannedIntegration, PlannedPosterior
from ldaf_bench.stages.fit import convergence, fit_posterior, integrate_posterior
from ldaf_bench.stages.session import device_of, most_cpus, num, num_places
from ldaf_bench.store.digests import Digested
from ldaf_bench.store.posteriors import Posterior
from ldaf_bench.suite import Convergence, PosteriorResources
from ldaf_bench.theory.integrate import Integration

CPU = torch.device("cpu")
SHARED_BYTES = 2 << 30
"""Digests that are in the object store at a time."""
MAX_LOSSES = 3
"""Times that a posterior whose process was lost is tried again."""


@dataclass(frozen=True)
class Job:
    """What one task does: a posterior and its integrations. Small: what is on disk stays there."""

    posterior: PlannedPosterior
    source: str
    """The content of the digests that it rests on."""
    integrations: tuple[PlannedIntegration, ...]
    there: Mapping[str, str]
    """Integrations that are on disk already, each with the hash of its posterior."""
    stored: str | None = None
    """The hash of the posterior, if it is on disk already."""
    convergence: tuple[str, Convergence] | None = None
    """Name and settings of a convergence run that is missing."""

    @property
    def complete(self) -> bool:
        """Whether all is on disk already."""
        if self.stored is None or self.convergence is not None:
            return False
        return all(self.there.get(asked.identity) == self.stored for asked in self.integrations)


@dataclass(frozen=True)
class Shared:
    """What the tasks of one digest have in common: references to the object store."""

    certificate: Any
    test: Any
    prior: Any
    """Some prior data, if a prior is made from them; or none."""
    network: Any


def share(digested: Digested) -> Any:
    """Put a digest into the object store."""
    return ray.put({name: tensor.numpy() for name, tensor in {**digested.tensors, "labels": digested.labels}.items()})


def share_network(network: Network) -> Any:
    """Put a network into the object store."""
    return ray.put(network)


def data_of(reference: Any, network: Network, device: torch.device = CPU) -> Data:
    """The same arrays in a task; on a CPU without a copy."""
    found = ray.get(reference)
    with warnings.catch_warnings():
        # They are read-only, and nothing here writes to data.
        warnings.simplefilter("ignore", UserWarning)
        tensors = {name: torch.from_numpy(array) for name, array in found.items()}
    labels = tensors.pop("labels")
    return Data(tensors, labels, network).to(device)


def run_job(
    job: Job, shared: Shared, desk: Any, device: torch.device = CPU, watch: Watch = lambda objective: None
) -> tuple[Posterior, dict[str, Integration]]:
    """Fit and integrate what is not there; each result is written before the next is begun.

    Returns the posterior and the integrations that were made here.
    """
    planned, network = job.posterior, ray.get(shared.network)
    certificate = data_of(shared.certificate, network, device)
    if job.stored is None:
        prior_data = None if shared.prior is None else data_of(shared.prior, network, device)
        test = data_of(shared.test, network, device)
        posterior = fit_posterior(planned, certificate, test, prior_data, watch)
        ray.get(desk.save_posterior.remote(planned.identity, planned.determines, job.source, posterior))
    else:
        posterior = ray.get(desk.posterior.remote(planned.identity, planned.digest.method, job.source))
    found, right = {}, posterior.hash
    for asked in job.integrations:
        if job.there.get(asked.identity) == right:
            continue
        integration, about = integrate_posterior(asked, posterior, certificate)
        ray.get(desk.save_integration.remote(asked.identity, job.source, right, integration, about))
        found[asked.identity] = integration
    if job.convergence is not None:
        identity, settings = job.convergence
        rows = convergence(planned, posterior, certificate, settings)
        ray.get(desk.save_convergence.remote(identity, job.source, rows))
    return posterior, found


def reason_of(error: Exception) -> str:
    """Why a job failed, in one line."""
    cause = getattr(error, "cause", None) or error  # what a remote call raised there
    return f"{type(cause).__name__}: {' '.join(str(cause).split())[:500]}"


@ray.remote(max_retries=0)
def posterior_task(job: Job, shared: Shared, desk: Any, resources: PosteriorResources) -> str | None:
    """A job in a process of the cluster; returns why it failed, if it did.

    A posterior that cannot be computed is a row of the results that says so, and no reason to stop.
    """
    try:
        run_job(job, shared, desk, device_of(resources.cpus, resources.gpus))
    except Exception as error:
        if store_error(error) is not None:
            raise  # it is not the posterior that failed
        return reason_of(error)
    return None


@dataclass
class _Group:
    """The jobs of one digest: they are run together, while it is in the object store."""

    make: Callable[[], Shared]
    num_bytes: int
    waiting: deque[Job]
    running: int = 0
    shared: Shared | None = None


@dataclass
class Sweep:
    """Posteriors under way. Jobs may be added at any time; `step` has to be called again and again."""

    desk: Any
    resources: PosteriorResources
    total: int = 0
    done: int = 0
    losses: int = 0
    """Tasks whose process or node was lost, and that were tried again."""
    failures: list[tuple[Job, str]] = field(default_factory=list)
    _groups: list[_Group] = field(default_factory=list)
    _running: dict[Any, tuple[_Group, Job]] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resources = self.resources.model_copy(update={"cpus": min(self.resources.cpus, most_cpus())})

    def add(
        self, jobs: Sequence[Job], make: Callable[[DigestOf], Shared], num_bytes: Callable[[DigestOf], int]
    ) -> None:
        """More jobs; `make` puts a digest of so many bytes into the object store."""
        for one in dict.fromkeys(job.posterior.digest for job in jobs):
            own = deque(job for job in jobs if job.posterior.digest == one)
            self._groups.append(_Group(partial(make, one), num_bytes(one), own))
        self.total += len(jobs)

    @property
    def running(self) -> int:
        """Tasks under way."""
        return len(self._running)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing under way."""
        return not self._groups

    def step(self, timeout: float, reserved_cpus: int = 0, reserved_gpus: float = 0) -> None:
        """Start what fits beside what others have reserved, then wait for the first task to end, at most so long."""
        own = self.resources
        free = min((num("CPU") - reserved_cpus) // own.cpus, num_places(own.cpus, own.gpus))
        if own.gpus:
            free = min(free, (num("GPU") - reserved_gpus) // own.gpus)
        at_once = int(min(free, own.at_once) if own.at_once else free)
        # If nobody else needs the cores, Ray may have a few tasks more than it can run: it need not wait for us.
        at_once += at_once if not (reserved_cpus or own.at_once) else 0
        while len(self._running) < at_once and (group := self._next_group()) is not None:
            self._start(group, group.waiting.popleft())
        if self._running:
            for ended in ray.wait(list(self._running), timeout=timeout)[0]:
                self._end(ended)
        elif self._groups:  # all cores are taken, or their nodes are lost: look again later
            time.sleep(timeout)

    def _next_group(self) -> _Group | None:
        """The first one with a job that can start; a digest waits until there is room for it."""
        here = sum(group.num_bytes for group in self._groups if group.shared is not None)
        for group in self._groups:
            if group.waiting and (group.shared is not None or not here or here + group.num_bytes <= SHARED_BYTES):
                return group
        return None

    def _start(self, group: _Group, job: Job) -> None:
        if group.shared is None:
            group.shared = group.make()
        group.running += 1
        task = posterior_task.options(num_cpus=self.resources.cpus, num_gpus=self.resources.gpus)
        running = task.remote(job, group.shared, self.desk, self.resources)
        self._running[running] = group, job

    def _end(self, task: Any) -> None:
        group, job = self._running.pop(task)
        group.running -= 1
        try:
            failure = ray.get(task)
        except ray.exceptions.RayError as error:  # its process, its node or what it needs was lost
            if (lost := store_error(error)) is not None:
                raise lost from error
            losses = self._lost[job.posterior.identity] = self._lost.get(job.posterior.identity, 0) + 1
            if losses <= MAX_LOSSES:
                self.losses += 1
                group.waiting.append(job)
                return
            failure = f"The process was lost {losses} times: {str(error).strip().splitlines()[0]}"
        self.done += 1
        if failure is not None:
            self.failures.append((job, failure))
        if not group.waiting and not group.running:
            self._groups.remove(group)
