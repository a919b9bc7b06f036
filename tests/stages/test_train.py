"""Training on Ray ends at the same weights whatever is killed on the way.

Starting Ray Train takes many seconds: two workers train only where two workers are the point.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import yaml

from ldaf_bench.data.splits import LeakError, received_hash
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.resources import Placed
from ldaf_bench.stages import networks as stage
from ldaf_bench.stages import session, trials
from ldaf_bench.stages.train import ConfigError, check, run_folder
from ldaf_bench.store.networks import WEIGHTS, load_network, network_id, network_path
from ldaf_bench.store.store import open_store
from tests.networks import CONFIG, Runner, changed, digits_splits, plan_for, trained, training_of
from tools.processes import workers_called

RECIPE = {"base": "tiny", "epochs": 12, "shift": 1, "batch_size": 63}
"""The global batch is not a multiple of two workers."""
SHORT = {"base": "tiny", "epochs": 2}
LONG = changed(head=LinearHead(), recipe={key: value for key, value in RECIPE.items() if key != "base"})
STEPS = len(digits_splits()[1].prior) // 63
"""Of an epoch of it."""
ONE = {"workers": 1, "cpus_per_worker": 1, "checkpoint_seconds": 0.3}
TWO = {"workers": 2, "cpus_per_worker": 1, "checkpoint_seconds": 0.3}
AT_EVERY_STEP = {"checkpoint_seconds": 0.0}
"""A checkpoint after every step: what is killed is far from its end."""
ALONE, GROUP = "ImplicitFunc", "TrainWorker"
"""What Ray calls the process of a trial of Ray Tune, and a worker of Ray Train."""
PATIENCE = 300


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def runner(store, recipe=RECIPE, train=ONE):
    """Runs of a plan that needs one network with a linear head."""
    return Runner(plan_for("deterministic", recipe, train=train), store)


def train_on(store, recipe=RECIPE, train=ONE):
    one = runner(store, recipe, train)
    run = one()
    assert not run.failures, run.failures
    return load_network(store / network_path(one.plan.networks[0].identity))


def identity_of(config):
    return network_id(config, digits_splits()[1].hash("prior"))


def starts_of(network):
    return [start["step"] for start in network.record["training"]["starts"]]


def checkpoint_of_start(store, number):
    """Whether this start has got as far as a checkpoint."""
    return any(store.glob(f"training/*/{number}/checkpoint_*"))


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)


class Killer:
    """Kills a worker of this name, once the first start has got as far as a checkpoint."""

    def __init__(self, store, name):
        self.store, self.name, self.killed = store, name, 0

    def __enter__(self):
        self.thread = threading.Thread(target=self.kill)
        self.thread.start()
        return self

    def kill(self):
        wait_for(lambda: checkpoint_of_start(self.store, 1))
        os.kill(workers_called(self.name)[-1], signal.SIGKILL)
        self.killed += 1

    def __exit__(self, *_):
        self.thread.join()
        assert self.killed == 1


def no_leftovers(store):
    return not list(store.glob("training/*/"))


# One worker: in the process of its trial.


@pytest.fixture(scope="module")
def plain():
    """The weights that the plain loop ends at, in this process."""
    training = training_of(LONG)
    for _ in training.run():
        pass
    return training.bare.state_dict()


def test_a_lone_worker_that_is_killed_is_run_again_and_ends_at_the_same_weights(cluster, plain, tmp_path):
    with Killer(tmp_path, ALONE):
        network = train_on(tmp_path, train=ONE | AT_EVERY_STEP)
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, plain)
    assert no_leftovers(tmp_path)


def test_workers_lost_too_often_are_said_in_a_sentence_and_the_next_start_goes_on(
    cluster, plain, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(trials, "MAX_LOSSES", 0)
        run = runner(tmp_path, train=ONE | AT_EVERY_STEP)
        with Killer(tmp_path, ALONE):
            failures = run().failures
    (why,) = failures.values()
    assert why.startswith("Lost 1 times: ")
    assert "\n" not in why
    assert not (tmp_path / network_path(identity_of(LONG))).exists()
    network = train_on(tmp_path)
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, plain)
    assert no_leftovers(tmp_path)


def test_one_worker_on_ray_is_the_plain_loop_and_a_damaged_network_is_trained_again(cluster, tmp_path):
    plain = training_of(CONFIG)
    for _ in plain.run():
        pass
    run = Runner(plan_for("ldaf", train={"cpus_per_worker": 1}), tmp_path)
    one = run.sources().network
    assert one.config == CONFIG
    assert equal(one.weights, plain.bare.state_dict())
    says = r"Network 1 of 1 is trained: 2 epochs, loss \d+\.\d+, accuracy \d+\.\d%, \d+ images/s, \d+:\d\d\."
    assert re.search(says, run.output.getvalue())
    assert [row["loss"] for row in one.record["training"]["curve"]] == [row.mean_loss for row in plain.curve]

    assert run.sources(ray=False).network.record["finished"] == one.record["finished"]
    weights = tmp_path / network_path(one.identity) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    again = run.sources().network
    assert "It was set aside" in run.output.getvalue()
    assert equal(again.weights, one.weights)


def test_a_network_whose_worker_received_other_data_than_the_prior_part_is_not_stored(cluster, tmp_path, monkeypatch):
    share = stage.share

    def leaking(dataset, splits):
        """One certificate point more than there should be."""
        extra = np.append(splits.prior, splits.certificate[:1])
        found = share(dataset, splits)
        put = stage.ray.put
        images, labels = put(dataset.images[extra]), put(dataset.labels[extra])
        return stage.Parts(splits, {**found.images, "prior": images}, {**found.labels, "prior": labels}, found.received)

    with monkeypatch.context() as patch:
        patch.setattr(stage, "share", leaking)
        with pytest.raises(LeakError, match="received other data than the prior part"):
            train_on(tmp_path, SHORT)
    assert not list(tmp_path.glob("networks/*"))
    # As the sentence says, it can be trained again.
    assert starts_of(train_on(tmp_path, SHORT)) == [0]


def test_a_network_that_diverges_costs_its_own_results_only_and_leaves_nothing(cluster, tmp_path):
    run = runner(tmp_path, {"base": "tiny", "epochs": 1, "learning_rate": 1e30, "warmup": 0.0})
    found = run()
    assert found.sources == {}
    assert found.failures.keys() == {run.digest.mean}
    assert found.failures[run.digest.mean].startswith("DivergenceError: The loss is ")
    assert "lower the recipe's learning_rate" in found.failures[run.digest.mean]
    assert "failed: DivergenceError: The loss is" in run.output.getvalue()
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]


@pytest.mark.parametrize(
    ("config", "workers", "says"),
    [
        (changed(recipe={"batch_size": 5000}), 1, "lower batch_size"),
        (changed(recipe={"shift": 8}), 1, "lower shift"),
        (changed(backbone="speednet"), 1, "use tinynet"),
        (changed(head=CONFIG.head.model_copy(update={"num_nodes": 5000})), 1, "use sflow"),
        (changed(recipe={"batch_size": 3}), 2, "raise batch_size"),
    ],
)
def test_what_no_worker_could_train_is_refused_before_anything_starts(config, workers, says):
    with pytest.raises(ConfigError, match=says):
        check(config, digits_splits()[0].summary, workers)


def test_a_network_that_another_process_trains_is_waited_for(cluster, tmp_path):
    store, run = open_store(tmp_path), runner(tmp_path, SHORT)
    config = changed(head=LinearHead())
    assert run.plan.networks[0].identity == identity_of(config)
    with ThreadPoolExecutor() as pool:
        with store.lock(run_folder(identity_of(config)), ""):
            found = pool.submit(run)
            wait_for(lambda: hasattr(run, "output") and "Another process is training" in run.output.getvalue())
            trained(tmp_path, config)
            assert not found.done()
        (source,) = found.result().sources.values()
    assert source.network.record["training"] == {}


# Two workers: Ray Train.


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A run on two workers that nothing happened to."""
    return train_on(tmp_path_factory.mktemp("undisturbed"), train=TWO)


