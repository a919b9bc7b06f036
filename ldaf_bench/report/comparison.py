"""The paper's Table 1 as a frame, for the figure and the table alike: risks, certificates, held-out bounds."""

from __future__ import annotations

import pandas as pd

from ldaf_bench.report.grouping import FIXED_CLASSIFIER, Held, applies, done, hold, over_seeds
from ldaf_bench.report.names import arm, label

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
    """Columns: dataset, arm, flow, what, bound, epsilon, mean, sd, num_seeds, certified, paid; and what was held fixed.

    An arm has its suite's name where several suites have it, because suites are never averaged. `epsilon` is missing
    for what was measured. The rows come in the order in which they are to be read.
    """
    rows, held = hold(done(results), VARY)
    several = rows[applies(rows["backbone"])]["backbone"].nunique() > 1
    rows = rows.assign(arm=[arm(row, several) for row in rows.itertuples()], flow=rows["flow"].fillna(""))
    alike = rows.groupby(["dataset", "arm"])["suite"].transform("nunique").gt(1)
    named = zip(rows["suite"], rows["arm"], alike, strict=True)
    rows = rows.assign(arm=[f"{label(suite)} · {name}" if twice else name for suite, name, twice in named])
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
