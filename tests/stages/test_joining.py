"""A Ray that cannot be had is one sentence and exit code 2, and no report of failures is written."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]


def run(folder, **environment):
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    inherited |= {"HOME": str(folder), "PYTHONPATH": str(TOP), **environment}
    command = [sys.executable, "-m", "ldaf_bench.run", str(TOP / "suites" / "digits.yaml")]
    return subprocess.run(command, cwd=folder, env=inherited, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"RAY_AUTH_MODE": "token", "RAY_ADDRESS": "auto"},
            "Ray refuses, because its token is missing here or is another one: ",
        ),
        ({"RAY_ADDRESS": "127.0.0.1:1"}, "There is no Ray to join at 127.0.0.1:1 ([Errno 111] Connection refused)."),
    ],
)
def test_one_sentence(tmp_path, environment, sentence):
    done = run(tmp_path, **environment)
    assert done.returncode == 2, done.stderr
    assert done.stdout == "Joining Ray …\n"
    assert done.stderr.splitlines()[-1].startswith(sentence)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results" / "digits" / "report.html").exists()
