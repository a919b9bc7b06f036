"""cluster/slurm.sh with a Slurm that is played: its nodes are processes in a sandbox of their own, Ray is real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.__main__ import SANDBOX, missing

TOP = Path(__file__).parents[1]
SUITE = {
    "suite": "slurm",
    "data": {"dataset": "digits", "certificate": 0.5},
    "networks": {"backbone": "tinynet", "recipe": {"base": "tiny", "epochs": 1}},
    "methods": {"deterministic": {}},
    "certificates": {"bound": "test_set"},
}
SRUN = """#!/usr/bin/env bash
echo "$RAY_AUTH_MODE $*" >> srun.log
while [[ $1 == --* ]]; do shift; done
exec "$@"
"""
# Ray must see no other Ray of this machine, and no other must see this one.
INSIDE = """set -e
ip link set lo up
mkdir -p /tmp/ray && mount -t tmpfs none /tmp/ray
code=0
bash "$1/cluster/slurm.sh" suite.yaml > slurm.log 2>&1 || code=$?
sleep 1
ps -eo args= | grep -E 'raylet|gcs_server|ray::|dashboard' | grep -v grep > left.log || true
exit $code
"""


@pytest.mark.skipif(bool(missing()), reason=missing() or "all is there")
def test_a_suite_runs_on_two_nodes_and_no_process_is_left(tmp_path):
    for name, text in (("srun", SRUN), ("scontrol", '#!/bin/sh\nprintf "node1\\nnode2\\n"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "suite.yaml").write_text(yaml.safe_dump(SUITE))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    environment |= {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONPATH": str(TOP),
        "SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_CPUS_ON_NODE": "1",
    }  # fmt: skip
    command = [*SANDBOX, "bash", "-c", INSIDE, "inside", str(TOP)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    log = (tmp_path / "slurm.log").read_text()
    assert done.returncode == 0, log + done.stderr
    assert (tmp_path / "results" / "slurm" / "report.html").exists()
    assert (tmp_path / "left.log").read_text() == ""
    calls = (tmp_path / "srun.log").read_text().splitlines()
    assert all(line.startswith("token ") for line in calls)
    heads = [line for line in calls if "ray start" in line and "--head" in line]
    workers = [line for line in calls if "ray start" in line and "--address" in line]
    assert [len(heads), len(workers)] == [1, 1]
    assert "--nodelist=node1" in heads[0]
    assert "--dashboard-host=127.0.0.1" in heads[0]
    assert "--nodelist=node2" in workers[0]
    # The token stands in no command line and in no file.
    seal = json.loads((tmp_path / "results" / "slurm" / "seal.json").read_text())
    assert seal["files"]
    assert "RAY_AUTH_TOKEN" not in log
    assert not (tmp_path / ".ray").exists()


def test_it_says_what_is_missing(tmp_path):
    script = str(TOP / "cluster" / "slurm.sh")
    plain = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", script], env=plain, capture_output=True, text=True)
    assert "Say which suite" in done.stderr
    done = subprocess.run(["bash", script, "x.yaml"], env=plain, capture_output=True, text=True)
    assert "Start this with sbatch" in done.stderr
    done = subprocess.run(
        ["bash", script, "x.yaml"], env={**plain, "SLURM_SUBMIT_DIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (2, "There is no .venv here: run make install first.\n")
