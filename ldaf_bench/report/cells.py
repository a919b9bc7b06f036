"""What a table of the report is, before it is Markdown, LaTeX or HTML."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ldaf_bench.report.names import ESTIMATE, is_missing, text


class Cell(NamedTuple):
    """An entry: what is read, and by what it is sorted."""

    text: str
    key: float | str


class Table(NamedTuple):
    """A table that every format can be made from."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    @property
    def numeric(self) -> tuple[bool, ...]:
        """Which columns hold numbers, and stand on the right."""
        columns = zip(*self.rows, strict=True) if self.rows else [()] * len(self.header)
        return tuple(all(isinstance(cell.key, float) for cell in column) and bool(column) for column in columns)


NOTHING = Cell("–", -math.inf)
"""What is missing or does not apply; it sorts first among numbers."""


def cell(value: Any) -> Cell:
    """Any value of a record."""
    if is_missing(value):
        return NOTHING
    if isinstance(value, str) and not value:
        return Cell("–", "")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(f"{value:g}" if isinstance(value, float) else str(value), float(value))
    return Cell(text(value), text(value))


def chance(fails: str) -> Cell:
    """How often a certificate may fail; estimates come last, and first what is neither."""
    return NOTHING if not fails else Cell(fails, math.inf if fails == ESTIMATE else float(fails))
