"""How fast, and how does it grow? `python -m tools.speed [--device cuda] [--out FILE.parquet]`

Every figure is a ratio of two things measured one after the other in the same run, because seconds differ between
machines and hours. Run it on an otherwise idle machine. Exit code 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import math
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ldaf_bench import __version__
from ldaf_bench.artifacts import whole_file
from tools.speed.draws import draws
from tools.speed.measure import QUICK, Row, Sizes, growth, memory, ratios, slopes
from tools.speed.scale import scale, side_by_side
from tools.speed.sweep import overhead
from tools.speed.training import training

# With Ray last: for a while after a Ray of our own has ended, its processes are still busy ending.
PARTS = {ratios: 2, memory: 1, growth: 2, draws: 1, overhead: 1, side_by_side: 1, training: 5, scale: 15}
"""What is measured, and about how many minutes it takes."""


def write(rows: Sequence[Row], path: Path, device: str) -> None:
    """All rows and where they were measured, as one Parquet file; whole or not at all."""
    where = {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "ldaf_bench": __version__,
        "time": datetime.now(UTC),
    }
    table = pa.Table.from_pylist([{**asdict(row), "holds": row.holds, **where} for row in rows])
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def show(rows: Sequence[Row], console: Console) -> None:
    """The tables that people read."""
    table = Table(title="Targets", box=box.SIMPLE)
    for heading in ("what", "measured", "target", "", "seconds", "against"):
        table.add_column(heading, justify="left" if heading in ("what", "") else "right", no_wrap=True)
    targets = [row for row in rows if row.kind in ("ratio", "memory")]
    for row in targets:
        target = f"{'≥' if row.at_least else '≤'} {row.limit:g}"
        mark = "[green]met[/]" if row.holds else "[bold red]MISSED[/]"
        cells = [target, mark] if not math.isnan(row.limit) else ["", ""]
        cells += ["" if math.isnan(s) else f"{s:.3g}" for s in (row.seconds, row.baseline_seconds)]
        table.add_row(row.what, f"{row.value:.3g}", *cells)
    console.print(table)
    for row in targets:
        console.print(f"  {row.what}: {row.note}", style="dim", highlight=False)
    console.print()
    table = Table(title="Growth: log-log slopes", box=box.SIMPLE)
    for heading in ("stage", "n", "c", "m", "q"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    steep = [row for row in rows if row.kind == "slope"]
    for what in dict.fromkeys(row.what for row in steep):
        found = {row.axis: f"{row.value:.2f}" for row in steep if row.what == what}
        table.add_row(what, *(found.get(axis, "") for axis in "ncmq"))
    console.print(table)
    for row in rows:
        if row.axis == "corner":
            console.print(f"  {row.note}: {row.what} {row.seconds:.3g} s", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show and write; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    parser.add_argument("--only", choices=[part.__name__ for part in PARTS], help="one part of it")
    parser.add_argument(
        "--out", type=Path, help="default: results/speed.parquet, or speed_PART.parquet, and none with --quick"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that it runs; the targets mean nothing"
    )
    options = parser.parse_args(arguments)
    sizes = QUICK if options.quick else Sizes()
    console = Console()
    rows: list[Row] = []
    for part, minutes in PARTS.items():
        if options.only not in (None, part.__name__):
            continue
        console.print(f"Measuring {part.__name__} on {options.device}, about {minutes} min …", highlight=False)
        rows += part(sizes, options.device)
    rows += slopes([row for row in rows if row.kind == "growth"])
    show(rows, console)
    name = "speed.parquet" if options.only is None else f"speed_{options.only}.parquet"
    path = options.out or (None if options.quick else Path("results") / name)
    if path is not None:
        write(rows, path, options.device)
        console.print(f"Written to {path}.")
    if options.quick:
        console.print("With --quick the sizes are tiny: whether a target is met means nothing.")
        return 0
    missed = [row.what for row in rows if not row.holds]
    if missed:
        print(f"Missed: {', '.join(missed)}.", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
