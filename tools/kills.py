"""Kill anything at any time, start again, and the same tables come out: `python -m tools.kills --kills 30 --seed 0`.

Three nodes on this machine run the digits suite. Every few seconds a process of the run is killed (SIGKILL): a worker
(whatever it is doing), a whole node (another one joins after it), or the driver (the same command is started again).
What and when is drawn by the seed. Each run goes on to its end and is compared with an undisturbed one, to the last bit
apart from times. Every kill is a row of a Parquet file.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas
from ray.cluster_utils import Cluster

from ldaf_bench.provenance import commit
from tools.processes import workers
from tools.tables import same

NODES = 2
"""Nodes besides the head, with one core each."""
PAUSE = (5.0, 20.0)
"""Seconds from one kill to the next."""
KINDS = {"worker": 6, "node": 2, "driver": 2}
"""What is killed, and how often in ten times."""
MOST_STARTS = 30
"""Of one run: more would mean that it never gets on."""
WORKERS = "ImplicitFunc|Writer|_digest_shard|IDLE"


class Nodes:
    """A cluster whose nodes can be killed."""

    def __init__(self) -> None:
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.nodes = [self.cluster.add_node(num_cpus=1) for _ in range(NODES)]

    def kill(self, chance: random.Random) -> str:
        """Kill a node; another one joins."""
        number = chance.randrange(NODES)
        self.cluster.remove_node(self.nodes[number], allow_graceful=False)
        self.nodes[number] = self.cluster.add_node(num_cpus=1)
        return f"node {number}"


class Campaign:
    """Runs of the suite, and what was killed in each."""

    def __init__(self, suite: Path, folder: Path, nodes: Nodes, seed: int) -> None:
        self.suite, self.folder, self.nodes = suite, folder, nodes
        self.chance = random.Random(seed)
        self.rows: list[dict[str, object]] = []

    def start(self, run: int) -> subprocess.Popen[bytes]:
        """The command that people would start, and start again."""
        place = self.folder / str(run)
        place.mkdir(exist_ok=True)
        places = ["--store", str(place / "store"), "--results", str(place / "results")]
        command = [sys.executable, "-m", "ldaf_bench.run", str(self.suite), "--address", self.nodes.cluster.address]
        with (place / "log").open("ab") as log:
            return subprocess.Popen([*command, *places], stdout=log, stderr=log)

    def kill(self, driver: subprocess.Popen[bytes]) -> tuple[str, str]:
        """Kill something; returns its kind and what it was."""
        kind = self.chance.choices(list(KINDS), list(KINDS.values()))[0]
        if kind == "node":
            return kind, self.nodes.kill(self.chance)
        if kind == "worker" and (found := workers(WORKERS)):
            process, doing = self.chance.choice(found)
            os.kill(process, signal.SIGKILL)
            return kind, doing
        driver.kill()
        driver.wait()
        return "driver", "ldaf_bench.run"

    def run(self, number: int, most: int) -> Path:
        """A run to its end, with at most so many kills; returns its results."""
        begin, starts, kills = time.monotonic(), 1, len(self.rows)
        driver = self.start(number)
        while True:
            try:
                code = driver.wait(self.chance.uniform(*PAUSE))
            except subprocess.TimeoutExpired:
                if len(self.rows) - kills < most:
                    kind, what = self.kill(driver)
                    seconds = time.monotonic() - begin
                    self.rows.append({"run": number, "seconds": seconds, "kind": kind, "what": what})
                    print(f"run {number}, {seconds:5.0f} s: {kind} ({what})", flush=True)
                continue
            if code == 0:
                break
            starts += 1
            assert starts <= MOST_STARTS, (self.folder / str(number) / "log").read_text()[-3000:]
            driver = self.start(number)
        for row in self.rows[kills:]:
            row |= {"starts": starts, "run_seconds": time.monotonic() - begin}
        return next((self.folder / str(number) / "results").iterdir())


def main() -> int:
    """The campaign; exit code 0 if all tables are the same."""
    parser = argparse.ArgumentParser(prog="python -m tools.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--suite", type=Path, default=Path("suites/digits.yaml"))
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--each", type=int, default=10, help="kills of one run at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/kills.parquet"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ldaf_bench_kills_") as folder:
        campaign = Campaign(options.suite, Path(folder), Nodes(), options.seed)
        undisturbed, number = campaign.run(0, 0), 0
        print(f"undisturbed: {len(pandas.read_parquet(undisturbed / 'results.parquet'))} rows", flush=True)
        while len(campaign.rows) < options.kills:
            number += 1
            before = len(campaign.rows)
            disturbed = campaign.run(number, min(options.each, options.kills - before))
            equal = same(undisturbed, disturbed)
            print(f"run {number}: {len(campaign.rows) - before} kills, {equal} rows, all the same", flush=True)
            for row in campaign.rows[before:]:
                row |= {"rows": equal, "same": True}
        campaign.nodes.cluster.shutdown()
    frame = pandas.DataFrame(campaign.rows).assign(seed=options.seed, suite=options.suite.stem, commit=commit())
    frame.to_parquet(options.out, index=False)
    print(f"{len(frame)} kills in {number} runs, every table the same. Written to {options.out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
