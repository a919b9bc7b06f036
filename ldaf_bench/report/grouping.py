"""Which rows belong together: what is held fixed in a comparison, and mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

FIXED_CLASSIFIER = frozenset({"test_set", "chernoff"})
"""Bounds of the mean classifier. (`theory` has them too, but needs torch.)"""
SEEDS = ["seed", "split_seed"]
"""What repeats a configuration."""
SETTING = ["suite", "plan", "setting"]
"""What has to agree before seeds are averaged: recipes, learning rates and the like are no columns of a record, but
`setting` knows them; and two plans may pay differently for one classifier."""

PREFERRED: dict[str, tuple[str, ...]] = {
    "integrator": ("mc", "forward_mc", "bonferroni", "conditional", "rqmc", "qmc"),
    "objective": ("lambda",),
    "bound": ("kl", "kl_exact", "quad", "lambda", "catoni", "classic"),
    "flow": ("daf", "sflow", "linear"),
    "covariance": ("code", "constant", "paper", "isotropic", "scaled", "dense"),
}
"""Where one value has to be taken of an axis of names: the first of these that was run."""
LARGEST = frozenset({"num_points", "fit_points"})
SMALLEST = frozenset({"tolerance", "epsilon"})
AXES = (
    "certificate_fraction", "backbone", "num_nodes", "horizon", "flow", "tolerance", "covariance", "scale", "objective",
    "fit_points", "optimizer", "integrator", "num_points", "bound", "epsilon", "delta", "num_priors",
)  # fmt: skip
"""Columns that a suite can sweep, in the order in which they are held."""
NULLABLE = frozenset({"tolerance"})
"""Axes whose null is a value: the precision's own tolerance, which is the finest."""

Held = dict[str, dict[str, list[Any]]]
"""What was held: for each column and each suite the value, or one per data set and kind of classifier."""