def test_every_worker_of_a_group_receives_the_prior_part_and_normalizes_its_own_share(undisturbed, plain):
    (start,) = undisturbed.record["training"]["starts"]
    assert (start["step"], start["workers"], start["device"]) == (0, 2, "cpu")
    dataset, splits = digits_splits()
    assert start["received"] == [received_hash(dataset.images[splits.prior], dataset.labels[splits.prior])] * 2
    assert not equal(undisturbed.weights, plain)
    assert undisturbed.record["training"]["workers"] == 2


def test_one_of_two_workers_killed_in_the_middle_of_an_epoch_changes_nothing(undisturbed, tmp_path):
    with Killer(tmp_path, GROUP):
        network = train_on(tmp_path, train=TWO | AT_EVERY_STEP)
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, undisturbed.weights)
    assert no_leftovers(tmp_path)


def test_a_driver_killed_and_two_stopped_and_then_another_end_at_the_same_weights(undisturbed, tmp_path):
    file, store, output = tmp_path / "suite.yaml", tmp_path / "store", tmp_path / "output"
    command = [sys.executable, "-m", "ldaf_bench.run", str(file), "--store", str(store), "--results", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    suite = plan_for("deterministic", RECIPE, train=TWO | AT_EVERY_STEP).suite
    file.write_text(yaml.safe_dump(suite.model_dump(mode="json")))

    def start_and_send(number, signal_):
        """A driver that gets the signal as soon as its start has a checkpoint; returns its exit code."""
        with (
            output.open("w") as said,
            subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT) as driver,
        ):
            wait_for(lambda: checkpoint_of_start(store, number) or driver.poll() is not None)
            assert driver.returncode is None, output.read_text()
            driver.send_signal(signal_)
            return driver.wait(PATIENCE)

    assert start_and_send(1, signal.SIGKILL) == -signal.SIGKILL
    # The workers of the one that was killed may live on beside the next for some seconds.
    for number, stop in ((2, signal.SIGINT), (3, signal.SIGTERM)):
        assert start_and_send(number, stop) == 130, output.read_text()
        assert output.read_text().rstrip().endswith("Stopped. Run the same command again to resume.")
    assert not (store / network_path(identity_of(LONG))).exists()
    network = train_on(store, train=TWO)
    first, second, third, fourth = starts_of(network)
    assert first == 0 < second < third < fourth < LONG.recipe.epochs * STEPS
    assert equal(network.weights, undisturbed.weights)
    assert no_leftovers(store)


