"""TABLES: what is also in the figures as numbers, with mean ± standard deviation over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pandas as pd

from ldaf_bench.report.cells import NOTHING, Cell, Table, cell, chance
from ldaf_bench.report.comparison import comparison as compare
from ldaf_bench.report.comparison import line, meant, number
from ldaf_bench.report.grouping import (
    MIXTURE,
    ONE_BY_ONE,
    PRICE,
    SETTING,
    TOGETHER,
    applies,
    axes,
    by_registry,
    distinct,
    done,
    failed,
    is_mean,
    networks,
    standing,
    summarize,
)
from ldaf_bench.report.names import (
    ESTIMATE,
    MEAN,
    WHO,
    column,
    heading,
    held_fixed,
    is_missing,
    label,
    percent,
    probability,
    seconds,
)
from ldaf_bench.report.overview import TOTAL, looks, suites
from ldaf_bench.report.records import Records, published, searches
from ldaf_bench.results.record import STAGES, columns_by_name

ALWAYS = frozenset({"classifier", "bound", "total", "certified", "error"})
"""Columns that stay even if they say the same in every row: without them a value is not a certificate."""

FRONT = ("dataset", "suite", "method", "flow", "classifier", "bound")
"""What stands before the certificate itself; all other axes follow behind how often it may fail."""

Columns = dict[str, list[Cell]]
"""A table by columns, under the names that the record has for them."""


def _cells(rows: pd.DataFrame, names: Sequence[str]) -> Columns:
    """These columns of a frame."""
    found = {}
    for name in names:
        values = rows[name].astype(object).where(rows[name].notna(), None)
        found[name] = [cell(value) for value in values]
    return found


def _numbers(values: pd.Series, show: Callable[[float], str]) -> list[Cell]:
    """Numbers that are shown in a way of their own."""
    return [NOTHING if math.isnan(value) else Cell(show(value), float(value)) for value in values.astype(float)]


def _risks(mean: pd.Series, sd: pd.Series, *, up: bool = False) -> list[Cell]:
    """Risks in percent, certificates rounded up."""
    return [
        NOTHING if math.isnan(value) else Cell(percent(value, deviation, up=up), float(value))
        for value, deviation in zip(mean.astype(float), sd.astype(float), strict=True)
    ]


def _hoist(columns: Columns) -> str:
    """Take out the columns that say the same in every row, or nothing; a sentence says it once instead."""
    said = []
    for name in [name for name in columns if name not in ALWAYS]:
        different = {entry.text for entry in columns[name]} - {"–"}
        if len(different) < 2:
            said += [f"{heading(name)} {value}" for value in different]
            del columns[name]
    return f"The same wherever it applies: {', '.join(said)}." if said else ""


def _table(title: str, columns: Columns, note: str = "") -> Table:
    return Table(title, tuple(map(heading, columns)), tuple(zip(*columns.values(), strict=True)), note)


def keys(rows: pd.DataFrame) -> list[str]:
    """What a certificate is identified by, besides its setting: every axis, and what was paid.

    A column that the record does not know belongs to a method that is unknown here. It is taken for one of its axes if
    it never differs within a setting.
    """
    known = columns_by_name()
    others = [name for name in rows.columns if name not in known and not name.startswith("_")]
    settings = rows.groupby(SETTING, dropna=False)
    others = [name for name in others if settings[name].nunique(dropna=False).le(1).all()]
    own = [axis.name for axis in axes() if axis.name not in FRONT]
    return [*FRONT, *own, *others, "num_certificate"]


def certificates(results: pd.DataFrame, searches: Sequence[str] = ()) -> Table | None:
    """Every setting and bound, with what was paid for it. `searches` are the suites that searched."""
    rows = done(results)
    if rows.empty:
        return None
    about_mean = is_mean(rows)
    rows = rows.assign(
        certified=rows["certified"].eq(True),
        test_risk=rows["mean_test_error"].where(about_mean, rows["test_risk"]),
        risk=rows["mean_error"].where(about_mean, rows["risk"]),
    )
    names = keys(rows)
    outcomes = ["value", "test_risk", "risk", "kl_divergence"]
    mean, sd, counts = summarize(
        rows.assign(total=rows["total"].round(12)), [*names, *PRICE, "total", "certified"], outcomes
    )
    mean = by_registry(mean, [name for name in names if name not in ("bound", "epsilon")] + ["bound"])
    # Equal totals side by side, and estimates behind them.
    mean = by_registry(mean.sort_values(["total", "epsilon"], kind="stable", na_position="last"), ["dataset"])
    sd, counts = sd.loc[mean.index], counts.loc[mean.index]
    settings = _cells(mean, [*names, *PRICE])
    settings["classifier"] = [Cell(WHO.get(c.text, c.text), WHO.get(c.text, c.text)) for c in settings["classifier"]]
    kinds = standing(mean, counts)
    for name in [name for name in names if column(name).null_means]:
        # A null is a value where other rows of the method and classifier have one.
        groups = applies(mean[name]).groupby([mean["method"], mean["classifier"]], dropna=False).transform("any")
        own = Cell(column(name).null_means, -math.inf)
        settings[name] = [own if c == NOTHING and some else c for c, some in zip(settings[name], groups, strict=True)]
    if counts.gt(1).any():
        settings["_seeds"] = [Cell(str(n), float(n)) for n in counts]
        settings["_over_seeds"] = [cell(kind) for kind in kinds]
    note = _hoist(settings)
    columns = {name: settings.pop(name) for name in FRONT if name in settings}
    columns["value"] = _risks(mean["value"], sd["value"], up=True)
    pairs = zip(mean["total"], mean["certified"], strict=True)
    columns["total"] = [chance(probability(total) if certified else ESTIMATE) for total, certified in pairs]
    columns |= _cells(mean, ["certified"])
    for name in ("test_risk", "risk"):
        columns[name] = _risks(mean[name], sd[name])
    columns["kl_divergence"] = _numbers(mean["kl_divergence"], lambda value: f"{value:.2f}")
    return _table(
        "Certificates", columns | settings, f"{note} {promise(rows, kinds, bool(counts.gt(1).any()), searches)}".strip()
    )


_PAID = "The best one of a suite at one ε may be picked: each bound is evaluated at ε/K and each integration at δ′/J"
SELECTED = {
    "none": "All results are reported and none is selected: each certificate uses the full ε and δ′",
    "all": _PAID,
    "some": f"Where K or J is above 1: {_PAID}. All other rows are reported and none of them is selected",
}
"""What may be done with a table of certificates of which none, all or some paid for a choice."""
OVER_SEEDS = {
    MIXTURE: "a mixture's certificate is about the classifier that draws a seed first",
    ONE_BY_ONE: "a mean, one by one, is the mean of certificates that hold one by one",
    TOGETHER: "a mean, together, is the mean of certificates that hold together",
}
"""What the column `over seeds` says."""


def _seeds(several: bool) -> str:
    """What a row shows, by whether there are several seeds."""
    return "± is the standard deviation over seeds" if several else "One seed"


def promise(rows: pd.DataFrame, kinds: pd.Series, several: bool, searches: Sequence[str] = ()) -> str:
    """What stands below certificates: what they are, whether one may be picked, and what they rest on."""
    paid = rows["num_events"].gt(1).fillna(False) | rows["num_integrations"].gt(1).fillna(False)
    chosen = SELECTED["all" if paid.all() else "some" if paid.any() else "none"]
    said = [sentence for kind, sentence in OVER_SEEDS.items() if kinds.eq(kind).any()]
    parts = [TOTAL, f"{'Over seeds: ' if several else ''}{'; '.join([*said, _seeds(several)])}."]
    parts.append(f"{chosen}.")
    if searches:
        names = ", ".join(label(name, 80) for name in searches)
        parts.append(f"A search chose which posteriors were run ({names}). The budget covers the whole grid.")
    if not rows["certified"].all():
        parts.append("An estimate rests on an estimate of the risk and is no guarantee.")
    if is_mean(rows).any() and not is_mean(rows).all():
        parts.append(f"Choosing among certificates of a {WHO[MEAN]} is separate.")
    return " ".join(parts)


def comparison(results: pd.DataFrame) -> Table | None:
    """The paper's Table 1: what was measured, what was certified, and the held-out bounds, a column per arm."""
    frame, held = compare(results)
    if frame.empty:
        return None
    # Where a data set has several suites, the arms have their names already.
    single = frame.groupby("dataset")["suite"].transform("nunique").eq(1)
    suites = frame["suite"].where(single & (frame["suite"].nunique() > 1), "")
    arms = frame.assign(suite=suites).drop_duplicates(["dataset", "_arm"])[["dataset", "_arm", "suite"]]
    header = {
        (dataset, arm): f"{label(dataset)}, {f'{label(suite, 80)} · ' if suite else ''}{arm}"
        for dataset, arm, suite in arms.itertuples(index=False, name=None)
    }
    lines: dict[tuple[str, str], dict[tuple[str, str], Cell]] = {}
    for row in frame.to_dict("records"):
        cells, place, shown = lines.setdefault(line(row), {}), (row["dataset"], row["_arm"]), number(row)
        # Two values of one bound can only be here if a guarantee failed or settings differ in no column; show both.
        cells[place] = Cell(f"{cells[place].text}; {shown}" if place in cells else shown, float(row["_mean"]))
    rows = [
        (Cell(name, name), chance(fails), *(cells.get(place, NOTHING) for place in header))
        for (name, fails), cells in lines.items()
    ]
    several = frame["_seeds"].gt(1).any()
    parts = [f"Percent. {_seeds(several)}.", TOTAL, meant(frame), held_fixed(held), _paid(frame[frame["bound"].ne("")])]
    return Table("Comparison", ("", heading("total"), *header.values()), tuple(rows), " ".join(filter(None, parts)))


