"""Does it stay flat? Whole runs with more and more light posteriors; and networks side by side, against one by one."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml

from ldaf_bench.data.datasets import load
from ldaf_bench.methods.ldaf import LDAF
from ldaf_bench.methods.method import UNFITTED
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.network import NetworkConfig
from ldaf_bench.resources import TrainResources
from ldaf_bench.stages.session import ray_session
from ldaf_bench.store.store import open_store
from ldaf_bench.theory.bounds import CHERNOFF
from ldaf_bench.theory.integrate.sampling import MC
from tools.speed.measure import Row, Sizes
from tools.speed.training import train_by_trials

LOOK_SECONDS = 0.1
"""How often the driver's memory is looked at."""
NETWORKS_AT_ONCE = 4
"""Networks that are trained to compare one at a time with two at a time."""


def light_suite(networks: int, each: int) -> dict[str, Any]:
    """So many networks that learn next to nothing, each with so many priors and one small integration of each."""
    axes = {"flow": "sflow", "num_nodes": 2, "covariance": "isotropic", "objective": UNFITTED}
    return {
        "suite": f"light{networks * each}",
        "data": {"dataset": "digits", "certificate": 0.5},
        "networks": {
            "backbone": "tinynet",
            "recipe": {"base": "tiny", "epochs": 1},
            "seed": list(range(networks)),
        },
        # Other scales in every suite, so that no run finds what another one made.
        "methods": {LDAF.name: {**axes, "scale": [0.01 + 0.001 * k + 1e-6 * each for k in range(each)]}},
        "risks": {"integrator": MC.name, "num_points": 16},
        "certificates": {"bound": CHERNOFF.name},
        "resources": {"train": {"cpus_per_worker": 1}, "digest": {"cpus_per_worker": 1}},
    }


class Measured(NamedTuple):
    """A whole run."""

    each: float
    """Seconds from one posterior to the next."""
    seconds: float
    """Of the whole run, its report included."""
    peak: float
    """The driver's memory at most, in bytes."""


def run_suite(suite: dict[str, Any], folder: Path) -> Measured:
    """Run a suite as people do, in a process of its own."""
    file = folder / f"{suite['suite']}.yaml"
    file.write_text(yaml.safe_dump(suite), encoding="utf-8")
    command = [sys.executable, "-m", "ldaf_bench.run", str(file)]
    places = ["--store", str(folder / "store"), "--results", str(folder / "results")]
    begin, peak = time.perf_counter(), 0.0
    with (folder / "log").open("w") as log, subprocess.Popen([*command, *places], stdout=log, stderr=log) as driver:
        while driver.poll() is None:
            peak = max(peak, _peak_of(driver.pid))
            time.sleep(LOOK_SECONDS)
    seconds = time.perf_counter() - begin
    if driver.returncode:
        raise RuntimeError(f"A run of the speed test failed: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
    rows = pq.read_table(folder / "results" / suite["suite"] / "results.parquet", columns=["finished", "integrator"])
    finished = rows.filter(pc.field("integrator").is_valid())["finished"]
    first, last = (value.as_py() for value in pc.min_max(finished).values())
    return Measured((last - first).total_seconds() / max(1, len(finished) - 1), seconds, peak)


def _peak_of(process: int) -> float:
    """The peak memory of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0.0
    return max((1024 * float(line.split()[1]) for line in lines if line.startswith("VmHWM")), default=0.0)


def scale(sizes: Sizes, device: str) -> Iterator[Row]:
    """Seconds per posterior and the driver's memory, for more and more light posteriors over the same networks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_suite(light_suite(sizes.light_networks, 1), folder)  # trains the networks
        counts = sizes.light_posteriors
        found = {count: run_suite(light_suite(sizes.light_networks, count), folder) for count in counts}
    base = found[counts[0]]
    for count, one in found.items():
        total = count * sizes.light_networks
        note = f"{total} light posteriors of {sizes.light_networks} networks: {one.seconds:.0f} s for the whole run"
        limit = 1.25 if count != counts[0] else math.nan
        ratio = one.each / base.each
        yield Row("ratio", f"{total} posteriors, s each", "", total, one.each, base.each, ratio, limit, False, note)
        note = f"memory of the driver: {one.peak / 2**30:.2f} GB, against {base.peak / 2**30:.2f} GB"
        more = (one.peak - base.peak) / 2**30
        yield Row("memory", f"driver, {total} posteriors", "", total, math.nan, math.nan, more, 0.5, False, note)


def networks_seconds(at_once: int, seeds: range, place: str, epochs: int) -> float:
    """Seconds for networks of these seeds, so many at a time, one core each."""
    base = {"dataset": "digits", "split": {"certificate": 0.5}, "backbone": "tinynet", "head": LinearHead()}
    recipe = {"base": "tiny", "epochs": epochs}
    configs = [NetworkConfig.model_validate({**base, "recipe": recipe, "seed": seed}) for seed in seeds]
    asked = TrainResources(workers=1, cpus_per_worker=1, gpus_per_worker=0, at_once=at_once)
    begin = time.perf_counter()
    train_by_trials(configs, load("digits"), open_store(place), asked)
    return time.perf_counter() - begin


def side_by_side(sizes: Sizes, device: str) -> Iterator[Row]:
    """Networks two at a time, against one after another."""
    starts = itertools.count(0, NETWORKS_AT_ONCE)

    def some() -> range:
        first = next(starts)
        return range(first, first + NETWORKS_AT_ONCE)

    with tempfile.TemporaryDirectory() as place, ray_session(num_cpus=2):
        networks_seconds(2, some(), place, 1)  # starts processes
        one, two = (networks_seconds(at_once, some(), place, sizes.light_epochs) for at_once in (1, 2))
    note = f"{NETWORKS_AT_ONCE} small networks on the digits, one core each, processes running"
    yield Row("ratio", "two networks at a time / one", "", math.nan, two, one, two / one, 0.6, False, note)
