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
from ldaf_bench.methods.store import load_prior, prior_id, prior_path
from ldaf_bench.methods.training import DivergenceError, Training
from ldaf_bench.stages.session import ResourceError, Resources
from ldaf_bench.stages.train import train
from tests.priors import CONFIG, digits_splits

LONG = PriorConfig(
    **{**CONFIG.model_dump(), "recipe": {**CONFIG.recipe.model_dump(), "epochs": 40, "shift": 1, "batch_size": 63}}
)
"""Ten seconds of training; the global batch is not a multiple of two workers."""
TWO = Resources(workers=2, cpus_per_worker=1, checkpoint_seconds=0.3)
PATIENCE = 120


def weights(path):
    return load_prior(path).weights


def equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def train_on(store, config=CONFIG, resources=TWO, console=None):
    dataset, splits = digits_splits()
    return train(config, dataset, splits, store, resources, console)


def newest_checkpoint(store):
    """The name of the newest checkpoint that Ray has taken note of: a later start goes on from there."""
    text = "".join(path.read_text() for path in store.glob("training/*/checkpoint_manager_snapshot.json"))
    return max(re.findall(r"checkpoint_[\w.:-]+\d", text), default="")


def wait_for(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.05)


def train_workers():
    """Process numbers of the training workers under this process or on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_bytes()
        except OSError:
            continue
        if re.match(rb"ray::.*TrainWorker", title):
            found.append(int(path.parent.name))
    return found


@pytest.fixture(scope="module")
def undisturbed(cluster, tmp_path_factory):
    """The weights of a run on two workers that nothing happened to."""
    return weights(train_on(tmp_path_factory.mktemp("undisturbed"), LONG))


def test_a_worker_killed_in_the_middle_of_an_epoch_changes_nothing(cluster, undisturbed, tmp_path):
    killed = []

    def kill():
        wait_for(lambda: newest_checkpoint(tmp_path))
        killed.append(train_workers()[-1])
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    path = train_on(tmp_path, LONG)
    thread.join()
    assert killed
    assert equal(weights(path), undisturbed)
    assert not list(tmp_path.glob("training/*/"))


def test_a_killed_driver_started_again_ends_at_the_same_weights(undisturbed, tmp_path):
    file, store = tmp_path / "prior.yaml", tmp_path / "store"
    file.write_text(yaml.safe_dump({"prior": LONG.model_dump(), "resources": TWO.model_dump()}))
    command = [sys.executable, "-m", "ldaf_bench.prior", str(file), "--store", str(store)]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    _, splits = digits_splits()
    path = prior_path(store, prior_id(LONG, splits))
    for how, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)):
        so_far = newest_checkpoint(store)
        driver = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: newest_checkpoint(store) > so_far)  # noqa: B023
        driver.send_signal(how)
        _, error = driver.communicate(timeout=PATIENCE)
        assert driver.returncode == code, error
        assert not path.exists()
    assert error == "Stopped. Start it again to go on from the last checkpoint.\n"
    last = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert last.returncode == 0, last.stderr
    assert re.search(r"Mean classifier: \d\.\d\d% error on the test part of 359", last.stdout)
    assert equal(weights(path), undisturbed)


def test_one_worker_on_ray_is_the_plain_loop_and_two_are_nearly(cluster, tmp_path):
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

    output = io.StringIO()
    path = train_on(tmp_path / "one", resources=Resources(cpus_per_worker=1), console=Console(file=output))
    one = load_prior(path)
    assert equal(one.weights, model.state_dict())
    lines = output.getvalue().splitlines()
    assert len(lines) == recipe.epochs
    assert re.fullmatch(r"epoch +2/2  loss \d+\.\d+  accuracy +\d+\.\d%  +\d+ images/s  \d+:\d\d", lines[1])
    curve = one.record["training"]["curve"]
    assert [row["loss"] for row in curve] == [row.mean_loss for row in plain.curve]
    assert one.record["training"]["workers"] == 1

    # Without BatchNorm's statistics, which are each worker's own, this would be the same up to rounding.
    two = load_prior(train_on(tmp_path / "two"))
    assert two.record["training"]["curve"][1]["loss"] == pytest.approx(curve[1]["loss"], rel=0.3)
    assert train_on(tmp_path / "two") == prior_path(tmp_path / "two", two.identity)


def test_divergence_on_two_workers_ends_the_run_with_a_sentence_and_leaves_nothing(cluster, tmp_path):
    recipe = {**CONFIG.recipe.model_dump(), "learning_rate": 1e30, "warmup": 0}
    config = PriorConfig(**{**CONFIG.model_dump(), "recipe": recipe})
    with pytest.raises(DivergenceError, match="lower the recipe's learning_rate"):
        train_on(tmp_path, config)
    assert not [path for path in tmp_path.rglob("*") if path.suffix != ".lock" and path.is_file()]


def test_more_than_the_cluster_has_is_refused_at_once(cluster, tmp_path):
    with pytest.raises(ResourceError, match="lower workers"):
        train_on(tmp_path, resources=Resources(workers=1000, cpus_per_worker=1))
    with pytest.raises(ResourceError, match="gpus_per_worker"):
        train_on(tmp_path, resources=Resources(gpus_per_worker=3))


def test_workers_are_placed_on_gpus_and_train_without_cuda_where_there_is_none(cluster, tmp_path):
    if torch.cuda.is_available():
        pytest.skip("These GPUs are real.")
    path = train_on(tmp_path, resources=Resources(workers=2, cpus_per_worker=1, gpus_per_worker=1))
    assert load_prior(path).record["training"]["device"] == "cpu"


def test_a_prior_is_trained_by_one_process_at_a_time(cluster, tmp_path):
    _, splits = digits_splits()
    lock = (tmp_path / "training" / prior_id(CONFIG, splits)).with_suffix(".lock")
    with exclusive(lock, ""), pytest.raises(ArtifactError, match="Another process is training this prior"):
        train_on(tmp_path)
