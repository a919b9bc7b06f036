r"""networks: a trial of Ray Tune for every network, which trains it and makes its digests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray import tune

from ldaf_bench.data.dataset import Dataset, Summary
from ldaf_bench.data.splits import PARTS, LeakError, Part, Splits, received_hash
from ldaf_bench.models.network import Network, NetworkConfig
from ldaf_bench.plan import DigestOf, PlannedNetwork
from ldaf_bench.stages.digest import Work as DigestWork
from ldaf_bench.stages.digest import digest
from ldaf_bench.stages.session import Placement, driver_place
from ldaf_bench.stages.train import Job, train
from ldaf_bench.stages.trials import Ended, failure_of, run_trials
from ldaf_bench.stages.writer import Access
from ldaf_bench.store.digests import digest_path
from ldaf_bench.store.networks import load_network, network_path
from ldaf_bench.store.store import Store, load_from

DigestPart = tuple[DigestOf, Part, int | None]
"""A method's digest of one part, of at most so many points."""


@dataclass(frozen=True)
class Parts:
    """The data of one split in the object store."""

    splits: Splits
    images: Mapping[Part, Any]
    labels: Mapping[Part, Any]
    received: str
    """The hash of the prior part, as training workers compute it of what they received."""


def share(dataset: Dataset, splits: Splits) -> Parts:
    """Put the parts of a split into the object store, each by itself: a training worker is given one of them."""
    if (dataset.sha256, len(dataset)) != (splits.dataset, splits.num_data):
        raise LeakError("The split is one of other data than these.")
    images, labels = dataset.images[splits.prior], dataset.labels[splits.prior]
    chosen = {part: getattr(splits, part) for part in PARTS}
    return Parts(
        splits,
        {part: ray.put(np.ascontiguousarray(dataset.images[some])) for part, some in chosen.items()},
        {part: ray.put(dataset.labels[some]) for part, some in chosen.items()},
        received_hash(images, labels),
    )


@dataclass(frozen=True)
class Work:
    """What all trials have in common."""

    data: Summary
    configs: Mapping[str, NetworkConfig]
    parts: Mapping[str, Parts]
    """By network."""
    digests: Mapping[str, Sequence[DigestPart]]
    placement: Placement
    access: Access


def network_trial(config: dict[str, Any], *, work: Work) -> None:
    """Train a network and make its digests, unless they are there."""
    try:
        _make(str(config["network"]), work)
    except Exception as error:
        tune.report(failure_of(error))


def _make(identity: str, work: Work) -> None:
    config, parts, alone, access = work.configs[identity], work.parts[identity], work.placement.alone, work.access
    trained = access(has, network_path(identity))
    if not trained:
        job = Job(
            identity, config, work.data, parts.images["prior"], parts.labels["prior"], parts.received,
            work.placement.train, access,
        )  # fmt: skip
        train(job, alone, tune.report)
    network = access(stored_network, identity)
    if not trained:
        curve = network.record["training"]["curve"]
        kept = {name: curve[-1][name] for name in ("loss", "accuracy", "images_per_second")}
        tune.report({"trained": len(curve), **kept, "seconds": sum(row["seconds"] for row in curve)})
    for planned, part, at_most in work.digests[identity]:
        one = DigestWork(
            planned, network, parts.splits, part, at_most, parts.images[part], parts.labels[part],
            work.placement.digest, access,
        )  # fmt: skip
        if not access(has, digest_path(one.key)):
            digest(one, alone, tune.report)


def has(store: Store, key: str) -> bool:
    """Whether an artifact is there."""
    return store.exists(key)


def stored_network(store: Store, identity: str) -> Network:
    """A network that is there."""
    return load_from(store, load_network, network_path(identity))


def config_of(planned: PlannedNetwork) -> dict[str, Any]:
    """A trial's configuration, by the names of the suite."""
    config = planned.config
    return {
        "network": planned.identity,
        "dataset": config.dataset,
        "certificate": config.split.certificate,
        "backbone": config.backbone,
        "head": config.head.kind,
        **config.head.used(),
        "epochs": config.recipe.epochs,
        "seed": config.seed,
    }


def make_networks(
    planned: Sequence[PlannedNetwork],
    dataset: Dataset,
    digests: Mapping[str, Sequence[DigestPart]],
    placement: Placement,
    access: Access,
    **follow: Any,
) -> Ended:
    """Train and digest these networks; what is there already is left alone. `follow`: see `run_trials`."""
    shared = {_name(one.splits): one.splits for one in planned}
    parts = {name: share(dataset, splits) for name, splits in shared.items()}
    configs = {one.identity: one.config for one in planned}
    work = Work(
        dataset.summary,
        configs,
        {one.identity: parts[_name(one.splits)] for one in planned},
        digests,
        placement,
        access,
    )
    # Where Ray Train starts the workers, a trial only waits for them, on the driver's machine.
    cpus = max(placement.train.cpus_per_worker, placement.digest.cpus_per_worker)
    need = {"CPU": cpus} if placement.alone else {"CPU": 0, driver_place(): 0.001}
    cells = [config_of(one) for one in planned]
    # Groups are placed by Ray Train and not by Tune, which would start all of them.
    at_once = placement.train.at_once if placement.alone else placement.groups
    return run_trials(network_trial, work, cells, lambda config: need, at_once, **follow)


def _name(splits: Splits) -> str:
    return splits.hash("prior") + splits.hash("certificate")