def _paid(bounds: pd.DataFrame) -> str:
    """What the bounds of a comparison cost, and whether all of them are certified."""
    parts = []
    for what, group in (("stochastic", bounds[~is_mean(bounds)]), ("mean", bounds[is_mean(bounds)])):
        prices = group[["num_events", "delta"]].drop_duplicates().itertuples(index=False, name=None)
        shown = [f"K = {label(k)}{'' if math.isnan(delta) else f', δ′ = {delta:g}'}" for k, delta in prices]
        parts += [f"{what} classifiers: {' or '.join(shown)}"] if shown else []
    estimates = (
        "" if bounds["certified"].all() else " An estimate rests on an estimate of the risk: it is not certified."
    )
    return f"Paid: {'; '.join(parts)}.{estimates}"


def network_table(results: pd.DataFrame) -> Table | None:
    """One row per network, with the axes that tell networks apart."""
    known = networks(results)
    if known.empty:
        return None
    groups = results[applies(results["network"])].groupby("network")
    own = [axis.name for axis in axes() if len(distinct(known, axis.name)) > 1]
    # What all rows of a network agree in, its mean classifier's too: the others are axes of posteriors.
    own = [name for name in own if groups[name].nunique(dropna=False).le(1).all()]
    counts = ["num_prior", "num_certificate", "num_test"]
    columns = _cells(known, ["network", "dataset", "method", *own, "seed", "split_seed", *counts, "device", "workers"])
    note = _hoist(columns)
    columns["mean_test_error"] = _risks(known["mean_test_error"], known["mean_test_error"] * math.nan)
    for stage in ("train_seconds", "digest_seconds"):
        columns[stage] = _numbers(known[stage], seconds)
    return _table("Networks", columns, note)


