"""Training on Ray ends at the same weights whatever is killed on the way."""

import io
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import yaml
from rich.console import Console

from ldaf_bench.artifacts import ArtifactError, exclusive
from ldaf_bench.data.augment import Batches
from ldaf_bench.methods import build
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.store import WEIGHTS, load_prior, prior_id, prior_path
from ldaf_bench.methods.training import DivergenceError, Training
from ldaf_bench.resources import Resources
from ldaf_bench.stages import train as stage
from ldaf_bench.stages.session import ResourceError
from ldaf_bench.stages.train import ConfigError, train
from tests.priors import CONFIG, digits_splits


def changed(**recipe):
    return PriorConfig(**{**CONFIG.model_dump(), "recipe": {**CONFIG.recipe.model_dump(), **recipe}})


LONG = changed(epochs=8, shift=1, batch_size=63)
"""The global batch is not a multiple of two workers."""
STEPS = len(digits_splits()[1].prior) // 63
"""Of an epoch of it."""
TWO = Resources(workers=2, cpus_per_worker=1, checkpoint_seconds=0.3)
SLOW = Resources(workers=2, cpus_per_worker=1, checkpoint_seconds=0)
"""A checkpoint after every step: what is killed is far from its end."""
PATIENCE = 120


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def train_on(store, config=CONFIG, resources=TWO, console=None):
    return train(config, digits_splits()[0], store, resources, console)


def identity_of(config):
    return prior_id(config, digits_splits()[1].hash("prior"))


def checkpoint_of_start(store, number):
    """Whether this start has got as far as a checkpoint."""
    return any(store.glob(f"training/*/{number}/checkpoint_*"))


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.02)


