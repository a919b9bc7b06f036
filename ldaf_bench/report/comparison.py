"""The paper's Table 1 as a frame, for the figure, the table, the terminal and the first sentences of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from ldaf_bench.report.grouping import (
    MIXTURE,
    ONE_BY_ONE,
    PRICE,
    TOGETHER,
    add_held,
    at_first_level,
    by_registry,
    distinct,
    done,
    hold,
    over_seeds,
    remembered,
    standing,
)
from ldaf_bench.report.names import (
    ESTIMATE,
    MEAN,
    POSTERIOR,
    PRIOR,
    WHO,
    Held,
    in_order,
    label,
    num_seeds,
    percent,
    probability,
)

MEASURED: dict[str, tuple[str, Sequence[str]]] = {
    "mean_test_error": (f"{WHO[MEAN]}, test error", (MEAN, POSTERIOR, PRIOR)),
    "prior_test_risk": (f"{WHO[PRIOR]}, test risk", (POSTERIOR, PRIOR)),
    "test_risk": (f"{WHO[POSTERIOR]}, test risk", (POSTERIOR,)),
    "vote_test_error": ("its majority vote, test error", (POSTERIOR,)),
}
"""Quantities that are measured on test data and promise nothing: their names, and the classifiers in whose rows they
are looked up. An arm has one setting of each classifier, so that the first with a value is taken."""
OWNERS = ["dataset", "suite", "plan", "method", "classifier"]
MARKS = {ONE_BY_ONE: "*", TOGETHER: "†"}
"""What stands behind a mean of certificates, which is not the certificate of a mixture."""
MEANS = {
    MIXTURE: "Over several seeds a certificate is that of their mixture: draw a seed, then a classifier.",
    ONE_BY_ONE: "* Mean of certificates that hold one by one.",
    TOGETHER: "† Mean of certificates that hold together.",
}
"""The sentence about each kind of certificate over several seeds."""


@remembered
def comparison(results: pd.DataFrame) -> tuple[pd.DataFrame, Held]:
    """The table, and what was held fixed.

    Columns: suite, dataset, classifier, bound, event, integrator, epsilon, total, certified and the price as in the
    record; `_arm`, which has its suite's name where a data set has several, because suites are never averaged, and its
    backbone where there are several; `_base`, the arm without these; `_what`, the name of the quantity; `_mean`, `_sd`
    and `_seeds`; and `_standing`. `bound` is empty for what was measured. The rows come in the order in which they are
    to be read: what was measured, certificates by their total, and estimates.
    """
    rows, held = held_rows(results)
    if rows.empty:
        return pd.DataFrame(), held
    rows = by_registry(_with_arms(rows.assign(certified=rows["certified"].eq(True))), ["method", "backbone", "flow"])
    suites = done(results)["suite"].unique().tolist()
    rows = rows.loc[rows["suite"].map(suites.index).sort_values(kind="stable").index]
    identity = ["dataset", "_arm", "_base"]
    parts = []
    for column, (what, classifiers) in MEASURED.items():
        found = over_seeds(_looked_up(rows, column, classifiers), identity, column)
        parts.append(found.assign(_what=what, classifier="", bound="", certified=False, _standing=""))
    paid = ["classifier", "bound", "event", "integrator", "epsilon", "total", *PRICE, "certified"]
    found = over_seeds(rows, [*identity, *paid], "value")
    found = found.assign(_standing=standing(found, found["_seeds"]))
    for classifier in in_order("classifier", found["classifier"]):
        about = found[found["classifier"].eq(classifier)]
        for bound in in_order("bound", about["bound"]):
            what = f"{WHO.get(classifier, label(classifier))}: {label(bound)}"
            parts.append(about[about["bound"].eq(bound)].assign(_what=what))
    whole = pd.concat([part for part in parts if not part.empty], ignore_index=True)
    whole = whole.assign(total=whole["total"].round(12) if "total" in whole else math.nan)
    places = {"_what": list(whole["_what"].unique()), "_arm": list(rows["_arm"].unique())}
    order = whole.assign(**{column: whole[column].map(place.index) for column, place in places.items()})
    order = (
        order.assign(_bound=whole["bound"].ne(""))
        .sort_values(["_bound", "total", "epsilon", "_what", "_arm"], kind="stable", na_position="last")
        .index
    )
    return whole.loc[order].reset_index(drop=True), held


def held_rows(results: pd.DataFrame) -> tuple[pd.DataFrame, Held]:
    """The rows that are compared, and what was held fixed: see `hold`.

    A bound that the integrator which is held does not serve, as one that counts the errors of one draw, is held among
    its own rows.
    """
    whole, vary, by = done(results), ("backbone", "flow", "bound", "epsilon"), [*OWNERS, "bound"]
    rows, held = hold(whole, vary)
    there = pd.MultiIndex.from_frame(rows[by]).unique()
    for _, part in whole[~pd.MultiIndex.from_frame(whole[by]).isin(there)].groupby("bound", sort=False):
        own, _ = hold(part, vary)
        rows = pd.concat([rows, own])
        for (suite, method), some in own.groupby(["suite", "method"], sort=False):
            add_held(held, "integrator", (suite, method), distinct(some, "integrator"))
    return rows, held


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


def line(row: Mapping[Any, Any]) -> tuple[str, str]:
    """What a row is called in a table, and how often it may fail: its total, or that it is an estimate."""
    if not row["bound"]:
        return row["_what"], ""
    if row["certified"]:
        return f"certificate, {row['_what']}", probability(row["total"])
    return f"estimate, {row['_what']}, ε = {probability(row['epsilon'])}", ESTIMATE


def number(row: Mapping[Any, Any], *, sd: bool = True) -> str:
    """The value of a row, certificates rounded up, with a mark behind what is only a mean of certificates."""
    shown = percent(row["_mean"], row["_sd"] if sd else math.nan, up=bool(row["bound"]))
    return f"{shown} {MARKS.get(row['_standing'], '')}".strip()


def meant(frame: pd.DataFrame) -> str:
    """Sentences about all kinds of certificates over several seeds that the rows have."""
    return " ".join(sentence for kind, sentence in MEANS.items() if frame["_standing"].eq(kind).any())


class Headline(NamedTuple):
    """What stands for a data set and suite: one certificate, the test risk of its classifier, its mean classifier's."""

    dataset: str
    suite: str
    arm: str
    row: pd.Series
    test_risk: float | None
    mean: pd.Series | None


