"""TABLES: what is also in the figures as numbers, with mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ldaf_bench.report.comparison import comparison as compare
from ldaf_bench.report.comparison import ordered
from ldaf_bench.report.grouping import FIXED_CLASSIFIER, done, failed, networks, summarize
from ldaf_bench.report.names import heading, held_fixed, label, percent, seconds, setting, text
from ldaf_bench.report.records import Records, searches

KEYS = [
    "dataset", "suite", "method", "backbone", "flow", "num_nodes", "horizon", "tolerance", "certificate_fraction",
    "num_certificate", "covariance", "scale", "objective", "fit_points", "optimizer", "integrator", "num_points",
    "bound", "epsilon", "delta", "num_priors", "num_integrations", "certified",
]  # fmt: skip
"""Two certificates of one setting that agree in these differ in seeds only."""
ALWAYS = frozenset({"bound", "epsilon", "certified"})
"""Columns that stay even if they say the same in every row: without them a value is not a certificate."""

FRONT = (
    "dataset", "suite", "method", "flow", "covariance", "scale", "integrator", "bound", "epsilon", "value", "certified",
    "test_risk", "risk", "kl", "seeds", "num_priors", "delta", "num_integrations",
)  # fmt: skip
"""What is to be seen without scrolling."""


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


def cell(value: Any) -> Cell:
    """Of any value of a record; what is missing or does not apply is a dash, and sorts first among numbers."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return Cell("–", -math.inf)
    if isinstance(value, str) and not value:
        return Cell("–", "")
    if isinstance(value, bool):
        return Cell(text(value), text(value))
    if isinstance(value, int | float):
        return Cell(f"{value:g}" if isinstance(value, float) else str(value), float(value))
    return Cell(text(value), text(value))


def _plain(values: pd.Series) -> list[Any]:
    """As Python's own types."""
    return values.astype(object).where(values.notna(), None).tolist()


def _hoist(columns: dict[str, list[Cell]]) -> str:
    """Take out the columns that say the same in every row, or nothing; a sentence says it once instead."""
    said = []
    for name in [name for name in columns if name not in ALWAYS]:
        different = {entry.text for entry in columns[name]} - {"–"}
        if len(different) < 2:
            said += [f"{heading(name)} {value}" for value in different]
            del columns[name]
    return f"In every row that it applies to: {', '.join(said)}." if said else ""


def certificates(results: pd.DataFrame, searches: Sequence[str] = ()) -> Table | None:
    """Every configuration and bound, with what was paid for it. `searches` are the suites that searched."""
    rows = done(results)
    if rows.empty:
        return None
    fixed = rows["bound"].isin(FIXED_CLASSIFIER)
    rows = rows.assign(
        test_risk=rows["mean_test_error"].where(fixed, rows["test_risk"]),
        risk=rows["mean_error"].where(fixed, rows["risk"]),
        delta=rows["delta"].where(~fixed),  # nothing is integrated for a mean classifier
    )
    mean, sd, counts = summarize(rows, KEYS, ["value", "test_risk", "risk", "kl"])
    place = {bound: index for index, bound in enumerate(ordered(mean["bound"].unique().tolist()))}
    order = mean.assign(bound=mean["bound"].map(place)).sort_values(KEYS, kind="stable").index
    mean, sd, counts = mean.loc[order], sd.loc[order], counts.loc[order]
    columns = {name: [cell(value) for value in _plain(mean[name])] for name in KEYS}
    columns["certified"] = [Cell("yes", "yes") if value is True else Cell("no", "no") for value in mean["certified"]]
    own = setting("tolerance", None)
    columns["tolerance"] = [c if c.text != "–" else Cell(own, c.key) for c in columns["tolerance"]]
    for name, what in (("fit_points", 0), ("num_points", 0)):
        columns[name] = [c if c.key != what else Cell("–", -math.inf) for c in columns[name]]
    if counts.gt(1).any():
        columns["seeds"] = [Cell(str(n), float(n)) for n in counts]
    note = _hoist(columns)
    for name in ("value", "test_risk", "risk"):
        columns[name] = _spread(mean[name], sd[name])
    columns["kl"] = [Cell("–" if math.isnan(k) else f"{k:.2f}", -math.inf if math.isnan(k) else k) for k in mean["kl"]]
    columns = {name: columns[name] for name in [*(n for n in FRONT if n in columns), *columns]}
    header = [f"{heading(n)} (%)" if n in ("value", "test_risk", "risk") else heading(n) for n in columns]
    return Table("Certificates", tuple(header), _rows(columns), f"{note} {promise(rows, counts, searches)}".strip())


