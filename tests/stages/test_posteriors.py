"""Posteriors as trials of Ray Tune: each is done whatever is killed, and its configuration is all that it needs."""

import dataclasses
import os
import signal
import threading

import pytest
import yaml
from ray import tune
from ray.cluster_utils import Cluster

from ldaf_bench.data.datasets import summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.plan import make_plan
from ldaf_bench.results.collect import Sources
from ldaf_bench.stages import posteriors as stage
from ldaf_bench.stages import trials
from ldaf_bench.stages.posteriors import config_of, posterior_at, space_of
from ldaf_bench.store.posteriors import integration_path, load_integration, posterior_path
from ldaf_bench.store.store import open_store
from ldaf_bench.suite import Suite, read_suite
from tests.networks import Runner, config_for, plan_for, trained
from tests.stages.test_train import ALONE, wait_for
from tools.processes import workers_called

AXES = {"scale": [0.03, 0.1, 0.3], "objective": "unfitted", "covariance": "constant"}
LONG = {"scale": 3.0, "objective": "unfitted", "covariance": "constant"}
"""A prior so wide that no datum can be skipped."""


class Sweep(Runner):
    """Runs of a plan over one network of LDAF that is trained already."""

    def __init__(self, store, axes=AXES, num_points=16, risks=None):
        content = plan_for("ldaf", axes=axes, train={"cpus_per_worker": 1}).suite.model_dump(mode="json")
        content["risks"] = {"integrator": ["mc"], "num_points": [num_points], **(risks or {})}
        plan = make_plan(Suite.model_validate(content), summarize("digits"))
        trained(store, config_for("ldaf"))
        super().__init__(plan, store)


def test_every_posterior_and_integration_is_on_disk_in_the_end_and_read_by_its_source(cluster, tmp_path):
    sweep = Sweep(tmp_path, risks={"integrator": ["mc", "qmc"], "num_points": [16, 64]})
    run = sweep()
    assert run.failures == {}
    assert run.missing() == []
    source: Sources = run.sources[sweep.digest]
    for planned in sweep.plan.integrations:
        found = load_integration(tmp_path / integration_path(planned.identity), source.content)
        assert len(found.integration.per_datum) == len(source.certificate.labels)
    assert sweep(ray=False).failures == {}


class Seen(tune.Callback):
    """What a person's own callback of Ray Tune sees."""

    def __init__(self):
        self.configs, self.results = {}, []

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.configs[trial.trial_id] = trial.config
        self.results.append((trial.config, result))


def test_a_sweep_is_seen_by_callbacks_as_a_sweep(cluster, tmp_path):
    sweep = Sweep(tmp_path, risks={"integrator": ["mc", "qmc"], "num_points": [16, 64]})
    seen = Seen()
    run = sweep.prepared()
    run.callbacks = [seen]
    run.make()
    swept = [config for config in seen.configs.values() if "scale" in config]
    assert sorted(config["scale"] for config in swept) == [0.03, 0.1, 0.3]
    assert all(config["flow"] == "daf" and config["covariance"] == "constant" for config in swept)
    results = [result for config, result in seen.results if "scale" in config]
    assert {(one["integrator"], one["num_points"]) for one in results} == {
        ("mc", 16), ("mc", 64), ("qmc", 16), ("qmc", 64),
    }  # fmt: skip
    assert len(results) == 3 * 4
    for one in results:
        assert 0 <= one["risk"] <= 1
        assert ("kl" in one) == (one["integrator"] == "mc")  # an estimate certifies nothing
        assert one.get("kl", 1) > one["risk"]


def test_a_posterior_that_cannot_be_computed_is_told_and_stops_nobody(cluster, tmp_path, monkeypatch):
    sweep = Sweep(tmp_path)
    bad = sweep.plan.posteriors[1]
    run = sweep.prepared()
    run.make_networks()
    work_of = stage.work_of

    def wrong(*arguments):
        """A plan whose second posterior has a seed that is no number."""
        return dataclasses.replace(work_of(*arguments), risks=None)

    monkeypatch.setattr("ldaf_bench.pipeline.work_of", wrong)
    run.sweep([bad])
    (planned,) = sweep.plan.of_posterior[bad.identity]
    assert run.failures.keys() == {planned.identity}
    assert run.failures[planned.identity].startswith("AttributeError: ")
    monkeypatch.undo()
    run.failures.clear()
    run.make()
    assert (run.failures, run.missing()) == ({}, [])


