"""The results in short, for the terminal at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ldaf_bench.report.comparison import comparison
from ldaf_bench.report.grouping import at_first_level, done
from ldaf_bench.report.names import held_fixed, label, num_seeds, percent
from ldaf_bench.report.records import results_frame

LONGEST = 16
"""Characters of a heading that stays on one line."""
GAP = 2


def show_results(results: pa.Table, console: Console) -> None:
    """The comparison at the first ε of the suite: a line for each quantity, and as many arms beside it as fit."""
    rows = done(results_frame([results]))
    frame, held = comparison(rows[at_first_level(rows)])
    if frame.empty:
        return
    for dataset, part in frame.groupby("dataset", sort=False):
        for table in _tables(label(dataset), part, console.width):
            console.print(table)
    levels = " or ".join(f"{level:g}" for level in frame["epsilon"].dropna().unique())
    estimates = "" if frame[frame["bound"].ne("")]["certified"].all() else " † Not certified: rests on an estimate."
    about = f"Percent, mean over {num_seeds(frame['_seeds'])}, at ε = {levels}.{estimates} {held_fixed(held)}"
    console.print(Text(about.strip()))


def _tables(title: str, part: pd.DataFrame, width: int) -> Iterator[Table]:
    """Tables of one data set that are no wider than the terminal; each has one arm at least."""
    lines = part["_what"].unique().tolist()
    columns: list[tuple[str, list[str]]] = []
    for arm, own in part.groupby("_arm", sort=False):
        # A long heading is broken where its parts are, never inside a word.
        pieces = [str(arm)] if len(str(arm)) <= LONGEST else str(arm).split(" · ")
        heading = "\n".join(label(piece) for piece in pieces)
        shown = {what: "; ".join(map(_number, group.to_dict("records"))) for what, group in own.groupby("_what")}
        columns.append((heading, [shown.get(what, "–") for what in lines]))
    while columns:
        table = Table(box=None, padding=(0, GAP, 0, 0))
        table.add_column(Text(title), no_wrap=True)
        room, shown_here = width - _width(title, lines), 0
        for heading, cells in columns:
            room -= _width(heading, cells)
            if shown_here and room < 0:
                break
            table.add_column(Text(heading), justify="right", no_wrap=True)
            shown_here += 1
        here, columns = columns[:shown_here], columns[shown_here:]
        for number, line in enumerate(lines):
            table.add_row(Text(line), *(Text(cells[number]) for _, cells in here))
        yield table


def _number(row: Mapping[Any, Any]) -> str:
    return percent(row["_mean"], up=bool(row["bound"])) + (" †" if row["bound"] and not row["certified"] else "")


def _width(heading: str, cells: list[str]) -> int:
    """What a column takes, with the gap after it."""
    return max(map(cell_len, (*heading.split("\n"), *cells))) + GAP
