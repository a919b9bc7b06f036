"""The paper's Table 1 as a frame, for the figure, the table, the terminal and the first sentences of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from ldaf_bench.report.grouping import MEAN, POSTERIOR, PRIOR, by_registry, distinct, done, hold, over_seeds
from ldaf_bench.report.names import Held, in_order, label, num_seeds, percent

MEASURED: dict[str, tuple[str, Sequence[str]]] = {
    "mean_test_error": ("mean classifier, test error", (MEAN, POSTERIOR, PRIOR)),
    "prior_test_risk": ("prior (Gibbs), test risk", (POSTERIOR, PRIOR)),
    "test_risk": ("posterior (Gibbs), test risk", (POSTERIOR,)),
}
"""Quantities that are measured on test data and promise nothing: their names, and the classifiers in whose rows they
are looked up. An arm has one setting of each classifier, so that the first with a value is taken."""
CERTIFIED = {POSTERIOR: "certificate", PRIOR: "prior's certificate", MEAN: "held-out"}
"""What a bound about each classifier is called."""


def comparison(results: pd.DataFrame) -> tuple[pd.DataFrame, Held]:
    """The table, and what was held fixed.

    Columns: suite, dataset, classifier, bound, epsilon, delta, num_events and certified as in the record; `_arm`, which
    has its suite's name where a data set has several, because suites are never averaged, and its backbone where there
    are several; `_base`, the arm without these; `_what`, the name of the quantity; and `_mean`, `_sd` and `_seeds`.
    `bound` is empty for what was measured. The rows come in the order in which they are to be read.
    """
    rows, held = hold(done(results), ("backbone", "flow", "bound", "epsilon"))
    if rows.empty:
        return pd.DataFrame(), held
    rows = by_registry(_with_arms(rows.assign(certified=rows["certified"].eq(True))), ["method", "backbone", "flow"])
    suites = done(results)["suite"].unique().tolist()
    rows = rows.loc[rows["suite"].map(suites.index).sort_values(kind="stable").index]
    identity = ["dataset", "_arm", "_base"]
    parts = []
    for column, (what, classifiers) in MEASURED.items():
        found = over_seeds(_looked_up(rows, column, classifiers), identity, column)
        parts.append(found.assign(_what=what, classifier="", bound="", certified=False))
    for classifier in in_order("classifier", rows["classifier"]):
        about = rows[rows["classifier"].eq(classifier)]
        for bound in in_order("bound", about["bound"]):
            paid = ["classifier", "bound", "epsilon", "delta", "num_events", "certified"]
            found = over_seeds(about[about["bound"].eq(bound)], [*identity, *paid], "value")
            parts.append(found.assign(_what=f"{CERTIFIED.get(classifier, label(classifier))}: {label(bound)}"))
    whole = pd.concat([part for part in parts if not part.empty], ignore_index=True)
    places = {"_what": list(whole["_what"].unique()), "_arm": list(rows["_arm"].unique())}
    order = whole.assign(**{column: whole[column].map(place.index) for column, place in places.items()})
    order = order.sort_values(["_what", "_arm", "epsilon"], kind="stable").index
    return whole.loc[order].reset_index(drop=True), held


def _with_arms(rows: pd.DataFrame) -> pd.DataFrame:
    """With `_base`, the arm as it is, and what tells arms of several backbones and suites apart in `_arm`."""
    backbones = len(distinct(rows, "backbone")) > 1
    suites = rows.groupby("dataset", dropna=False)["suite"].transform("nunique").gt(1)
    columns = (rows[name] for name in ("suite", "backbone", "_arm"))
    named = [
        " · ".join([*([label(suite, 80)] if several else []), *([label(backbone)] if backbones else []), arm])
        for suite, backbone, arm, several in zip(*columns, suites, strict=True)
    ]
    return rows.assign(_base=rows["_arm"], _arm=named)


def _looked_up(rows: pd.DataFrame, column: str, classifiers: Sequence[str]) -> pd.DataFrame:
    """The rows that a measured quantity is taken from: for each arm those of the first classifier that knows it."""
    rows = rows[rows["classifier"].isin(classifiers) & rows[column].notna()]
    rank = rows["classifier"].map(list(classifiers).index)
    first = rank.groupby([rows["dataset"], rows["suite"], rows["_arm"]], dropna=False).transform("min")
    return rows[rank.eq(first)]


def headlines(frame: pd.DataFrame) -> list[str]:
    """What came out, in two sentences for each data set and suite, from the frame that `comparison` gives.

    The bound and the arm are the first of their registries and ε is the smallest, as everywhere in the report where one
    has to stand for all. No result is looked at to choose them.
    """
    if frame.empty:
        return []
    several = frame["suite"].nunique() > 1
    sentences = []
    for (dataset, suite), part in frame.groupby(["dataset", "suite"], sort=False):
        bounds = part[part["bound"].ne("")]
        if not bounds.empty:
            bounds = bounds[bounds["classifier"].eq(bounds["classifier"].iloc[0])]
            row = bounds.sort_values("certified", ascending=False, kind="stable").iloc[0]
            where = f"{label(dataset, 40)}{f', suite {label(suite, 80)}' if several else ''}"
            sentences.append(f"{where}: {_headline(row, part[part['_arm'].eq(row['_arm'])])}")
    return sentences


def _headline(row: pd.Series, own: pd.DataFrame) -> str:
    """One certificate, with the test risk of its classifier, and the held-out bound on the arm's mean classifier."""
    measured = {PRIOR: "prior_test_risk", MEAN: "mean_test_error"}.get(row["classifier"], "test_risk")
    tested = own[own["_what"].eq(MEASURED[measured][0])]["_mean"]
    held_out = own[own["classifier"].eq(MEAN) & own["epsilon"].eq(row["epsilon"])]["_mean"]
    who = {PRIOR: ", unfitted,", MEAN: ", the mean classifier,"}.get(row["classifier"], "")
    verb = "certifies a risk of at most" if row["certified"] else "gives a bound of"
    chance = "" if math.isnan(row["delta"]) else f" (δ′ = {row['delta']:g})"
    seeds = "one seed" if row["_seeds"] == 1 else f"mean over {num_seeds([row['_seeds']])}"
    sentence = (
        f"{row['_arm']}{who} with `{label(row['bound'])}` {verb} {percent(row['_mean'], up=True)} % at "
        f"ε = {row['epsilon']:g}{chance}, {seeds}{'' if row['certified'] else ', not certified'}"
    )
    sentence += f"; its test risk is {percent(tested.iloc[0])} %." if len(tested) else "."
    if row["classifier"] != MEAN and len(held_out):
        sentence += f" The held-out bound on its mean classifier is {percent(held_out.iloc[0], up=True)} %."
    return sentence
