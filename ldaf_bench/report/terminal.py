"""The results in short, for the terminal at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ldaf_bench.report.comparison import comparison, line, meant, number
from ldaf_bench.report.grouping import at_first_level, done
from ldaf_bench.report.names import heading, held_fixed, label, num_seeds
from ldaf_bench.report.records import results_frame
from ldaf_bench.report.selection import best_sentences

LONGEST = 16
"""Characters of a heading that stays on one line."""
GAP = 2
NONE = "–"


def show_results(results: pa.Table, console: Console) -> None:
    """The comparison at the first ε of the suite: a line for each quantity, and as many arms beside it as fit.

    Below it the best certificates, where the suite paid for naming them.
    """
    everything = results_frame([results])
    rows = done(everything)
    frame, held = comparison(rows[at_first_level(rows)])
    if frame.empty:
        return
    for dataset, part in frame.groupby("dataset", sort=False):
        for table in _tables(label(dataset), part, console.width):
            console.print(table)
    about = [
        f"Percent, {num_seeds(frame['_seeds'])}. What has a probability beside it is a certificate, rounded up, and "
        "may fail with this probability.",
        "" if frame[frame["bound"].ne("")]["certified"].all() else "An estimate is not certified.",
        meant(frame),
        held_fixed(held),
    ]
    console.print(Text(" ".join(filter(None, about))))
    if rows["num_events"].gt(1).any():  # a choice was paid for: what it may say is what the suite was run for
        for sentence in best_sentences(everything):
            console.print(Text(sentence[0].upper() + sentence[1:]))


def _tables(title: str, part: pd.DataFrame, width: int) -> Iterator[Table]:
    """Tables of one data set that are no wider than the terminal; each has one arm at least."""
    part = part.assign(_line=[(row["_what"], line(row)[1]) for row in part.to_dict("records")])
    lines = part["_line"].unique().tolist()
    fails = [heading("total"), *(fails for _, fails in lines)]
    columns: list[tuple[str, list[str]]] = []
    for arm, own in part.groupby("_arm", sort=False):
        # A long heading is broken where its parts are, never inside a word.
        pieces = [str(arm)] if len(str(arm)) <= LONGEST else str(arm).split(" · ")
        top = "\n".join(label(piece) for piece in pieces)
        shown: dict[tuple[str, str], list[str]] = {}
        for row in own.to_dict("records"):
            shown.setdefault(row["_line"], []).append(number(row, sd=False))
        columns.append((top, ["; ".join(shown.get(key, [NONE])) for key in lines]))
    while columns:
        table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False)
        table.add_column(Text(title), no_wrap=True)
        table.add_column(Text(fails[0]), justify="right", no_wrap=True)
        room, shown_here = width - _width(title, [name for name, _ in lines]) - _width("", fails), 0
        for top, cells in columns:
            room -= _width(top, cells)
            if shown_here and room < 0:
                break
            table.add_column(Text(top), justify="right", no_wrap=True)
            shown_here += 1
        here, columns = columns[:shown_here], columns[shown_here:]
        for place, (name, chance) in enumerate(lines):
            values = [cells[place] for _, cells in here]
            if set(values) != {NONE}:  # what no arm of this table has is in another one
                table.add_row(Text(name), Text(chance), *map(Text, values))
        yield table


def _width(heading: str, cells: list[str]) -> int:
    """What a column takes, with the gap after it."""
    return max(map(cell_len, (*heading.split("\n"), *cells))) + GAP