WAY = ("dataset", "suite", "method", "flow", "classifier", "objective", "integrator", "num_points")
"""What decides how long it takes to get a certificate."""


def times(results: pd.DataFrame) -> Table | None:
    """Seconds of each stage on the way from raw data to a certificate: means over seeds and whatever else was swept."""
    rows = done(results).assign(charge=lambda row: row["risk_upper"] - row["risk"])
    # One row for each integration (not all bounds take an upper end), and one for each mean classifier.
    rows = rows.sort_values("charge", kind="stable").drop_duplicates(["suite", "plan", "integration"])
    if not rows[STAGES].notna().any(axis=None):
        return None
    groups = rows.groupby(list(WAY), dropna=False, sort=False)[[*STAGES, "charge"]]
    mean = by_registry(groups.mean().reset_index(), list(WAY))
    columns = _cells(mean.assign(classifier=mean["classifier"].replace(WHO)), list(WAY))
    note = _hoist(columns)
    total = mean[STAGES].sum(axis=1)
    shown = {stage: _numbers(mean[stage], seconds) for stage in STAGES}
    shown["all of it"] = _numbers(total, seconds)
    shown["train, share (%)"] = _numbers(100 * mean["train_seconds"] / total, lambda share: f"{share:.1f}")
    shown["integration adds (%)"] = _numbers(100 * mean["charge"], lambda points: f"{points:.3f}")
    said = "From raw data to one certificate, if nothing is there. A network and its digest serve many certificates."
    said += " What integration adds: the guaranteed upper end of the risk, less the risk."
    return _table("Seconds to a certificate", columns | shown, f"{said} {note}".strip())


