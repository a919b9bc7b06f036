"""Training on Ray ends at the same weights whatever is killed on the way.

Starting Ray Train takes many seconds: two workers train only where two workers are the point.
"""

import contextlib
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
import ray
import torch
import yaml

from ldaf_bench.data.splits import LeakError, received_hash
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.training import DivergenceError
from ldaf_bench.resources import Resources
from ldaf_bench.stages import train as stage
from ldaf_bench.stages.desk import open_desk
from ldaf_bench.stages.session import ResourceError
from ldaf_bench.stages.train import ConfigError, TrainingError, run_folder, train
from ldaf_bench.store.networks import WEIGHTS, load_network, network_id, network_path
from ldaf_bench.store.store import open_store
from tests.networks import CONFIG, Runner, changed, digits_splits, plan_for, trained, training_of
from tests.processes import workers_called

RECIPE = {"base": "tiny", "epochs": 12, "shift": 1, "batch_size": 63}
"""The global batch is not a multiple of two workers."""
LONG = changed(head=LinearHead(), recipe={key: value for key, value in RECIPE.items() if key != "base"})
STEPS = len(digits_splits()[1].prior) // 63
"""Of an epoch of it."""
ONE = Resources(cpus_per_worker=1, checkpoint_seconds=0.3)
TWO = Resources(workers=2, cpus_per_worker=1, checkpoint_seconds=0.3)
AT_EVERY_STEP = {"checkpoint_seconds": 0}
"""A checkpoint after every step: what is killed is far from its end."""
GPUS = 0 if torch.cuda.is_available() else 1
"""Imaginary ones: enough to see where workers are placed. Real ones would compute other bits."""
PATIENCE = 300


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def identity_of(config):
    return network_id(config, digits_splits()[1].hash("prior"))


def train_on(store, config=CONFIG, resources=ONE, say=print):
    place = open_store(store)
    with open_desk(place) if ray.is_initialized() else contextlib.nullcontext() as desk:
        train(config, digits_splits()[0], place, resources, desk, say=say)
    return load_network(store / network_path(identity_of(config)))


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


# One worker: a plain task.


@pytest.fixture(scope="module")
def plain():
    """The weights that the plain loop ends at, in this process."""
    training = training_of(LONG)
    for _ in training.run():
        pass
    return training.bare.state_dict()


def test_a_lone_worker_that_is_killed_is_run_again_and_ends_at_the_same_weights(cluster, plain, tmp_path):
    with Killer(tmp_path, "train_alone"):
        network = train_on(tmp_path, LONG, ONE.model_copy(update=AT_EVERY_STEP))
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, plain)
    assert no_leftovers(tmp_path)


def test_workers_lost_too_often_are_said_in_a_sentence_and_the_next_start_goes_on(
    cluster, plain, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr(stage, "train_alone", ray.remote(max_retries=0)(stage.train_alone._function))
        says = r"Training failed on Ray \(.*\)\. Run the same command again to resume\.$"
        with Killer(tmp_path, "train_alone"), pytest.raises(TrainingError, match=says) as failed:
            train_on(tmp_path, LONG, ONE.model_copy(update=AT_EVERY_STEP))
    assert "\n" not in str(failed.value)
    assert not (tmp_path / network_path(identity_of(LONG))).exists()
    network = train_on(tmp_path, LONG)
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, plain)
    assert no_leftovers(tmp_path)


def test_a_driver_that_dies_between_training_and_saving_trains_no_second_time(cluster, tmp_path, monkeypatch):
    def die(*_):
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(stage, "save_network", die)
        with pytest.raises(KeyError, match="killed"):
            train_on(tmp_path, resources=ONE.model_copy(update={"gpus_per_worker": GPUS}))
    network = train_on(tmp_path)
    # The second time, the last step was done already: no worker got as far as a checkpoint that says that it started.
    (start,) = network.record["training"]["starts"]
    assert (start["step"], start["workers"], start["gpus_of_worker_0"]) == (0, 1, GPUS)
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
    dataset, _ = digits_splits()

    def leaking(value):
        """One certificate point more than there should be."""
        extra = dataset.images if value.ndim == 4 else dataset.labels
        return put(np.concatenate([value, extra[digits_splits()[1].certificate[:1]]]))

    put = ray.put
    with monkeypatch.context() as patch:
        patch.setattr(stage.ray, "put", leaking)
        with pytest.raises(LeakError, match="received other data than the prior part"):
            train_on(tmp_path)
    assert not (tmp_path / network_path(identity_of(CONFIG))).exists()
    # As the sentence says, it can be trained again.
    assert starts_of(train_on(tmp_path)) == [0]