_PAID = (
    "the best of one suite at one ε may be picked, because that was paid for: each bound was evaluated at ε/K and each "
    "integration run at δ′/J"
)
SELECTED = {
    "none": "nothing was selected, and nothing may be: each bound spends its whole ε and each integration its whole δ′",
    "all": _PAID,
    "some": f"where K or J is above 1, {_PAID}; in all other rows nothing was selected, and nothing may be",
}
"""What may be done with a table of certificates of which none, all or some paid for a choice."""


def _seeds(counts: pd.Series) -> str:
    """What stands in a row, by the number of seeds of each."""
    return "mean ± standard deviation over seeds" if counts.gt(1).any() else "one seed"


def promise(rows: pd.DataFrame, counts: pd.Series, searches: Sequence[str] = ()) -> str:
    """What stands below certificates: whether one may be picked, and what they rest on."""
    paid = rows["num_priors"].gt(1).fillna(False) | rows["num_integrations"].gt(1).fillna(False)
    chosen = SELECTED["all" if paid.all() else "some" if paid.any() else "none"]
    parts = [f"{_seeds(counts).capitalize()}; {chosen}."]
    if searches:
        names = ", ".join(label(name, 80) for name in searches)
        parts.append(
            f"A search chose what was run ({names}): the rows and seeds shown are those that the searcher came by, and "
            "the whole grid was paid for."
        )
    parts.append("Where certified says no, the value rests on an estimate of the risk and is no guarantee.")
    if rows["bound"].isin(FIXED_CLASSIFIER).any():
        parts.append("Rows of test_set and chernoff are about the mean classifier, and a choice apart.")
    return " ".join(parts)


def _spread(mean: pd.Series, sd: pd.Series) -> list[Cell]:
    pairs = zip(mean.astype(float), sd.astype(float), strict=True)
    return [Cell(percent(m, s), -math.inf if math.isnan(m) else float(m)) for m, s in pairs]


def _rows(columns: dict[str, list[Cell]]) -> tuple[tuple[Cell, ...], ...]:
    return tuple(zip(*columns.values(), strict=True))


def comparison(results: pd.DataFrame) -> Table | None:
    """The paper's Table 1: what was measured, what was certified, and the held-out bounds, a column per flow."""
    frame, held = compare(results)
    if frame.empty:
        return None
    # Where a data set has several suites, the arms have their names already.
    single = frame.groupby("dataset")["suite"].transform("nunique").eq(1)
    suites = frame["suite"].where(single & (frame["suite"].nunique() > 1), "")
    arms = frame.assign(suite=suites).drop_duplicates(["dataset", "arm"])[["dataset", "arm", "suite"]]
    columns = {
        (dataset, arm): f"{label(dataset)}, {f'{label(suite, 80)} · ' if suite else ''}{arm}"
        for dataset, arm, suite in arms.itertuples(index=False, name=None)
    }
    rows: dict[tuple[str, float], dict[tuple[str, str], Cell]] = {}
    for row in frame.itertuples():
        mark = "" if row.certified or not row.bound else " †"
        level = -1.0 if math.isnan(row.epsilon) else row.epsilon
        found = rows.setdefault((row.what, level), {})
        # Certified and uncertified rows of one bound can only both be here if a guarantee failed; show both.
        shown = percent(row.mean, row.sd) + mark
        before = found.get((row.dataset, row.arm))
        found[row.dataset, row.arm] = Cell(f"{before.text}; {shown}" if before else shown, float(row.mean))
    lines = []
    for (what, level), found in rows.items():
        name = what if level < 0 else f"{what}, ε = {level:g}"
        lines.append((Cell(name, name), *(found.get(pair, Cell("–", -math.inf)) for pair in columns)))
    bounds = frame[frame["bound"].ne("")]
    paid = "; ".join(f"{what}: {' or '.join(group['paid'].unique())}" for what, group in _by_kind(bounds))
    estimates = "† Not certified: rests on an estimate of the risk." if (bounds["certified"].ne(True)).any() else ""
    note = f"Percent, {_seeds(frame['num_seeds'])}. {held_fixed(held)} Paid: {paid}. {estimates}"
    return Table("Comparison", ("", *columns.values()), tuple(lines), " ".join(note.split()))


