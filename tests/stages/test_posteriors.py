"""Posteriors as tasks: each is done whatever is killed, digests come and go, and trainings keep their cores."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ldaf_bench.methods.gaussian import GaussianPrior
from ldaf_bench.speed.sweep import DIGEST, small_data, small_jobs
from ldaf_bench.stages import posteriors as stage
from ldaf_bench.stages.desk import open_desk
from ldaf_bench.stages.posteriors import MAX_LOSSES, Job, Shared, Sweep, share, share_network
from ldaf_bench.store.digests import Digested
from ldaf_bench.store.posteriors import integration_path, load_integration, posterior_path
from ldaf_bench.store.store import open_store
from ldaf_bench.suite import PosteriorResources
from tests.processes import workers_called
from tests.stages.test_train import wait_for

SECONDS = 120


@pytest.fixture(scope="module")
def data(cluster):
    return small_data(4)


@pytest.fixture
def desk(cluster, tmp_path):
    with open_desk(open_store(tmp_path)) as desk:
        yield desk


def made_of(data):
    """What puts a digest into the object store."""
    reference = share(Digested(Path(), data.digest, data.labels, {}))
    return lambda one: Shared(reference, reference, None, share_network(data.network))


def finish(sweep):
    end = time.monotonic() + SECONDS
    while not sweep.idle:
        assert time.monotonic() < end
        sweep.step(0.5)


def on_digests(jobs, count):
    """The jobs, spread over so many digests."""
    return [
        replace(job, posterior=replace(job.posterior, digest=replace(DIGEST, network=f"network {number % count}")))
        for number, job in enumerate(jobs)
    ]


def with_points(job, num_points):
    """The job with a prior so wide that no datum can be skipped, and so many points for each."""
    wide = replace(job.posterior, prior=GaussianPrior(covariance="constant", scale=3.0))
    (planned,) = job.integrations
    return replace(job, posterior=wide, integrations=(replace(planned, posterior=wide, num_points=num_points),))


def test_every_posterior_and_integration_is_on_disk_in_the_end(data, desk, tmp_path):
    jobs, sweep = small_jobs(7), Sweep(desk, PosteriorResources())
    sweep.add(jobs[:3], made_of(data), lambda one: 1)
    sweep.step(0.5)
    sweep.add(jobs[3:], made_of(data), lambda one: 1)  # a network that was ready later
    finish(sweep)
    assert (sweep.done, sweep.total, sweep.losses, sweep.failures) == (7, 7, 0, [])
    for job in jobs:
        assert (tmp_path / posterior_path(job.posterior.identity)).is_dir()
        (planned,) = job.integrations
        found = load_integration(tmp_path / integration_path(planned.identity), job.source)
        assert len(found.integration.per_datum) == len(data.labels)


def test_a_posterior_that_cannot_be_computed_is_told_and_stops_nobody(data, desk, tmp_path):
    good, bad = small_jobs(2)
    bad = with_points(bad, -1)
    sweep = Sweep(desk, PosteriorResources())
    sweep.add([bad, good], made_of(data), lambda one: 1)
    finish(sweep)
    ((job, why),) = sweep.failures
    assert job == bad
    assert why.startswith("ValueError: ")
    assert (tmp_path / integration_path(good.integrations[0].identity)).is_dir()


def killed_whenever_it_runs(sweep, times):
    """Kill the task's process so many times."""
    for number in range(times):
        sweep.step(0.1)
        wait_for(lambda: workers_called("posterior_task"))
        os.kill(workers_called("posterior_task")[0], signal.SIGKILL)
        while sweep.losses + sweep.done == number:
            sweep.step(0.1)


def test_a_posterior_whose_process_is_killed_is_begun_again_and_counted(data, desk, tmp_path):
    (job,) = small_jobs(1)
    long = with_points(job, 2**18)
    sweep = Sweep(desk, PosteriorResources())
    sweep.add([long], made_of(data), lambda one: 1)
    killed_whenever_it_runs(sweep, 1)
    finish(sweep)
    assert (sweep.losses, sweep.done, sweep.failures) == (1, 1, [])
    assert (tmp_path / integration_path(long.integrations[0].identity)).is_dir()


def test_a_desk_that_is_killed_stands_again_and_nothing_is_lost(data, desk, tmp_path):
    jobs, sweep = small_jobs(6), Sweep(desk, PosteriorResources())
    sweep.add(jobs, made_of(data), lambda one: 1)
    while not sweep.done:
        sweep.step(0.1)
    os.kill(workers_called("Desk")[0], signal.SIGKILL)
    finish(sweep)
    assert (sweep.done, sweep.failures) == (6, [])
    for job in jobs:
        assert load_integration(tmp_path / integration_path(job.integrations[0].identity), job.source)


def test_a_posterior_that_is_killed_again_and_again_fails_in_the_end(data, desk, tmp_path):
    (job,) = small_jobs(1)
    sweep = Sweep(desk, PosteriorResources())
    sweep.add([with_points(job, 2**24)], made_of(data), lambda one: 1)
    killed_whenever_it_runs(sweep, MAX_LOSSES + 1)
    finish(sweep)
    ((_, why),) = sweep.failures
    assert why.startswith(f"The process was lost {MAX_LOSSES + 1} times: ")
    assert sweep.losses == MAX_LOSSES


def test_no_more_digests_are_in_the_object_store_than_fit(data, desk, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "SHARED_BYTES", 100)
    make, jobs, alive = made_of(data), on_digests(small_jobs(8), 4), []
    sweep = Sweep(desk, PosteriorResources())

    def counted(one):
        alive.append(sum(group.num_bytes for group in sweep._groups if group.shared is not None))
        return make(one)

    sweep.add(jobs, counted, lambda one: 45)
    finish(sweep)
    assert sweep.done == 8
    # each of four digests went there once, and two at most were there at a time
    assert len(alive) == 4
    assert max(alive) == 45


def test_a_digest_larger_than_all_the_room_comes_alone(data, desk, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "SHARED_BYTES", 100)
    sweep = Sweep(desk, PosteriorResources())
    sweep.add(on_digests(small_jobs(3), 3), made_of(data), lambda one: 1000)
    finish(sweep)
    assert sweep.done == 3


def test_cores_that_trainings_have_reserved_are_left_alone(data, desk, tmp_path):
    sweep = Sweep(desk, PosteriorResources())
    sweep.add(small_jobs(6), made_of(data), lambda one: 1)
    sweep.step(0.1, reserved_cpus=2)
    assert sweep.running == 0
    sweep.step(0, reserved_cpus=1)
    assert sweep.running <= 1
    finish(sweep)
    assert sweep.done == 6


def test_gpus_are_given_and_those_that_trainings_have_reserved_are_left_alone(data, desk, tmp_path):
    """There are two of them, imaginary ones: what has no real one runs on its cores."""
    sweep = Sweep(desk, PosteriorResources(gpus=0.5))
    sweep.add(small_jobs(3), made_of(data), lambda one: 1)
    sweep.step(0.1, reserved_gpus=2)
    assert sweep.running == 0
    finish(sweep)
    assert (sweep.done, sweep.failures) == (3, [])
    about = next(tmp_path.glob("integrations/*/about.json")).read_text()
    assert '"integrate_device": "cpu"' in about


def test_what_is_on_disk_is_known_by_its_hash():
    (job,) = small_jobs(1)
    (planned,) = job.integrations
    assert not job.complete
    assert not replace(job, stored="a").complete
    assert replace(job, stored="a", there={planned.identity: "a"}).complete
    assert not replace(job, stored="a", there={planned.identity: "b"}).complete
    assert isinstance(job, Job)