def test_divergence_ends_the_run_with_a_sentence_and_leaves_nothing(cluster, tmp_path):
    with pytest.raises(DivergenceError, match="lower the recipe's learning_rate"):
        train_on(tmp_path, changed(recipe={"learning_rate": 1e30, "warmup": 0}))
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]


def test_a_network_that_diverges_costs_its_own_results_only(cluster, tmp_path):
    plan = plan_for("deterministic", recipe={"base": "tiny", "epochs": 1, "learning_rate": 1e30, "warmup": 0.0})
    runner = Runner(plan, tmp_path)
    run = runner()
    assert run.sources == {}
    assert run.failures.keys() == {runner.digest.mean}
    assert run.failures[runner.digest.mean].startswith("DivergenceError: The loss is ")
    assert "failed: The loss is" in runner.output.getvalue()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed(recipe={"batch_size": 5000}), "lower batch_size"),
        (changed(recipe={"shift": 8}), "lower shift"),
        (changed(backbone="speednet"), "use tinynet"),
        (changed(head=CONFIG.head.model_copy(update={"num_nodes": 5000})), "use sflow"),
    ],
)
def test_what_no_worker_could_train_is_refused_before_anything_starts(tmp_path, config, says):
    with pytest.raises(ConfigError, match=says):
        train_on(tmp_path, config)


def test_a_batch_too_small_for_its_workers_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(ConfigError, match="raise batch_size"):
        train_on(tmp_path, changed(recipe={"batch_size": 3}), TWO)


def test_more_than_the_cluster_has_is_refused_at_once(cluster, tmp_path):
    with pytest.raises(ResourceError, match="lower workers"):
        train_on(tmp_path, changed(recipe={"batch_size": 1000}), Resources(workers=100, cpus_per_worker=1))
    with pytest.raises(ResourceError, match="or gpus_per_worker"):
        train_on(tmp_path, resources=Resources(gpus_per_worker=3))


def test_a_network_that_another_process_trains_is_waited_for(cluster, tmp_path):
    """The other one is a lock that opens once the network is there: nothing is trained here."""
    store, said = open_store(tmp_path), []
    with ThreadPoolExecutor() as pool:
        with store.lock(run_folder(identity_of(CONFIG)), ""):
            found = pool.submit(train_on, tmp_path, CONFIG, ONE, said.append)
            wait_for(lambda: said)
            assert "Another process is training this network" in said[0]
            trained(tmp_path, CONFIG)
            assert not found.done()
        assert found.result().record["training"] == {}


# Two workers: Ray Train.


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A run on two workers that nothing happened to."""
    return train_on(tmp_path_factory.mktemp("undisturbed"), LONG, TWO.model_copy(update={"gpus_per_worker": GPUS}))


def test_workers_are_placed_on_gpus_and_train_without_cuda_where_there_is_none(undisturbed, plain):
    (start,) = undisturbed.record["training"]["starts"]
    assert (start["step"], start["workers"], start["device"], start["gpus_of_worker_0"]) == (0, 2, "cpu", GPUS)
    dataset, splits = digits_splits()
    assert start["received"] == [received_hash(dataset.images[splits.prior], dataset.labels[splits.prior])] * 2
    # Each worker normalizes its own part of a batch.
    assert not equal(undisturbed.weights, plain)


def test_one_of_two_workers_killed_in_the_middle_of_an_epoch_changes_nothing(undisturbed, tmp_path):
    with Killer(tmp_path, "TrainWorker"):
        network = train_on(tmp_path, LONG, TWO.model_copy(update=AT_EVERY_STEP))
    first, second = starts_of(network)
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(network.weights, undisturbed.weights)
    assert no_leftovers(tmp_path)


def test_a_driver_killed_and_two_stopped_and_then_another_end_at_the_same_weights(undisturbed, tmp_path):
    file, store, output = tmp_path / "suite.yaml", tmp_path / "store", tmp_path / "output"
    command = [sys.executable, "-m", "ldaf_bench.run", str(file), "--store", str(store), "--results", str(tmp_path)]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    suite = plan_for("deterministic", RECIPE, train={**TWO.model_dump(), **AT_EVERY_STEP}).suite
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
    network = train_on(store, LONG, TWO)
    first, second, third, fourth = starts_of(network)
    assert first == 0 < second < third < fourth < LONG.recipe.epochs * STEPS
    assert equal(network.weights, undisturbed.weights)
    assert no_leftovers(store)