def standing_for(results: pd.DataFrame) -> list[Headline]:
    """One for each data set and suite.

    The bound and the arm are the first of their registries and ε is the first of its suite, as everywhere in the report
    where one has to stand for all. No result is looked at to choose them.
    """
    rows = done(results)
    frame, _ = comparison(rows[at_first_level(rows)])
    found: list[Headline] = []
    if frame.empty:
        return found
    for (dataset, suite), part in frame.groupby(["dataset", "suite"], sort=False):
        bounds = part[part["bound"].ne("")]
        if bounds.empty:
            continue
        row = bounds[bounds["classifier"].eq(in_order("classifier", bounds["classifier"])[0])].iloc[0]
        own = part[part["_arm"].eq(row["_arm"])]
        measured = {PRIOR: "prior_test_risk", MEAN: "mean_test_error"}.get(row["classifier"], "test_risk")
        tested = own[own["_what"].eq(MEASURED[measured][0])]["_mean"]
        means = own[own["classifier"].eq(MEAN)]
        found.append(
            Headline(
                label(dataset, 40), label(suite, 80),
                row["_arm"].removeprefix(f"{label(suite, 80)} · "),  # the suite is named already
                row, tested.iloc[0] if len(tested) else None,
                means.iloc[0] if row["classifier"] != MEAN and len(means) else None,
            )
        )  # fmt: skip
    return found


def headlines(results: pd.DataFrame) -> list[str]:
    """What came out, in two sentences for each data set and suite."""
    found = standing_for(results)
    several = len({one.suite for one in found}) > 1
    return [f"{one.dataset}{f', suite {one.suite}' if several else ''}: {_headline(one)}" for one in found]


def _headline(one: Headline) -> str:
    classifier = one.row["classifier"]
    sentence = f"the {WHO.get(classifier, label(classifier))} of {one.arm} has {_value(one.row)}"
    sentence += "." if one.test_risk is None else f"; its test risk is {percent(one.test_risk)} %."
    return sentence if one.mean is None else f"{sentence} Its {WHO[MEAN]} has {_value(one.mean)}."


def _value(row: pd.Series) -> str:
    """A certificate in a sentence, with its bound, how often it may fail, and what it is over several seeds."""
    shown, seeds = f"{percent(row['_mean'], up=True)} %", num_seeds([row["_seeds"]])
    if not row["certified"]:
        return (
            f"the estimate {shown} (`{label(row['bound'])}`, ε = {probability(row['epsilon'])}; {seeds}; not certified)"
        )
    over = {
        MIXTURE: f"mixture of {seeds}", ONE_BY_ONE: f"mean of {seeds}' certificates that hold one by one",
        TOGETHER: f"mean of {seeds}' certificates that hold together", "": seeds,
    }[row["_standing"]]  # fmt: skip
    total = f"may fail with probability {probability(row['total'])}"
    return f"the certificate {shown} (`{label(row['bound'])}`; {total}; {over})"