def ancestors(process):
    while process > 1:
        yield process
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def train_workers():
    """Process numbers of our own training workers, and of nobody else's."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        number = int(path.parent.name)
        try:
            if re.match(rb"ray::.*TrainWorker", path.read_bytes()) and os.getpid() in ancestors(number):
                found.append(number)
        except OSError:  # it ended meanwhile
            continue
    return found


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """A run on two workers that nothing happened to."""
    prior = train_on(tmp_path_factory.mktemp("undisturbed"), LONG)
    (start,) = prior.record["training"]["starts"]
    assert (start["step"], start["workers"]) == (0, 2)
    return prior


def test_a_worker_killed_in_the_middle_of_an_epoch_changes_nothing(cluster, undisturbed, tmp_path):
    killed = []

    def kill():
        wait_for(lambda: checkpoint_of_start(tmp_path, 1))
        killed.append(train_workers()[-1])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    prior = train_on(tmp_path, LONG)
    thread.join()
    assert killed
    first, second = (start["step"] for start in prior.record["training"]["starts"])
    assert first == 0 < second < LONG.recipe.epochs * STEPS
    assert equal(prior.weights, undisturbed.weights)
    assert not list(tmp_path.glob("training/*/"))


def test_a_driver_that_dies_between_training_and_saving_trains_no_second_time(cluster, tmp_path, monkeypatch):
    def die(*_):
        raise KeyError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(stage, "save_prior", die)
        with pytest.raises(KeyError, match="killed"):
            train_on(tmp_path)
    prior = train_on(tmp_path)
    # The second time, the last step was done already: no worker got as far as a checkpoint that says that it started.
    assert len(prior.record["training"]["starts"]) == 1
    assert not list(tmp_path.glob("training/*/"))


def test_a_driver_killed_and_one_stopped_and_then_a_third_end_at_the_same_weights(undisturbed, tmp_path):
    file, store, output = tmp_path / "prior.yaml", tmp_path / "store", tmp_path / "output"
    command = [sys.executable, "-m", "ldaf_bench.prior", str(file), "--store", str(store)]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}

    def start(resources):
        file.write_text(yaml.safe_dump({"prior": LONG.model_dump(), "resources": resources.model_dump()}))
        with output.open("w") as said:
            return subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT)

    killed = start(SLOW)
    wait_for(lambda: checkpoint_of_start(store, 1))
    killed.kill()
    killed.wait()
    # The workers of the one that was killed may live on beside the next for some seconds.
    stopped = start(SLOW)
    wait_for(lambda: checkpoint_of_start(store, 2))
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(PATIENCE) == 130, output.read_text()
    assert "Stopped. Start it again to go on from the last checkpoint." in output.read_text()
    assert not prior_path(store, identity_of(LONG)).exists()
    finishes = start(TWO)
    assert finishes.wait(PATIENCE) == 0, output.read_text()
    assert re.search(r"Mean classifier: \d\.\d\d% error on the test part of 359", output.read_text())
    prior = load_prior(prior_path(store, identity_of(LONG)))
    first, second, third = (begun["step"] for begun in prior.record["training"]["starts"])
    assert first == 0 < second < third < LONG.recipe.epochs * STEPS
    assert equal(prior.weights, undisturbed.weights)
    assert not list(store.glob("training/*/"))


def test_one_worker_on_ray_is_the_plain_loop_and_a_damaged_prior_is_trained_again(cluster, tmp_path):
    dataset, splits = digits_splits()
    images, labels = torch.from_numpy(dataset.images[splits.prior]), torch.from_numpy(dataset.labels[splits.prior])
    model = build(CONFIG, (1, 8, 8), 10)
    model.prepare(images)
    recipe = CONFIG.recipe
    plain = Training(model, recipe, Batches(images, labels, recipe.batch_size, recipe.augmentation, CONFIG.seed))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    list(plain.run())
    torch.set_num_threads(threads)

    output, one_cpu = io.StringIO(), Resources(cpus_per_worker=1)
    one = train_on(tmp_path, resources=one_cpu, console=Console(file=output))
    assert equal(one.weights, model.state_dict())
    lines = output.getvalue().splitlines()
    assert len(lines) == recipe.epochs
    assert re.fullmatch(r"epoch +2/2  loss \d+\.\d+  accuracy +\d+\.\d%  +\d+ images/s  \d+:\d\d", lines[1])
    assert [row["loss"] for row in one.record["training"]["curve"]] == [row.mean_loss for row in plain.curve]

    finished = one.record["finished"]
    assert train_on(tmp_path, resources=one_cpu).record["finished"] == finished
    weights = prior_path(tmp_path, one.identity) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-1])
    again = train_on(tmp_path, resources=one_cpu, console=Console(file=output, width=1000))
    assert "It was set aside" in output.getvalue()
    assert equal(again.weights, one.weights)


def test_divergence_on_two_workers_ends_the_run_with_a_sentence_and_leaves_nothing(cluster, tmp_path):
    with pytest.raises(DivergenceError, match="lower the recipe's learning_rate"):
        train_on(tmp_path, changed(learning_rate=1e30, warmup=0))
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (changed(batch_size=5000), "lower batch_size"),
        (changed(batch_size=3), "raise batch_size"),
        (changed(shift=8), "lower shift"),
        (PriorConfig(**{**CONFIG.model_dump(), "backbone": "speednet"}), "use tinynet"),
    ],
)
def test_what_no_worker_could_train_is_refused_before_anything_starts(tmp_path, config, says):
    with pytest.raises(ConfigError, match=says):
        train_on(tmp_path, config)


def test_more_than_the_cluster_has_is_refused_at_once(cluster, tmp_path):
    with pytest.raises(ResourceError, match="lower workers"):
        train_on(tmp_path, changed(batch_size=1000), Resources(workers=100, cpus_per_worker=1))
    with pytest.raises(ResourceError, match="or gpus_per_worker"):
        train_on(tmp_path, resources=Resources(gpus_per_worker=3))


def test_cores_are_shared_by_node_and_never_across_nodes(monkeypatch):
    def cluster_of(*nodes):
        listing = [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in nodes]
        monkeypatch.setattr("ldaf_bench.stages.session.ray.nodes", lambda: listing)

    def cpus(**wanted):
        return stage.fitted(Resources(**wanted)).cpus_per_worker

    cluster_of((8, 0), (8, 0))
    assert [cpus(workers=k) for k in (1, 2, 3, 4, 16)] == [8, 8, 4, 4, 1]
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=17)
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=1, cpus_per_worker=9)
    cluster_of((16, 0), (8, 2))
    assert cpus(workers=2, gpus_per_worker=1) == 4
    assert cpus(workers=4, gpus_per_worker=0.5) == 2
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=3, gpus_per_worker=1)


def test_workers_are_placed_on_gpus_and_train_without_cuda_where_there_is_none(cluster, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("These GPUs are real.")
    prior = train_on(tmp_path, resources=Resources(workers=2, cpus_per_worker=1, gpus_per_worker=1))
    (start,) = prior.record["training"]["starts"]
    assert start == {"step": 0, "workers": 2, "device": "cpu", "gpus_of_worker_0": 1}


def test_a_prior_is_trained_by_one_process_at_a_time(cluster, tmp_path):
    lock = (tmp_path / "training" / identity_of(CONFIG)).with_suffix(".lock")
    with exclusive(lock, ""), pytest.raises(ArtifactError, match="Another process is training this prior"):
        train_on(tmp_path)
