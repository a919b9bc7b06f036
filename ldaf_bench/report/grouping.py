"""Which rows belong together: what is held fixed in a comparison, and mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

FIXED_CLASSIFIER = frozenset({"test_set", "chernoff"})
"""Bounds of the mean classifier. (`theory` has them too, but needs torch.)"""
SEEDS = ["seed", "split_seed"]
"""What repeats a configuration."""

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

Held = dict[str, list[Any]]
"""What was held: for each column the value, or one per data set."""


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


def hold(results: pd.DataFrame, vary: Iterable[str]) -> tuple[pd.DataFrame, Held]:
    """The rows that differ in the columns `vary` and in seeds only, and what was held fixed to get them.

    For each data set, and for mean and stochastic classifiers. Which value is held is decided by a rule that never
    looks at an outcome, because taking the one with the best certificate would be a choice that nobody paid for: the
    first of PREFERRED, the largest number of points, the smallest tolerance and ε, else the value with most rows, and
    of equally many the middle one.
    """
    free = {*vary, "dataset"}
    held: Held = {}
    parts = []
    for _, part in results.groupby(["dataset", results["bound"].isin(FIXED_CLASSIFIER)], dropna=False, sort=False):
        rows = part
        for axis in AXES:
            # Each (axis, value) is judged among the rows that are left, so that a combination that was run remains.
            if axis in free or len(values := distinct(rows, axis)) < 2:
                continue
            value = _representative(axis, rows, values)
            rows = rows[~applies(rows[axis]) | rows[axis].eq(value).fillna(False).astype(bool)]
            held.setdefault(axis, [])
            if value not in held[axis]:
                held[axis].append(value)
        parts.append(rows)
    return (pd.concat(parts) if parts else results), held


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

    A quantity of the prior stands in many rows; it counts once per seed. The standard deviation is that of a sample,
    and missing for a single seed.
    """
    keys = list(by)
    known = frame[frame[column].notna()].astype({column: float})
    each = known.groupby([*keys, *SEEDS], dropna=False, sort=False, observed=True)[column].mean().reset_index()
    if not keys:
        each = each.assign(all=0)
    groups = each.groupby(keys or ["all"], dropna=False, sort=False, observed=True)[column]
    return groups.agg(mean="mean", sd="std", num_seeds="count").reset_index()


def networks(results: pd.DataFrame) -> pd.DataFrame:
    """One row per prior network with what is known of it, failed cells included."""
    named = results[applies(results["prior"])]
    # A mean classifier's rows know less of some columns than others, so take the first that knows.
    return named.groupby("prior", sort=False, dropna=True).first().reset_index()


def summarize(frame: pd.DataFrame, by: list[str], columns: list[str]) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Mean and sd of several columns over seeds, with the columns `by` beside the means, and the number of seeds."""
    known = frame.astype(dict.fromkeys(columns, float))
    each = known.groupby([*by, *SEEDS], dropna=False, sort=False)[columns].mean().reset_index()
    groups = each.groupby(by, dropna=False, sort=False)
    mean, sd, counts = groups[columns].mean(), groups[columns].std(), groups.size()
    return mean.reset_index(), sd.reset_index(drop=True), counts.reset_index(drop=True)
