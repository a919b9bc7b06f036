"""What things are called in figures, tables and sentences; what a column is called is stated in `columns`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

import pandas as pd

from ldaf_bench.columns import Column
from ldaf_bench.messages import printable
from ldaf_bench.results.record import CLASSIFIERS, columns_by_name

POSTERIOR, PRIOR, MEAN = CLASSIFIERS
WHO = {POSTERIOR: "fitted posterior", PRIOR: "unfitted prior", MEAN: "mean classifier"}
"""What each classifier is called wherever a certificate of it is printed."""
ESTIMATE = "estimate"
"""What stands in place of a probability where nothing is certified."""
Held = dict[str, dict[tuple[str, str], list[Any]]]
"""What a comparison was held at: the values of each column, by suite and method."""


def column(name: str) -> Column:
    """A column of the record; one that the record does not know is text under its own name."""
    return columns_by_name().get(name) or Column(name, str, "")


def heading(name: str) -> str:
    """Heading of a column, with its unit if that is percent."""
    found = column(name)
    return f"{text(found.title)} (%)" if found.unit == "%" else text(found.title)


def axis_title(name: str) -> str:
    """What stands at an axis of a figure: the heading, or the meaning where the heading is a symbol."""
    found = column(name)
    return label(found.about.rstrip(".") if len(found.title) <= 2 else heading(name), 40)


def in_order(kind: str, values: Iterable[Any]) -> list[Any]:
    """Values of a column, each once: names as their registry lists them and then by alphabet, numbers by size."""
    given, known = set(values), column(kind).names()
    return [*(name for name in known if name in given), *sorted(given - set(known))]


def is_missing(value: Any) -> bool:
    """Whether a record says nothing here."""
    return value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def text(value: Any, longest: int = 400) -> str:
    """Any value of a record on one line, with nothing in it that acts on a terminal or a page."""
    if is_missing(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    line = printable(" ".join(str(value).split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def label(value: Any, longest: int = 22) -> str:
    """A value where there is little room."""
    return text(value, longest) or "none"


def setting(axis: str, value: Any, longest: int = 22) -> str:
    """A value of an axis; a null may be one too."""
    return column(axis).null_means or "none" if is_missing(value) else label(value, longest)


def arm(method: Any, flow: Any) -> str:
    """What is compared: `method · flow` where a flow applies, else the method."""
    return f"{label(method)} · {label(flow)}" if flow else label(method)


MOST_SUITES = 4
"""Suites whose values are named where they differ; of more, only the axes are named, and a table has the values."""


def held_fixed(held: Held) -> str:
    """Sentences about what a comparison was held at, and about where suites differ; empty if nothing was swept."""
    alike, apart = [], []
    for axis, found in held.items():
        suites = {suite: _shown(axis, found, suite) for suite, _ in found}
        if len(set(suites.values())) == 1:
            alike.append(f"{heading(axis)} {next(iter(suites.values()))}")
        else:
            each = ", ".join(f"{shown} in {label(suite, 80)}" for suite, shown in suites.items())
            apart.append(heading(axis) + (f" ({each})" if len(suites) <= MOST_SUITES else ""))
    sentences = [f"Held fixed: {', '.join(alike)}."] if alike else []
    if apart:
        sentences.append(
            f"Differs between suites: {', '.join(apart)}. So no single axis explains how their results differ."
        )
    return " ".join(sentences)


def _shown(axis: str, found: Mapping[tuple[str, str], list[Any]], suite: str) -> str:
    """The values of one suite; with their methods if these differ."""
    methods = {
        method: " or ".join(setting(axis, value) for value in values)
        for (name, method), values in found.items()
        if name == suite
    }
    if len(set(methods.values())) == 1:
        return next(iter(methods.values()))
    return " and ".join(f"{values} ({label(method)})" for method, values in methods.items())


def percent(mean: float, sd: float = math.nan, *, up: bool = False) -> str:
    """A fraction in percent, as mean ± standard deviation if there is one.

    `up`: a certificate, which is rounded up, because the risk may exceed a smaller number. This is done in decimal
    arithmetic, on all digits that are stored: 0.1 is 10.00, and the next larger floating-point number is 10.01.
    """
    if math.isnan(mean):
        return "–"
    shown = f"{100 * mean:.2f}"
    if up:
        shown = str((100 * Decimal(repr(float(mean)))).quantize(Decimal("0.01"), ROUND_CEILING))
    return shown if math.isnan(sd) else f"{shown} ± {100 * sd:.2f}"


def probability(value: float) -> str:
    """A probability, with all digits that somebody wrote; what a sum of floating-point numbers adds is behind them."""
    return f"{value:.10g}"


def may_fail(rows: pd.DataFrame) -> str:
    """A sentence with the totals ε + δ′ of the certificates in these rows, and whether all of them are certificates."""
    bounds = rows[rows["bound"].ne("")] if len(rows) else rows
    if bounds.empty:
        return ""
    totals = [probability(total) for total in sorted(bounds["total"].dropna().unique())]
    if not totals:
        return "Nothing is certified: all bounds are estimates."
    estimates = "" if bounds["certified"].eq(True).all() else " Bounds that are not certified are estimates."
    return f"Certificates may fail with probability {' or '.join(dict.fromkeys(totals))}.{estimates}"


def num_seeds(counts: Iterable[int]) -> str:
    """How many seeds means are over: `3 seeds`, or `2 to 3 seeds` if some are missing."""
    few, many = min(counts := list(counts)), max(counts)
    seeds = "seed" if many == 1 else "seeds"
    return f"{many} {seeds}" if few == many else f"{few} to {many} seeds"


def seconds(value: float) -> str:
    """A time that people can read."""
    if math.isnan(value):
        return "–"
    if value < 60:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 3600 else f"{value / 3600:.1f} h"
