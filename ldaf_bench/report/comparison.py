"""The paper's Table 1 as a frame, for the figure and the table alike: risks, certificates, held-out bounds."""

from __future__ import annotations

import pandas as pd

from ldaf_bench.report.grouping import FIXED_CLASSIFIER, PREFERRED, Held, applies, done, hold, over_seeds
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

    `epsilon` is missing for what was measured. The rows come in the order in which they are to be read.
    """
    rows, held = hold(done(results), VARY)
    several = rows[applies(rows["backbone"])]["backbone"].nunique() > 1
    rows = rows.assign(arm=[arm(row, several) for row in rows.itertuples()], flow=rows["flow"].fillna(""))
    identity = ["dataset", "arm", "flow"]
    parts = [
        over_seeds(rows[rows["objective"].ne("prior")] if column == "test_risk" else rows, identity, column).assign(
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


def ordered(bounds: list[str]) -> list[str]:
    """Bounds of stochastic classifiers first, by ORDER; what is not known by name comes between."""
    known = [*ORDER, *sorted(set(bounds) - {*ORDER, *FIXED_CLASSIFIER}), "test_set", "chernoff"]
    return [bound for bound in known if bound in bounds]


def describe(bound: str) -> str:
    """How a bound is called in a list with others."""
    if bound == "test_set":
        return "held-out: test_set"
    return f"held-out: {label(bound)}" if bound in FIXED_CLASSIFIER else f"certificate: {label(bound)}"


def headline_bound(bounds: list[str]) -> str:
    """The one bound to show where there is room for one: by a fixed order, never by its value."""
    known = [bound for bound in PREFERRED["bound"] if bound in bounds]
    return known[0] if known else sorted(bounds)[0]
