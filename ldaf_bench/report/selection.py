"""Naming a best certificate: allowed only where the choice was paid for before anything ran."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ldaf_bench.report.grouping import axes, done, failed, is_mean, settings
from ldaf_bench.report.names import WHO, heading, is_missing, label, percent, probability, setting

PAY = "certificates.report: best"
"""The line of a suite that pays for a choice."""


def best_certificate(frame: pd.DataFrame) -> pd.Series:
    r"""The certified row of the smallest value; a `ValueError` with a sentence if nobody may name it.

    A best of several certificates holds only if each was evaluated at ε/K and δ′/J, where K counts the events and J the
    guarantees of integrations that could have been picked. What could have been picked is what the plan asked for, and
    a search or a failure leaves fewer rows than that: so all rows have to be of one plan, which counted before it ran,
    and carry the one K and J that it paid. They must cover the events (those of failed priors too) and the integrations
    that are compared here. An event counts once for each prior that it is about: posteriors of one prior share it. Rows
    that are not certified are no candidates, and so cost nothing. All rows have to be of one data set, one ε, and
    either about stochastic classifiers or about mean classifiers.
    """
    rows = done(frame)
    rows = rows[rows["certified"].eq(True)]
    if rows.empty:
        raise ValueError("No certificate rests on a guaranteed integration, so there is no best one to name.")
    for name, what in (("dataset", "data sets"), ("epsilon", "levels ε")):
        if rows[name].nunique(dropna=False) > 1:
            raise ValueError(f"Certificates of several {what} cannot be compared: select one first.")
    if rows["plan"].nunique(dropna=False) > 1:
        raise ValueError(
            "The best of several plans cannot be named, because each paid for a choice among its own only."
        )
    about_mean = is_mean(rows)
    if about_mean.any() and not about_mean.all():
        raise ValueError(
            "Certificates of mean and of stochastic classifiers spend ε each, so one cannot choose between them."
        )
    if len(rows[["num_events", "num_integrations"]].drop_duplicates()) > 1:
        raise ValueError("The best cannot be named, because its rows were paid for with different K or J.")
    lost = failed(frame)
    lost = lost[is_mean(lost).eq(about_mean.all())]
    # What failed could have been picked too, by any of the bounds.
    once = rows.drop_duplicates(["event", "bound", "prior", "integration"])
    pairs = {*zip(once["event"], _priors(once), strict=True)}
    pairs |= {(event, prior) for event in rows["event"].unique() for prior in _priors(lost)}
    _refuse_unpaid(len(pairs), rows["num_events"].min(), "events", "ε")
    by_chance = rows[rows["delta"].gt(0)]
    if not by_chance.empty:
        # An integration counts once for all bounds on its risk, and once more for those on its excess.
        guarantees = by_chance.assign(_of_risk=by_chance["risk_upper"].notna())[["integration", "_of_risk"]]
        paid = rows["num_integrations"].min()
        _refuse_unpaid(len(guarantees.drop_duplicates()), paid, "guarantees of integrations", "δ′")
    # Equal values: the first by name, so that the order of the rows does not matter.
    return rows.sort_values(["value", "integration", "bound"], kind="stable").iloc[0]


def _priors(rows: pd.DataFrame) -> list[str]:
    """The prior of each row, or its fixed classifier."""
    return rows["prior"].where(rows["prior"].fillna("").ne(""), rows["integration"]).tolist()


def _refuse_unpaid(compared: int, paid: Any, what: str, level: str) -> None:
    affordable = 1 if pd.isna(paid) else int(paid)
    if compared > affordable:
        raise ValueError(
            f"The best of {compared} {what} cannot be named, because {level} was divided by {affordable} only."
        )


def best_sentences(frame: pd.DataFrame) -> list[str]:
    """For each suite, data set and ε the best certified value of a stochastic classifier, or why none may be named."""
    rows = done(frame)
    rows = rows[~is_mean(rows)]
    several = rows["plan"].nunique(dropna=False) > 1
    sentences: dict[str, None] = {}
    unpaid: dict[str, None] = {}
    for (dataset, suite, plan, epsilon), group in rows.groupby(["dataset", "suite", "plan", "epsilon"], sort=True):
        where = f"{label(dataset, 40)}{f', suite {label(suite, 80)}' if several else ''}, ε = {epsilon:g}"
        lost = failed(frame)
        lost = lost[lost["plan"].eq(plan) & lost["dataset"].eq(dataset)]
        try:
            sentences[f"{where}: {_sentence(best_certificate(pd.concat([group, lost])), group)}"] = None
        except ValueError as refusal:
            paid = group["num_events"].gt(1).any() or group["num_integrations"].gt(1).any()
            if paid or not group["certified"].eq(True).any():
                sentences[f"{where}: {refusal}"] = None
            else:
                unpaid[label(suite, 80)] = None
    if unpaid:
        where = f" ({', '.join(unpaid)})" if several else ""
        none = f"All results are reported and none is selected{where}. To report the best one, set `{PAY}`."
        sentences[none] = None
    if several:
        sentences["No suite pays for choosing the best of several suites."] = None
    return list(sentences)


def _sentence(best: pd.Series, group: pd.DataFrame) -> str:
    alike = group[group["method"].eq(best["method"]) & group["classifier"].eq(best["classifier"])]
    swept = [axis for axis in axes() if axis.name not in ("flow", "bound") and len(settings(alike, axis)) > 1]
    values = {axis.name: best[axis.name] for axis in swept if axis.null_means or not is_missing(best[axis.name])}
    what = "".join(f", {heading(name)} {setting(name, value)}" for name, value in values.items() if value != "")
    # An integration without chance spends no δ′, but was chosen among others that do.
    delta = group[group["certified"].eq(True)]["delta"].max()
    chance = "" if pd.isna(delta) else f" and δ′ = {label(delta)} by J = {label(best['num_integrations'])} guarantees"
    who = WHO.get(best["classifier"], label(best["classifier"]))
    return (
        f"the best certificate is {percent(best['value'], up=True)} % and may fail with probability "
        f"{probability(best['total'])} ({who} of {best['_arm']} with {label(best['bound'])}{what}, seed "
        f"{label(best['seed'])}). The choice is paid for: ε was divided by "
        f"K = {label(best['num_events'])} events{chance}."
    )