def test_a_training_that_goes_on_with_other_workers_says_so(cluster, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(trials, "MAX_LOSSES", 0)
        with Killer(tmp_path, ALONE):
            assert runner(tmp_path, train=ONE | AT_EVERY_STEP)().failures
    again = runner(tmp_path, train=TWO)
    assert not again().failures
    assert "was begun by 1 worker and goes on with 2 workers: its weights will not be" in again.output.getvalue()


def test_imaginary_gpus_are_given_to_workers_and_auto_uses_all_of_them(tmp_path):
    """In a process of its own, with a Ray of four GPUs that nobody has: workers are placed on them, on their cores."""
    script = f"""
import json
from pathlib import Path
from ldaf_bench.stages.session import nodes, ray_session
from ldaf_bench.pipeline import placement_on
from tests.networks import plan_for
from tests.stages.test_train import runner, train_on
if __name__ == "__main__":
    with ray_session(num_cpus=4, num_gpus=4):
        plan = plan_for("deterministic", {{"base": "tiny", "epochs": 1, "batch_size": 64}})
        print(placement_on(nodes(), plan).train.model_dump_json())
        network = train_on(Path({str(tmp_path)!r}), {{"base": "tiny", "epochs": 1, "batch_size": 66}}, {{}})
        print(json.dumps(network.record["training"]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    planned, record = (yaml.safe_load(line) for line in done.stdout.splitlines()[-2:])
    assert (planned["workers"], planned["gpus_per_worker"]) == (4, 1)
    assert record["workers"] == 3  # of 66 images, four workers would not get the same number
    (start,) = record["starts"]
    if not torch.cuda.is_available():
        assert (start["workers"], start["gpus_of_worker_0"], start["device"]) == (3, 1, "cpu")


def test_a_driver_place_is_a_resource_of_this_machine(cluster):
    assert session.driver_place().startswith("node:")
    assert isinstance(Placed(), Placed)