def done(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells that did not fail."""
    return results[results["error"].isna() & results["value"].notna()]


def failed(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of cells that failed."""
    return results[results["error"].notna()]


def stochastic(results: pd.DataFrame) -> pd.DataFrame:
    """The rows about stochastic classifiers, which have a covariance and a KL divergence."""
    return results[~results["bound"].isin(FIXED_CLASSIFIER)]


def applies(column: pd.Series) -> pd.Series:
    """Where a column says something: a mean classifier has no integrator, an unfitted posterior no points."""
    present = column.notna()
    if pd.api.types.is_numeric_dtype(column):
        return present & column.ne(0).fillna(False).astype(bool)
    return present & column.ne("").fillna(False).astype(bool)


def distinct(frame: pd.DataFrame, name: str) -> list[Any]:
    """The different values of a column where it says something, sorted."""
    column = frame[name]
    return sorted(column[applies(column)].unique().tolist())


def settings(frame: pd.DataFrame, axis: str) -> list[Any]:
    """The different values of an axis, sorted; None comes first where it is one."""
    own = [None] if axis in NULLABLE and frame[axis].isna().any() else []
    return [*own, *distinct(frame, axis)]


def hold(results: pd.DataFrame, vary: Iterable[str]) -> tuple[pd.DataFrame, Held]:
    """The rows that differ in the columns `vary`, in suites and in seeds only, and what was held fixed to get them.

    For each data set, each plan, and for mean and stochastic classifiers. Which value is held is decided by a rule that
    never looks at an outcome, because taking the one with the best certificate would be a choice that nobody paid for:
    the first of PREFERRED, the largest number of points, the smallest tolerance and ε, else the value with most rows,
    and of equally many the middle one. Suites may differ in what they have, so what was held is said for each.
    """
    free = {*vary, "dataset"}
    fixed = results["bound"].isin(FIXED_CLASSIFIER).rename("fixed")
    kept: dict[Any, list[pd.DataFrame]] = {}
    narrowed: set[str] = set()
    for (dataset, kind, *_), part in results.groupby(["dataset", fixed, "suite", "plan"], dropna=False, sort=False):
        rows = part
        for axis in AXES:
            # Each (axis, value) is judged among the rows that are left, so that a combination that was run remains.
            if axis in free or len(values := settings(rows, axis)) < 2:
                continue
            value = _representative(axis, rows, values)
            rows = rows[_is(rows[axis], value, axis)]
            narrowed.add(axis)
        kept.setdefault((dataset, kind), []).append(rows)
    whole = [pd.concat(parts) for parts in kept.values()]
    held: Held = {}
    for axis in [axis for axis in AXES if axis not in free]:
        found = [settings(part, axis) for part in whole]
        if axis in narrowed or any(len(values) > 1 for values in found):
            parts = [(suite, some) for part in whole for suite, some in part.groupby("suite", dropna=False, sort=False)]
            for suite, some in parts:
                merge(held, axis, str(suite), settings(some, axis))
    return (pd.concat(whole) if whole else results), held


def merge(held: Held, axis: str, suite: str, values: list[Any]) -> None:
    """Add what a suite was held at, unless the axis does not apply to it."""
    if values:
        before = held.setdefault(axis, {}).get(suite, [])
        held[axis][suite] = list(dict.fromkeys([*before, *values]))


def _is(column: pd.Series, value: Any, axis: str) -> pd.Series:
    """Where an axis has a value, or does not apply."""
    if value is None:
        return column.isna()
    same = column.eq(value).fillna(False).astype(bool)
    return same if axis in NULLABLE else same | ~applies(column)


def _representative(axis: str, rows: pd.DataFrame, values: list[Any]) -> Any:
    if axis in LARGEST:
        return values[-1]
    if axis in SMALLEST:
        return values[0]
    known = [value for value in PREFERRED.get(axis, ()) if value in values]
    if known:
        return known[0]
    counts = rows[axis].value_counts()
    most = [value for value in values if counts[value] == counts.max()]
    return most[(len(most) - 1) // 2]


def over_seeds(frame: pd.DataFrame, by: Sequence[str], column: str) -> pd.DataFrame:
    """`mean`, `sd` and `num_seeds` of a column over seeds, for each combination of `by`, in order of appearance.

    Only rows that agree in SETTING are averaged, whatever `by` says, and SETTING is among the columns that are
    returned. A quantity of the prior stands in many rows; it counts once per seed. The standard deviation is that of a
    sample, and missing for a single seed.
    """
    mean, sd, counts = summarize(frame[frame[column].notna()], by, [column])
    return mean.rename(columns={column: "mean"}).assign(sd=sd[column], num_seeds=counts)


def summarize(
    frame: pd.DataFrame, by: Sequence[str], columns: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Mean and sd of several columns over seeds, as in `over_seeds`, and the number of seeds.

    `by` and SETTING stand beside the means. Two different outcomes of one seed are no sample: they are never averaged,
    and give two lines.
    """
    keys, names = list(dict.fromkeys([*SETTING, *by])), list(columns)
    known = frame.astype(dict.fromkeys(names, float)).drop_duplicates([*keys, *SEEDS, *names])
    known = known.assign(outcome=known.groupby([*keys, *SEEDS], dropna=False, sort=False, observed=True).cumcount())
    groups = known.groupby([*keys, "outcome"], dropna=False, sort=False, observed=True)
    mean, sd, counts = groups[names].mean(), groups[names].std(), groups.size()
    return mean.reset_index().drop(columns="outcome"), sd.reset_index(drop=True), counts.reset_index(drop=True)


def networks(results: pd.DataFrame) -> pd.DataFrame:
    """One row per prior network with what is known of it, failed cells included."""
    named = results[applies(results["prior"])]
    # A mean classifier's rows know less of some columns than others, so take the first that knows.
    return named.groupby("prior", sort=False, dropna=True).first().reset_index()
