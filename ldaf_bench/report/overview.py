"""Tables at the top of a page of many suites: what its first sentences say where there are few."""

from __future__ import annotations

import pandas as pd

from ldaf_bench.report.cells import NOTHING, Cell, Table, cell, chance
from ldaf_bench.report.comparison import meant, number, standing_for
from ldaf_bench.report.looks import COUNTS, FEW, ONE_LOOK, UNCOVERED, largest, looked_at, ways
from ldaf_bench.report.names import ESTIMATE, WHO, heading, label, percent, probability, text
from ldaf_bench.report.records import Records

TOTAL = "May fail: the probability ε + δ′ that a certificate does not hold. Certificates are rounded up."


def suites(results: pd.DataFrame) -> Table | None:
    """Of many suites, a line for each: what the first sentences of the page say of few."""
    found = standing_for(results)
    if len(found) <= FEW:
        return None
    rows = []
    for one in found:
        who = f"{WHO.get(one.row['classifier'], label(one.row['classifier']))} of {one.arm}"
        tested = NOTHING if one.test_risk is None else Cell(percent(one.test_risk), float(one.test_risk))
        means = (NOTHING, NOTHING, NOTHING) if one.mean is None else _certified(one.mean)
        rows.append((cell(one.suite), *_certified(one.row), tested, *means, cell(one.dataset), cell(who)))
    certificate = [heading(name) for name in ("value", "total", "bound")]
    of_mean = [f"mean: {name}" for name in certificate]
    first, *last = (heading(name) for name in ("suite", "dataset", "classifier"))
    header = (first, *certificate, heading("test_risk"), *of_mean, *last)
    both = pd.DataFrame([row for one in found for row in (one.row, one.mean) if row is not None])
    note = (
        "One certificate for each suite, and that of the mean classifier (mean). Nothing was selected: shown are the "
        f"first arm and bound in the order of the package's lists, at the first ε. {TOTAL} {meant(both)}"
    )
    return Table("Suites", header, tuple(rows), note.strip())


def _certified(row: pd.Series) -> tuple[Cell, Cell, Cell]:
    """The certificate, how often it may fail, and the bound."""
    fails = probability(row["total"]) if row["certified"] else ESTIMATE
    return Cell(number(row), float(row["_mean"])), chance(fails), cell(label(row["bound"]))


def looks(records: Records) -> Table | None:
    """Of many certificate parts, a line for each: how often it was looked at, and what was paid for."""
    parts, _ = looked_at(records)
    if len(parts) <= FEW:
        return None
    rows = []
    for part, some in parts.items():
        counts = largest(some)
        shown = [len(some), *(counts[name] for name in COUNTS)]
        rows.append((cell(text(part, 13)), *map(cell, shown), cell(ways(some).replace(ONE_LOOK, ""))))
    header = ("certificate part", "suites here", "looks", "plans", "trained networks", "priors", "each plan paid for")
    note = (
        f"Counts are the largest of the stores, when the results were written. Each plan paid for one look. {UNCOVERED}"
    )
    return Table("Certificate parts", header, tuple(rows), note)