class Killer(threading.Thread):
    """Kills the process of a posterior so many times, each as soon as the posterior is there to be integrated."""

    def __init__(self, store, times):
        super().__init__()
        self.store, self.times, self.killed = store, times, []

    def run(self):
        wait_for(lambda: list(self.store.glob("posteriors/*/about.json")))
        for _ in range(self.times):
            wait_for(lambda: set(workers_called(ALONE)) - set(self.killed))
            self.killed += sorted(set(workers_called(ALONE)) - set(self.killed))[:1]
            os.kill(self.killed[-1], signal.SIGKILL)


def test_a_posterior_whose_process_is_killed_is_begun_again_and_counted(cluster, tmp_path):
    sweep = Sweep(tmp_path, LONG, 2**17)
    sweep.prepared().make_networks()
    killer = Killer(tmp_path, 1)
    killer.start()
    run = sweep()
    killer.join()
    assert len(killer.killed) == 1
    assert (run.retries, run.failures, run.missing()) == (1, {}, [])


def test_a_posterior_that_is_killed_again_and_again_fails_in_the_end(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(trials, "MAX_LOSSES", 1)
    sweep = Sweep(tmp_path, LONG, 2**24)
    sweep.prepared().make_networks()
    killer = Killer(tmp_path, 2)
    killer.start()
    run = sweep()
    killer.join()
    ((_, why),) = run.failures.items()
    assert why.startswith("Lost 2 times: ")
    assert run.retries == 1


def test_damaged_posteriors_are_set_aside_and_made_again(cluster, tmp_path):
    sweep = Sweep(tmp_path)
    sweep()
    posterior = tmp_path / posterior_path(sweep.plan.posteriors[0].identity) / "about.json"
    posterior.write_text("{}")
    (planned,) = sweep.plan.of_posterior[sweep.plan.posteriors[0].identity]
    lost = tmp_path / integration_path(planned.identity)
    (lost / "about.json").unlink()
    for path in lost.iterdir():
        path.unlink()
    lost.rmdir()
    run = sweep()
    assert (run.failures, run.missing()) == ({}, [])
    assert "It was set aside as" in sweep.output.getvalue()
    assert posterior.read_text() != "{}"


@pytest.mark.parametrize("path", ["suites/digits.yaml", "suites/rivals.yaml", "suites/search.yaml"])
def test_a_configuration_has_the_axes_by_their_names_and_is_all_that_determines_a_posterior(path):
    from pathlib import Path

    suite = read_suite(Path(path))
    plan = make_plan(suite, summarize(suite.data.dataset))
    heads = {one.identity: one.config.head.used() for one in plan.networks}
    seeds = {one.identity: one.config.seed for one in plan.networks}
    for planned in plan.posteriors:
        config = config_of(planned, heads[planned.digest.network])
        assert posterior_at(yaml.safe_load(yaml.safe_dump(config)), seeds) == planned or (
            posterior_at(config, seeds).identity == planned.identity
        )
        assert config["method"] in METHODS
        assert config["objective"] == planned.fit.objective


def test_every_point_of_a_search_is_a_posterior_of_the_plan():
    from pathlib import Path

    suite = read_suite(Path("suites/search.yaml"))
    plan = make_plan(suite, summarize(suite.data.dataset))
    seeds = {one.identity: one.config.seed for one in plan.networks}
    space = space_of(plan.posteriors)
    known = {one.identity for one in plan.posteriors}
    found = set()
    for _ in range(300):
        point = {name: domain.sample() for name, domain in space.items()}
        found.add(posterior_at(point, seeds).identity)
    assert found <= known
    assert len(found) > len(known) / 4


def test_processes_on_other_machines_reach_a_folder_through_the_writer(tmp_path):
    """Two nodes, none of which is the driver's: networks, digests and posteriors all travel."""
    import subprocess
    import sys

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=1)
        cluster.add_node(num_cpus=1)
        sweep = Sweep(tmp_path / "here")
        file = tmp_path / "suite.yaml"
        file.write_text(yaml.safe_dump(sweep.plan.suite.model_dump(mode="json")))
        command = [sys.executable, "-m", "ldaf_bench.run", str(file), "--address", cluster.address]
        places = ["--store", str(tmp_path / "store"), "--results", str(tmp_path / "results")]
        done = subprocess.run([*command, *places], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-3000:]
    finally:
        cluster.shutdown()
    store = open_store(tmp_path / "store")
    assert all(store.exists(posterior_path(one.identity)) for one in sweep.plan.posteriors)
