"""What a posterior of a sweep costs beyond its own computing: tasks, processes, the writer."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from ldaf_bench.data.splits import Seen
from ldaf_bench.methods.gaussian import GaussianPrior
from ldaf_bench.methods.ldaf import LDAF, Fit
from ldaf_bench.methods.method import UNFITTED, Data
from ldaf_bench.models.heads import FlowHead
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, PlannedIntegration, PlannedPosterior
from ldaf_bench.speed.cases import make_case
from ldaf_bench.speed.measure import Row, Sizes
from ldaf_bench.speed.training import config_of
from ldaf_bench.stages.desk import open_desk
from ldaf_bench.stages.fit import fit_posterior, integrate_posterior
from ldaf_bench.stages.posteriors import Job, Shared, Sweep, share, share_network
from ldaf_bench.stages.session import ray_session
from ldaf_bench.store.digests import Digested
from ldaf_bench.store.posteriors import save_integration, save_posterior
from ldaf_bench.store.store import open_store
from ldaf_bench.suite import PosteriorResources
from ldaf_bench.theory.integrate.sampling import MC

DIGEST = DigestOf("speed", LDAF.name, "{}")


def small_data(num_classes: int) -> Data:
    """A digest of a synthetic network with few nodes."""
    head = FlowHead(num_nodes=5)
    case = make_case(head.num_nodes, num_classes, 200, "cpu")
    seen = Seen.of("", 1, np.zeros(0, np.int64))
    network = Network("speed", config_of("tinynet", head, 2, "tiny"), (1, 8, 8), num_classes, seen, {}, {})
    return Data({**case.push()._asdict(), "features": case.features}, case.labels, network)


def small_jobs(count: int) -> list[Job]:
    """Posteriors with one small integration each: the most starts and ends that a sweep could have."""
    jobs = []
    for number in range(count):
        posterior = PlannedPosterior(DIGEST, GaussianPrior(), Fit(objective=UNFITTED), seed=number)
        jobs.append(Job(posterior, "speed", (PlannedIntegration(posterior, MC.name, 16),), {}))
    return jobs


def plain_seconds(jobs: Sequence[Job], data: Data) -> float:
    """All of it in this process, one after the other, written as well."""
    with tempfile.TemporaryDirectory() as folder:
        begin, store = time.perf_counter(), open_store(folder)
        for job in jobs:
            posterior = fit_posterior(job.posterior, data, data)
            save_posterior(store, job.posterior.identity, job.posterior.determines, job.source, posterior)
            for planned in job.integrations:
                found, about = integrate_posterior(planned, posterior, data)
                save_integration(store, planned.identity, job.source, posterior.hash, found, about)
        return time.perf_counter() - begin


def sweep_seconds(jobs: Sequence[Job], data: Data) -> float:
    """The same as a sweep of one process at a time, with its start and its end."""
    digest = Digested(Path(), data.digest, data.labels, {})
    reference = share(digest)
    shared = Shared(reference, reference, None, share_network(data.network))
    with tempfile.TemporaryDirectory() as store, open_desk(open_store(store)) as desk:
        begin = time.perf_counter()
        sweep = Sweep(desk, PosteriorResources(at_once=1))
        sweep.add(jobs, lambda one: shared, lambda one: digest.num_bytes)
        while not sweep.idle:
            sweep.step(1.0)
        seconds = time.perf_counter() - begin
    if sweep.failures:
        raise RuntimeError(f"A posterior of the speed test failed: {sweep.failures[0][1]}")
    return seconds


def overhead(sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds per posterior beyond its own computing, once running: the difference of a long and a short sweep."""
    data = small_data(sizes.num_classes)
    few, many = (small_jobs(count) for count in sizes.sweep_posteriors)
    more = len(many) - len(few)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    plain_seconds(few, data)  # warms up
    plain = plain_seconds(many, data) / len(many)
    torch.set_num_threads(threads)
    with ray_session():
        sweep_seconds(few, data)  # starts processes
        short = sweep_seconds(few, data)
        each = (sweep_seconds(many, data) - short) / more
    note = f"seconds per posterior of a sweep of {len(many)} with one process, less those of a plain loop"
    yield Row("ratio", "sweep overhead per posterior, s", "", math.nan, each, plain, each - plain, 0.3, False, note)