def failures(results: pd.DataFrame) -> Table | None:
    """One row per integration that failed, and why."""
    rows = failed(results)
    if rows.empty:
        return None
    own = [axis.name for axis in axes()]
    columns = _cells(
        rows, ["integration", "network", "suite", "dataset", "method", "classifier", *own, "seed", "error"]
    )
    note = f"{len(rows)} failed. Run the same command again to resume; what is done is not made twice."
    return _table("Failed integrations", columns, f"{note} {_hoist(columns)}".strip())


def reference(records: Records) -> Table | None:
    """What others published, as the suites name it."""
    frame = published(records.plans)
    if frame.empty:
        return None
    columns = _cells(frame, ["dataset", "name"])
    for name, shown in (("certificate", "value"), ("test_risk", "test_risk")):
        columns[shown] = [NOTHING if is_missing(value) else Cell(percent(value), float(value)) for value in frame[name]]
    columns |= _cells(frame, ["epsilon", "source"])
    columns["may fail"] = columns.pop("epsilon")
    columns["source"] = columns.pop("source")
    note = "Percent. Other networks, other splits, and mostly other bounds: to be compared by their order of magnitude."
    return _table("Published elsewhere", columns, note)


TABLES: dict[str, Callable[[Records], Table | None]] = {
    "suites": lambda r: suites(r.results),
    "looks": looks,
    "comparison": lambda r: comparison(r.results),
    "reference": reference,
    "certificates": lambda r: certificates(r.results, searches(r.plans)),
    "networks": lambda r: network_table(r.results),
    "times": lambda r: times(r.results),
    "failures": lambda r: failures(r.results),
}
"""In the order of the page; a table without rows is left out."""


def provenance(results: pd.DataFrame) -> Table | None:
    """What made the records: versions, commits, devices, and when."""
    if results.empty:
        return None
    names = ["suite", "ldaf_bench", "torch", "ray", "python", "commit", "device", "workers"]
    groups = results.groupby(names, dropna=False, sort=False)
    found = groups.agg(integrations=("integration", "nunique"), first=("finished", "min"), last=("finished", "max"))
    found = found.reset_index()
    for name in ("first", "last"):
        found[name] = ["" if pd.isna(time) else time.strftime("%Y-%m-%d %H:%M UTC") for time in found[name]]
    columns = _cells(found, [*names, "integrations", "first", "last"])
    return Table("Provenance", tuple(columns), tuple(zip(*columns.values(), strict=True)))
