"""On nodes that really leave: see `tools.leaving`."""

import subprocess
import sys


def test_a_node_that_is_told_to_leave_and_a_lost_head_cost_nothing_that_was_finished(tmp_path):
    command = [sys.executable, "-m", "tools.leaving", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr[-3000:]
    assert "The weights are those of an undisturbed training." in ended.stdout
