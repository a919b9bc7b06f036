"""The paper's Table 1 as a frame, for the figure and the table alike; and a summary that fits on a terminal."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ldaf_bench.report.grouping import FIXED_CLASSIFIER, SETTING, Held, applies, distinct, done, hold, over_seeds
from ldaf_bench.report.names import arm, held_fixed, label
from ldaf_bench.report.records import named_apart

MEASURED = {
    "mean_test_error": "mean classifier, test error",
    "prior_test_risk": "prior (Gibbs), test risk",
    "test_risk": "posterior (Gibbs), test risk",
}
"""Quantities that are measured on test data, and promise nothing."""
ORDER = ("kl_exact", "kl", "quad", "lambda", "catoni", "classic")
"""Bounds as they are listed: by proved order as far as there is one."""
VARY = ("dataset", "method", "backbone", "flow", "bound", "epsilon")


def comparison(results: pd.DataFrame) -> tuple[pd.DataFrame, Held]:
    """The table, and what was held fixed.

    Columns: suite, dataset, arm, flow, what, bound, epsilon, mean, sd, num_seeds, certified and paid. An arm has its
    suite's name where a data set has several, because suites are never averaged. `epsilon` is missing for what was
    measured. The rows come in the order in which they are to be read.
    """
    rows, held = hold(done(results), VARY)
    several = rows[applies(rows["backbone"])]["backbone"].nunique() > 1
    rows = rows.assign(arm=[arm(row, several) for row in rows.itertuples()], flow=rows["flow"].fillna(""))
    shared = rows.groupby("dataset", dropna=False)["suite"].transform("nunique").gt(1)
    named = zip(rows["suite"], rows["arm"], shared, strict=True)
    rows = rows.assign(arm=[f"{label(suite, 80)} · {name}" if several else name for suite, name, several in named])
    identity = ["dataset", "arm", "flow"]
    parts = [
        over_seeds(_about(rows, column), identity, column).assign(
            what=what, bound="", epsilon=float("nan"), certified=False, paid=""
        )
        for column, what in MEASURED.items()
    ]
    for bound in ordered(rows["bound"].unique().tolist()):
        some = rows[rows["bound"].eq(bound)].copy()
        some["paid"] = [f"K = {label(k)}" for k in some["num_priors"]]
        if bound not in FIXED_CLASSIFIER:  # nothing is integrated for a mean classifier
            some["paid"] += [f", δ′ = {label(d)}" for d in some["delta"]]
        found = over_seeds(some, [*identity, "epsilon", "certified", "paid"], "value")
        parts.append(found.assign(what=describe(bound), bound=bound))
    parts = [part for part in parts if not part.empty]
    if not parts:
        return pd.DataFrame(), held
    whole = pd.concat(parts, ignore_index=True)
    position = {column: {value: i for i, value in enumerate(whole[column].unique())} for column in ("what", "arm")}
    order = whole.assign(what=whole["what"].map(position["what"]), arm=whole["arm"].map(position["arm"]))
    order = order.sort_values(["what", "arm", "epsilon"], kind="stable").index
    return whole.loc[order].reset_index(drop=True), held


def _about(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """The rows that a measured quantity is taken from, one setting for each arm.

    The mean classifier's error stands in the rows of its posteriors too; its own are taken where there are any.
    """
    if column == "test_risk":
        return rows[rows["objective"].ne("prior")]
    fixed = rows["bound"].isin(FIXED_CLASSIFIER)
    own = fixed.groupby([rows["dataset"], rows["suite"], rows["arm"]], dropna=False).transform("any")
    return rows[fixed | ~own] if column == "mean_test_error" else rows


def ordered(bounds: list[str]) -> list[str]:
    """Bounds of stochastic classifiers first, by ORDER; what is not known by name comes between."""
    known = [*ORDER, *sorted(set(bounds) - {*ORDER, *FIXED_CLASSIFIER}), "test_set", "chernoff"]
    return [bound for bound in known if bound in bounds]


def describe(bound: str) -> str:
    """How a bound is called in a list with others."""
    if bound == "test_set":
        return "held-out: test_set"
    return f"held-out: {label(bound)}" if bound in FIXED_CLASSIFIER else f"certificate: {label(bound)}"


LINES = (
    "suite", "dataset", "certificate_fraction", "backbone", "classifier", "num_nodes", "horizon", "covariance", "scale",
)  # fmt: skip
"""What makes a line of the summary; `classifier` is the flow, or the method of a network without one."""
MEAN_CLASSIFIER = "mean classifier"


def summary(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The certificates in short, a line per classifier and a column per bound, and a sentence about what they are.

    The columns: `classifier`, `covariance` and those of LINES that differ; `test`, the risk of the line's classifier on
    the test part; and each bound's certificate under the bound's name, missing where it does not apply. Each number is
    a fraction and the mean over seeds of one setting, at the first ε of its suite; whatever makes no line is held as in
    every comparison, and nothing else is averaged. Only certified values, unless there are none, which the sentence
    says. `frame` may come from `read` or straight from a results.parquet; without a certificate both are empty.
    """
    rows = done(frame)
    certified = rows["certified"].eq(True)
    rows = rows[certified] if certified.any() else rows
    if rows.empty:
        return pd.DataFrame(), ""
    rows = named_apart(rows.assign(**{name: rows[name].fillna("") for name in SETTING}))
    # Rows are in the plan's order, so this is the first of the suite file.
    rows = rows[rows["epsilon"].eq(rows.groupby("suite")["epsilon"].transform("first"))]
    rows, held = hold(rows, (*LINES, "method", "flow", "bound", "epsilon"))
    fixed = rows["bound"].isin(FIXED_CLASSIFIER)
    rows = rows.assign(
        classifier=rows["flow"].where(applies(rows["flow"]), rows["method"]),
        covariance=rows["covariance"].where(~fixed, MEAN_CLASSIFIER),
        test=rows["mean_test_error"].where(fixed, rows["test_risk"]),
    )
    keys = [name for name in LINES if name in ("classifier", "covariance") or len(distinct(rows, name)) > 1]
    bounds = ordered(rows["bound"].unique().tolist())
    found = [over_seeds(rows, keys, "test").assign(column="test")]
    found += [over_seeds(rows[rows["bound"].eq(bound)], keys, "value").assign(column=bound) for bound in bounds]
    whole = pd.concat(found, ignore_index=True)
    lines = _beside(whole, list(dict.fromkeys([*SETTING, *keys]))).reindex(columns=[*keys, "test", *bounds])
    return lines, _about_summary(rows, held, whole["num_seeds"], certified.any())


def _beside(long: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """The means of each `column` as a column, a line for each combination of the keys in order of appearance."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in long.to_dict("records"):
        line = tuple(None if pd.isna(row[name]) else row[name] for name in keys)
        outcome = 0
        while row["column"] in lines.setdefault((*line, outcome), {name: row[name] for name in keys}):
            outcome += 1  # two outcomes of one seed are two lines
        lines[*line, outcome][row["column"]] = row["mean"]
    return pd.DataFrame(list(lines.values()))


def _about_summary(rows: pd.DataFrame, held: Held, num_seeds: pd.Series, certified: bool) -> str:
    levels = " or ".join(f"{level:g}" for level in rows["epsilon"].unique())
    few, many = int(num_seeds.min()), int(num_seeds.max())
    seeds = f"{many} {'seed' if many == 1 else 'seeds'}" if few == many else f"{few} to {many} seeds"
    what = "Certificates" if certified else "Bounds on estimated risks, none of them certified,"
    return f"{what} at ε = {levels} and risk on the test part, mean over {seeds}. {held_fixed(held)}".strip()
