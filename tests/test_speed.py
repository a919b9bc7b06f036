"""The speed table runs, reads back, and memory does not grow with m × q."""

import math

import pyarrow.parquet as pq
import pytest

from tools.speed.__main__ import main
from tools.speed.measure import Row, Sizes, memory, slopes


def row(**change):
    base = {
        "kind": "ratio", "what": "x", "axis": "", "x": math.nan, "seconds": 1.0, "baseline_seconds": 2.0, "value": 2.0,
        "limit": 3.0, "at_least": False,
    }  # fmt: skip
    return Row(**{**base, **change})


def test_every_part_runs_and_is_written_as_parquet(tmp_path, capsys):
    assert main(["--quick", "--out", str(tmp_path / "new" / "speed.parquet")]) == 0
    out = capsys.readouterr().out
    assert "push / forward pass" in out
    table = pq.read_table(tmp_path / "new" / "speed.parquet").to_pylist()
    assert {entry["kind"] for entry in table} == {"ratio", "memory", "growth", "slope"}
    assert {entry["axis"] for entry in table if entry["kind"] == "slope"} == {"n", "c", "m", "q"}
    assert all(entry["torch"] for entry in table)
    assert "means nothing" in out
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["speed.parquet"]


def test_targets_are_judged_by_their_direction():
    assert row().holds
    assert not row(limit=1.0).holds
    assert row(limit=1.0, at_least=True).holds
    assert not row(value=math.nan).holds
    assert row(limit=math.nan).holds


def test_slopes_are_those_of_power_laws():
    points = [row(kind="growth", axis="m", x=x, seconds=3 * x**1.5) for x in (10, 20, 80)]
    (slope,) = slopes(points)
    assert slope.value == pytest.approx(1.5)


def test_peak_memory_does_not_grow_with_the_number_of_points():
    sizes = Sizes(num_nodes=5, num_classes=10, num_data=2000, memory_points=(256, 16384))
    few, many = (entry.value for entry in memory(sizes, "cpu"))
    stored = 2000 * 16384 * 9 * 4 / 2**30  # what one float32 number per datum, point and rival would take
    assert stored > 1
    assert many - few < 0.1
    assert many < 0.5