def _by_kind(bounds: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    fixed = bounds["bound"].isin(FIXED_CLASSIFIER)
    kinds = (("certificates", bounds[~fixed]), ("held-out bounds", bounds[fixed]))
    return [(what, group) for what, group in kinds if not group.empty]


def priors(results: pd.DataFrame) -> Table | None:
    """One row per network."""
    known = networks(results)
    if known.empty:
        return None
    names = [
        "prior", "dataset", "method", "backbone", "flow", "num_nodes", "horizon", "seed", "split_seed",
        "certificate_fraction", "num_prior", "num_certificate", "num_test", "device", "workers",
    ]  # fmt: skip
    columns = {name: [cell(value) for value in _plain(known[name])] for name in names}
    prior = columns.pop("prior")
    columns = {"prior": prior, **columns}
    note = _hoist(columns)
    columns["mean_test_error"] = _spread(known["mean_test_error"], known["mean_test_error"] * math.nan)
    for stage in ("train_seconds", "push_seconds"):
        columns[stage] = [Cell(seconds(t), -math.inf if math.isnan(t) else t) for t in known[stage].astype(float)]
    header = ["mean classifier, test (%)" if n == "mean_test_error" else heading(n) for n in columns]
    return Table("Priors", tuple(header), _rows(columns), note)


def failures(results: pd.DataFrame) -> Table | None:
    """One row per cell that failed, and why."""
    rows = failed(results)
    if rows.empty:
        return None
    names = ["suite", "cell", "prior", "dataset", "flow", "covariance", "scale", "integrator", "seed", "error"]
    columns = {name: [cell(value) for value in _plain(rows[name])] for name in names}
    note = f"{len(rows)} cells failed. Run the suite again: what is done is not made twice."
    return Table("Failed cells", tuple(heading(name) for name in names), _rows(columns), note)


TABLES: dict[str, Callable[[Records], Table | None]] = {
    "comparison": lambda r: comparison(r.results),
    "certificates": lambda r: certificates(r.results, searches(r.plans)),
    "priors": lambda r: priors(r.results),
    "failures": lambda r: failures(r.results),
}
"""In the order of the page; a table without rows is left out."""


def provenance(results: pd.DataFrame) -> Table | None:
    """What made the records: versions, commits, devices, and when."""
    if results.empty:
        return None
    names = ["suite", "ldaf_bench", "torch", "ray", "python", "commit", "device", "workers"]
    groups = results.groupby(names, dropna=False, sort=False)
    found = groups.agg(cells=("cell", "nunique"), first=("finished", "min"), last=("finished", "max")).reset_index()
    columns: dict[str, list[Cell]] = {
        name: [cell(value) for value in _plain(found[name])] for name in [*names, "cells"]
    }
    for name in ("first", "last"):
        columns[name] = [Cell(t, t) for t in _times(found[name])]
    return Table("Provenance", tuple(columns), _rows(columns))


def _times(times: pd.Series) -> Sequence[str]:
    return ["–" if pd.isna(time) else time.strftime("%Y-%m-%d %H:%M UTC") for time in times]
