"""What training costs beside the network: the input pipeline, the flow, Ray, a second worker."""

from __future__ import annotations

import math
import multiprocessing
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch
from torch import nn

from ldaf_bench.data.augment import Batches
from ldaf_bench.data.dataset import Dataset
from ldaf_bench.models.heads import FlowHead, HeadSpec, LinearHead
from ldaf_bench.models.network import NetworkConfig, build
from ldaf_bench.models.training import Training
from ldaf_bench.plan import PlannedNetwork
from ldaf_bench.resources import Resources, TrainResources
from ldaf_bench.stages.networks import make_networks
from ldaf_bench.stages.session import nodes, place, ray_session
from ldaf_bench.stages.writer import open_access
from ldaf_bench.store.networks import load_network, network_id, network_path
from ldaf_bench.store.store import Store, load_from, open_store
from tools.speed.measure import Row, Sizes, Stopwatch

EPOCHS = 2
"""One to warm up, one to measure."""


def config_of(network: str, head: HeadSpec, batch: int, recipe: str) -> NetworkConfig:
    """A network of two epochs."""
    return NetworkConfig.model_validate(
        {
            "dataset": "folder",
            "split": {"certificate": 0.1},
            "backbone": network,
            "head": head,
            "recipe": {"base": recipe, "epochs": EPOCHS, "batch_size": batch},
        }
    )


def data_of(sizes: Sizes, batch: int, steps: int) -> Dataset:
    """Noise for images: how long a step takes does not depend on what they show."""
    generator = np.random.Generator(np.random.PCG64(0))
    count = math.ceil(batch * steps / 0.9) + 1
    images = generator.integers(0, 256, (count + 1, *sizes.images), dtype=np.uint8)
    labels = generator.integers(0, sizes.num_classes, count + 1)
    return Dataset("folder", images, labels, 1, tuple(f"class {k}" for k in range(sizes.num_classes)))


def training_of(sizes: Sizes, config: NetworkConfig, steps: int, device: str) -> Training:
    """The plain loop, in this process."""
    dataset = data_of(sizes, config.recipe.batch_size, steps)
    splits = config.splits(dataset)
    images = torch.from_numpy(dataset.images[splits.prior])
    labels = torch.from_numpy(dataset.labels[splits.prior]).to(device)
    model = build(config, sizes.images, sizes.num_classes)
    model.prepare(images)
    recipe = config.recipe
    batches = Batches(images.to(device), labels, recipe.batch_size, recipe.augmentation, config.seed)
    return Training(model.to(device), recipe, batches)


def plain_seconds(sizes: Sizes, config: NetworkConfig, device: str, threads: int) -> float:
    """Seconds per step of the plain loop."""
    torch.set_num_threads(threads)
    training = training_of(sizes, config, sizes.steps, device)
    for _ in training.run():
        pass
    return training.curve[-1].seconds / training.curve[-1].steps


def train_by_trials(configs: Sequence[NetworkConfig], dataset: Dataset, store: Store, asked: TrainResources) -> None:
    """Train these networks as a run does."""
    planned = []
    for config in configs:
        splits = config.splits(dataset)
        planned.append(PlannedNetwork(network_id(config, splits.hash("prior")), config, splits))
    like_training = Resources(workers=asked.workers, gpus_per_worker=asked.gpus_per_worker)
    where = place(nodes(), asked, like_training, len(planned), configs[0].recipe.batch_size)
    with open_access(store, joined=False) as access:
        ended = make_networks(planned, dataset, {one.identity: [] for one in planned}, where, access)
    if ended.failures:
        raise RuntimeError(f"A network of the speed test failed: {ended.failures[0][1]}")


def ray_seconds(sizes: Sizes, config: NetworkConfig, resources: TrainResources) -> float:
    """Seconds per step of the same steps in a trial of Ray Tune or on Ray Train, once started."""
    dataset = data_of(sizes, config.recipe.batch_size, sizes.steps)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        train_by_trials([config], dataset, store, resources)
        identity = network_id(config, config.splits(dataset).hash("prior"))
        record = load_from(store, load_network, network_path(identity)).record["training"]
    return float(record["curve"][-1]["seconds"]) * EPOCHS / int(record["steps"])


def step_seconds(sizes: Sizes, config: NetworkConfig, device: str, layout: torch.memory_format) -> float:
    """Seconds of one step: the median of three, after one to warm up."""
    training = training_of(sizes, config, 2, device)
    nn.Module.to(training.bare.get_submodule("backbone"), memory_format=layout)
    steps = training.run()
    return Stopwatch(device)(lambda: next(steps), 3)


def training(sizes: Sizes, device: str) -> Iterator[Row]:
    """The targets of training."""

    def row(what: str, seconds: float, base: float, value: float, limit: float, note: str) -> Row:
        return Row("ratio", what, "", math.nan, seconds, base, value, limit, False, note)

    flow, linear = FlowHead(num_nodes=sizes.num_nodes), LinearHead()
    config = config_of(sizes.network, flow, sizes.batch, "speed")
    on_gpu = torch.device(device).type == "cuda"
    one = TrainResources(workers=1, gpus_per_worker=int(on_gpu))
    pair = TrainResources(workers=2, gpus_per_worker=0)
    threads = torch.get_num_threads()
    context = multiprocessing.get_context("spawn")

    def plain() -> float:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            return pool.submit(plain_seconds, sizes, config, device, threads).result()

    before = plain()
    with ray_session():
        alone = ray_seconds(sizes, config, one)
        two = math.nan if on_gpu or threads < 2 else ray_seconds(sizes, config, pair)
    loop = statistics.fmean([before, plain()])
    note = f"{sizes.network}, batch of {sizes.batch}, one worker, {threads} threads; seconds per step once started"
    yield row("Ray Train / plain loop", alone, loop, alone / loop, 1.1, note)
    if not math.isnan(two):
        note = f"the same with {threads // 2} threads each, against {threads} threads in one"
        yield row("two CPU workers / one", two, alone, two / alone, 1.15, note)

    ready = training_of(sizes, config, sizes.steps, device)
    batches = Stopwatch(device)(lambda: list(ready.batches.epoch(0)), 3) / ready.batches.steps
    yield row("input pipeline / step", batches, loop, batches / loop, 0.05, "shifted and mirrored uint8 batches")

    def step(head: HeadSpec, layout: torch.memory_format) -> float:
        large = config_of(sizes.large_network, head, sizes.large_batch, "paper")
        return step_seconds(sizes, large, device, layout)

    base, ldaf, rows_first = (
        step(linear, torch.channels_last), step(flow, torch.channels_last), step(flow, torch.contiguous_format),
    )  # fmt: skip
    note = f"what the flow adds to a training step of {sizes.large_network}, batch of {sizes.large_batch}"
    yield row("LDAF head / network, extra", ldaf - base, base, ldaf / base - 1, 0.25, note)
    note = f"a training step of {sizes.large_network}, against its usual layout"
    yield row("channels last / first", ldaf, rows_first, ldaf / rows_first, math.nan, note)
