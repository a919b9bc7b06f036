"""Machines that go away with notice, and a head that is started again: `python -m tools.leaving FOLDER`.

A training takes no checkpoint by the clock here. A node that is told to leave takes one; when it is gone, another node
goes on from it. Then the head is killed with all that runs on it. A new one is started, the same command is given once
more, and goes on as well. The weights are those of an undisturbed training. There are two workers, because Ray Train
tells groups that their node leaves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import yaml
from ray.cluster_utils import Cluster
from safetensors.torch import load_file

PATIENCE = 400
"""Seconds that anything may take."""
SUITE = {
    "suite": "leaving",
    "data": {"dataset": "digits", "certificate": 0.5},
    "networks": {"backbone": "tinynet", "recipe": {"base": "tiny", "epochs": 800}},
    "methods": {"deterministic": {}},
    "certificates": {"bound": "test_set"},
    "resources": {
        "train": {"workers": 2, "cpus_per_worker": 1, "checkpoint_seconds": 3600.0},
        "digest": {"cpus_per_worker": 1},
    },
}


def until(happens: Callable[[], object]) -> None:
    """Wait for it."""
    end = time.monotonic() + PATIENCE
    while not happens():
        assert time.monotonic() < end, "It did not happen."
        time.sleep(0.2)


class Story:
    """A cluster of a head and one node, and the command that runs on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "suite.yaml").write_text(yaml.safe_dump(SUITE), encoding="utf-8")
        self.begin()

    def begin(self) -> None:
        """A new head with a node, and the command."""
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.node = self.cluster.add_node(num_cpus=2)
        places = ["--store", str(self.folder / "store"), "--results", str(self.folder / "results")]
        command = ["-m", "ldaf_bench.run", str(self.folder / "suite.yaml"), "--address", self.cluster.address, *places]
        with (self.folder / "log").open("ab") as log:
            self.driver = subprocess.Popen([sys.executable, *command], stdout=log, stderr=log)

    def checkpoints(self) -> list[str]:
        """All that there are, by their steps."""
        return sorted(path.parent.name for path in self.folder.glob("store/**/training.json"))

    def under_way(self) -> bool:
        """Whether the newest start trains: it has begun, and Ray Train has had the time to start its workers."""
        begun = sorted(self.folder.glob("store/**/begun.json"), key=lambda path: path.stat().st_mtime)
        return bool(begun) and time.time() - begun[-1].stat().st_mtime > 20

    def node_leaves(self) -> None:
        """With notice; another one comes when it is gone."""
        before = self.checkpoints()
        told = ["--address", self.cluster.address, "--node-id", self.node.node_id, "--reason-message", "test"]
        why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--deadline-remaining-seconds", "60"]
        ray = Path(sys.executable).with_name("ray")
        subprocess.run([ray, "drain-node", *told, *why], check=True, stdout=subprocess.DEVNULL)
        until(lambda: self.checkpoints() != before)
        self.cluster.remove_node(self.node, allow_graceful=False)
        self.node = self.cluster.add_node(num_cpus=2)

    def head_is_lost(self) -> None:
        """With the driver and all nodes; a new head takes its place."""
        self.driver.kill()
        self.driver.wait()
        self.cluster.shutdown()
        self.begin()

    def network(self) -> Path:
        """The folder of the trained network."""
        (path,) = self.folder.glob("store/networks/*")
        return path


def main(folder: Path) -> int:
    """The story; exit code 0 if it ends well."""
    story = Story(folder / "disturbed")
    until(story.under_way)
    story.node_leaves()
    print(f"A node that was told to leave left a checkpoint: {story.checkpoints()[-1]}.", flush=True)
    until(story.under_way)
    story.head_is_lost()
    assert story.driver.wait(PATIENCE) == 0, (story.folder / "log").read_text(encoding="utf-8")[-2000:]
    story.cluster.shutdown()
    starts = json.loads((story.network() / "network.json").read_text(encoding="utf-8"))["training"]["starts"]
    steps = [start["step"] for start in starts]
    print(f"Trained from steps {steps}, over a node that left and a head that was lost.", flush=True)
    assert max(steps) > 0, "It began anew."
    calm = Story(folder / "undisturbed")
    assert calm.driver.wait(PATIENCE) == 0, (calm.folder / "log").read_text(encoding="utf-8")[-2000:]
    calm.cluster.shutdown()
    mine, other = (load_file(one.network() / "weights.safetensors") for one in (story, calm))
    assert mine.keys() == other.keys()
    assert all(mine[name].equal(other[name]) for name in mine)
    print("The weights are those of an undisturbed training.")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
