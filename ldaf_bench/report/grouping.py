"""Which rows belong together: what is held fixed in a comparison, and mean and standard deviation over seeds.

Columns that the report adds to a frame begin with an underscore, which no axis of a method can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ldaf_bench.columns import Column
from ldaf_bench.report.names import MEAN, POSTERIOR, Held, column, in_order, is_missing
from ldaf_bench.results.record import record_columns

Result = TypeVar("Result")
SEEDS = ["seed", "split_seed"]
"""What repeats a setting."""
SETTING = ["suite", "plan", "setting"]
"""What has to agree before seeds are averaged. `setting` knows what is no column, such as the recipe, and two plans may
pay differently for one classifier."""
PRICE = ("delta", "num_events", "num_integrations")
"""What a suite pays; no axis, but suites may differ in it."""


def remembered(function: Callable[..., Result]) -> Callable[..., Result]:
    """The function, which remembers its results for the last frame that it was given.

    A figure, its caption and a table ask for the same thing. Frames are never changed here, so that the same object has
    the same result; it is held, so that no other object can take its place.
    """
    last: list[Any] = [None, {}]

    @functools.wraps(function)
    def asked(results: pd.DataFrame, *more: Any) -> Result:
        if last[0] is not results:
            last[:] = [results, {}]
        key = tuple(map(tuple, more))
        if key not in last[1]:
            last[1][key] = function(results, *more)
        found: Result = last[1][key]
        return found

    return asked


def axes() -> list[Column]:
    """The columns that a suite can sweep within a method."""
    return [found for found in record_columns() if found.axis and found.name != "method"]


def done(results: pd.DataFrame) -> pd.DataFrame:
    """The rows that hold a certificate."""
    return results[results["error"].isna() & results["value"].notna()]


def failed(results: pd.DataFrame) -> pd.DataFrame:
    """The rows of integrations that failed."""
    return results[results["error"].notna()]


def is_mean(rows: pd.DataFrame) -> pd.Series:
    """Which rows are about a mean classifier; all others are about a stochastic one."""
    return rows["classifier"].eq(MEAN)


def fitted(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of fitted posteriors, and of the priors of methods that fitted nothing."""
    rows = rows[~is_mean(rows)]
    posterior = rows["classifier"].eq(POSTERIOR)
    some = posterior.groupby([rows["suite"], rows["plan"], rows["method"]], dropna=False).transform("any")
    return rows[posterior | ~some]


def with_test(results: pd.DataFrame) -> pd.DataFrame:
    """Certificates with `_tested`, the test risk of the classifier that they are about."""
    rows = done(results)
    tested = rows["mean_test_error"].where(is_mean(rows), rows["test_risk"])
    return rows.assign(_tested=tested)[tested.notna()]


def below_test(tested: pd.DataFrame) -> pd.DataFrame:
    """Certified values below the test risk: by chance, or because a certificate is wrong."""
    return tested[tested["certified"].eq(True) & tested["value"].lt(tested["_tested"])]


def at_first_level(rows: pd.DataFrame) -> pd.Series:
    """Which rows are at the first ε of their suite file; rows are in the plan's order."""
    return rows["epsilon"].eq(rows.groupby("suite", dropna=False)["epsilon"].transform("first"))


def applies(values: pd.Series) -> pd.Series:
    """Where a column says something: a mean classifier has no integrator, an unfitted posterior no optimizer."""
    return values.notna() & values.ne("").fillna(True).astype(bool)


def distinct(rows: pd.DataFrame, name: str) -> list[Any]:
    """The values of a column where it says something, in their order."""
    return in_order(name, rows[name][applies(rows[name])].unique().tolist())


def by_registry(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The rows sorted by these columns, each in its own order; what is missing comes first."""
    places = {}
    for name in names:
        place = {value: i for i, value in enumerate(in_order(name, rows[name].dropna().unique().tolist()))}
        places[name] = rows[name].map(place).astype(float)
    return rows.loc[rows.assign(**places).sort_values(list(names), kind="stable", na_position="first").index]


def arms(results: pd.DataFrame) -> list[str]:
    """All arms, by the registries of methods and flows."""
    return by_registry(results.drop_duplicates("_arm"), ["method", "flow"])["_arm"].tolist()


def settings(rows: pd.DataFrame, axis: Column) -> list[Any]:
    """The values of an axis in rows of one method and kind of classifier; None comes first where it is one."""
    values, missing = distinct(rows, axis.name), ~applies(rows[axis.name])
    return [None, *values] if axis.null_means and values and missing.any() else values


def has(rows: pd.DataFrame, axis: Column, value: Any) -> pd.Series:
    """Where an axis has a value, or does not apply."""
    missing = ~applies(rows[axis.name])
    if value is None:
        return missing
    same = rows[axis.name].eq(value).fillna(False).astype(bool)
    return same if axis.null_means else same | missing


def hold(results: pd.DataFrame, vary: Iterable[str]) -> tuple[pd.DataFrame, Held]:
    """The rows that differ in the columns `vary`, in suites, methods and seeds only, and what was held fixed.

    For each data set, plan, method and kind of classifier. The value to hold is found by a rule that never looks at a
    result, because taking the one with the best certificate would be a choice that nobody paid for: see
    `Column.prefer`. Each axis is judged among the rows that are left, so that a combination that was run remains.
    """
    free = {*vary, "dataset"}
    held_axes = [axis for axis in axes() if axis.name not in free]
    kept: list[pd.DataFrame] = []
    values_of: dict[str, list[tuple[tuple[str, ...], list[Any]]]] = {}
    narrowed: set[str] = set()
    # Most axes say the same throughout a group, which whole numbers show at once.
    codes = {axis.name: pd.factorize(results[axis.name])[0] for axis in held_axes}
    results = results.assign(_place=np.arange(len(results)))
    for names, part in results.groupby(["dataset", "classifier", "method", "suite", "plan"], dropna=False, sort=False):
        rows = part
        for axis in held_axes:
            own = codes[axis.name][rows["_place"]]
            if (own == own[0]).all():
                first = rows[axis.name].iat[0]
                values = [] if is_missing(first) or first == "" else [first]
            else:
                values = settings(rows, axis)
            if len(values) > 1:
                values = [_representative(axis, rows, values)]
                rows = rows[has(rows, axis, values[0])]
                narrowed.add(axis.name)
            values_of.setdefault(axis.name, []).append((names, values))
        for name in PRICE:
            values_of.setdefault(name, []).append((names, settings(rows, column(name))))
        kept.append(rows)
    held: Held = {}
    for axis_name, found in values_of.items():
        across: dict[Any, set[Any]] = {}
        for names, values in found:
            across.setdefault(names[:3], set()).update(values)
        if axis_name in narrowed or any(len(values) > 1 for values in across.values()):
            for (_, _, method, suite, _), values in found:
                add_held(held, axis_name, (suite, method), values)
    return (pd.concat(kept) if kept else results).drop(columns="_place"), held


def add_held(held: Held, axis: str, where: tuple[str, str], values: list[Any]) -> None:
    """Add what a suite was held at, unless the axis does not apply to it."""
    if values:
        before = held.setdefault(axis, {}).get(where, [])
        held[axis][where] = list(dict.fromkeys([*before, *values]))


def _representative(axis: Column, rows: pd.DataFrame, values: list[Any]) -> Any:
    """As `Column.prefer` says; of several values with most rows, the middle one."""
    if axis.prefer == "first" and not axis.names():  # in the suite file, whose order the rows have
        return rows[axis.name].dropna().iloc[0]
    if axis.prefer == "largest":
        return values[-1]
    if axis.prefer in ("first", "smallest"):
        return values[0]
    counts = [int(has(rows, axis, value).sum()) for value in values]
    most = [value for value, many in zip(values, counts, strict=True) if many == max(counts)]
    return most[(len(most) - 1) // 2]


def over_seeds(rows: pd.DataFrame, by: Sequence[str], name: str) -> pd.DataFrame:
    """`_mean`, `_sd` and `_seeds` of a column over seeds, for each combination of `by`, in order of appearance.

    Only rows that agree in SETTING are averaged, whatever `by` says, and SETTING is among the columns that are
    returned. A quantity of the network stands in many rows; it counts once per seed. The standard deviation is that of
    a sample, and missing for a single seed.
    """
    mean, sd, counts = summarize(rows[rows[name].notna()], by, [name])
    return mean.rename(columns={name: "_mean"}).assign(_sd=sd[name], _seeds=counts)


def summarize(
    rows: pd.DataFrame, by: Sequence[str], columns: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """Mean and sd of several columns over seeds, as in `over_seeds`, and the number of seeds.

    `by` and SETTING stand beside the means. Two different outcomes of one seed are no sample: they are never averaged,
    and give two lines. In place of a mean of certificates stands the certificate of the mixture over seeds, which is
    valid at one ε + δ′, wherever there is one; `_mixed` says where.
    """
    keys, names = list(dict.fromkeys([*SETTING, *by])), list(columns)
    mixed = ["mixture"] if "value" in names else []
    known = rows[[*keys, *SEEDS, *names, *mixed]].astype(dict.fromkeys([*names, *mixed], float)).drop_duplicates()
    known = known.assign(_outcome=known.groupby([*keys, *SEEDS], dropna=False, sort=False).cumcount())
    groups = known.groupby([*keys, "_outcome"], dropna=False, sort=False)
    mean, sd, counts = groups[names].mean(), groups[names].std(), groups.size()
    for name in mixed:
        # The mean of equal numbers is that number, which floating point does not know.
        mean["value"] = mean["value"].clip(groups["value"].min(), groups["value"].max())
        shared = groups[name].first()
        mean["_mixed"] = counts.gt(1) & shared.notna() & groups[name].nunique(dropna=False).eq(1)
        mean["value"] = shared.where(mean["_mixed"], mean["value"])
    return mean.reset_index().drop(columns="_outcome"), sd.reset_index(drop=True), counts.reset_index(drop=True)


MIXTURE, ONE_BY_ONE, TOGETHER = "mixture", "mean, one by one", "mean, together"


def standing(mean: pd.DataFrame, counts: pd.Series) -> pd.Series:
    """What a certificate over several seeds is; empty for one seed, and for an estimate.

    `mean` and `counts` are as `summarize` gives them. The mean of certificates is no certificate at ε + δ′, unless all
    of them hold together, because ε was divided by at least as many events, and δ′ by as many integrations if it is
    spent.
    """
    events, integrations = (mean[name].fillna(1).astype(int) for name in ("num_events", "num_integrations"))
    paid = events.ge(counts) & (integrations.ge(counts) | ~mean["delta"].gt(0))
    kinds = paid.map({True: TOGETHER, False: ONE_BY_ONE}).mask(mean["_mixed"], MIXTURE)
    return kinds.where(counts.gt(1) & mean["certified"].eq(True), "")


def networks(results: pd.DataFrame) -> pd.DataFrame:
    """One row per network with what is known of it, failed integrations included."""
    named = results[applies(results["network"])]
    # A mean classifier's rows know less of some columns than others, so take the first that knows.
    return named.groupby("network", sort=False).first().reset_index()
