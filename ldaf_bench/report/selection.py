"""Naming a best certificate: allowed only where the choice was paid for before anything ran."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ldaf_bench.report.grouping import FIXED_CLASSIFIER, applies, done, failed, stochastic
from ldaf_bench.report.names import label, percent

DETERMINISTIC = frozenset({"bonferroni"})
"""Integrators without chance, which cost no δ′."""
PAY = "certificates.report: best"
"""The line of a suite that pays for a choice."""
START = ["certificate_hash", "prior", "tolerance", "covariance", "scale", "seed"]
"""What tells two priors over classifiers apart: `prior` alone is only the network."""


def best_certificate(frame: pd.DataFrame) -> pd.Series:
    r"""The certified row of the smallest value; a `ValueError` with a sentence if nobody may name it.

    A best of several certificates holds only if each was evaluated at ε/K and δ′/J, where K counts the priors and J the
    integrations that could have been picked. What could have been picked is what the plan asked for, and a search or a
    failure leaves fewer rows than that: so all rows have to be of one plan, which counted before it ran, and carry the
    one K and J that it paid. They must cover the priors (failed ones too) and the integrations that are compared here.
    `catoni` rests on an event of its own and counts beside the other bounds, which follow from one event. Rows that are
    not certified are no candidates, and so cost nothing. All rows have to be of one data set, one ε, and either about
    stochastic classifiers or about mean classifiers.
    """
    rows = done(frame)
    rows = rows[rows["certified"].eq(True)]
    if rows.empty:
        raise ValueError("No certificate rests on a guaranteed integration, so there is no best one to name.")
    for column, what in (("dataset", "data sets"), ("epsilon", "levels ε")):
        if rows[column].nunique(dropna=False) > 1:
            raise ValueError(f"Certificates of several {what} cannot be compared: select one first.")
    if rows["plan"].nunique(dropna=False) > 1:
        raise ValueError(
            "The best of several plans cannot be named, because each paid for a choice among its own only."
        )
    fixed = rows["bound"].isin(FIXED_CLASSIFIER)
    if fixed.any() and not fixed.all():
        raise ValueError(
            "Certificates of mean and of stochastic classifiers spend ε each, so one cannot choose between them."
        )
    if len(rows[["num_priors", "num_integrations"]].drop_duplicates()) > 1:
        raise ValueError("The best cannot be named, because its rows were paid for with different K or J.")
    lost = failed(frame)
    lost = lost[applies(lost["covariance"]).ne(fixed.all())]
    families = rows["bound"].eq("catoni").nunique()
    candidates = pd.concat([rows, lost])[["certificate_hash", "prior"] if fixed.all() else START].drop_duplicates()
    _refuse_unpaid(len(candidates) * families, rows["num_priors"].min(), "priors", "ε")
    drawn = rows[~fixed & ~rows["integrator"].isin(DETERMINISTIC)]
    if not drawn.empty:
        # A cell is one integration, whatever the number of bounds that were evaluated on it.
        _refuse_unpaid(drawn["cell"].nunique(), drawn["num_integrations"].min(), "integrations", "δ′")
    # Equal values: the first by name, so that the order of the rows does not matter.
    return rows.sort_values(["value", "cell", "bound"], kind="stable").iloc[0]


def _refuse_unpaid(compared: int, paid: Any, what: str, level: str) -> None:
    affordable = 1 if pd.isna(paid) else int(paid)
    if compared > affordable:
        raise ValueError(
            f"The best of {compared} {what} cannot be named, because {level} was divided for {affordable} only: "
            f"set `{PAY}` in the suite and run it again."
        )


def best_sentences(frame: pd.DataFrame) -> list[str]:
    """For each suite, data set and ε the best certified value of a stochastic classifier, or why none may be named."""
    rows = stochastic(done(frame))
    several = rows["plan"].nunique(dropna=False) > 1
    sentences = []
    for (dataset, suite, plan, epsilon), group in rows.groupby(["dataset", "suite", "plan", "epsilon"], sort=True):
        where = f"{label(dataset, 40)}{f', suite {label(suite, 80)}' if several else ''}, ε = {epsilon:g}"
        lost = failed(frame)
        lost = lost[lost["plan"].eq(plan) & lost["dataset"].eq(dataset)]
        # An integration without chance spends no δ′, but was chosen among others that do.
        delta = group[group["certified"].eq(True)]["delta"].max()
        try:
            sentences.append(f"{where}: {_sentence(best_certificate(pd.concat([group, lost])), delta)}")
        except ValueError as refusal:
            sentences.append(f"{where}: {refusal}")
    if several:
        sentences.append(
            "To choose the best of several suites is not paid for: each of them counted its own rows only."
        )
    return sentences


def _sentence(best: pd.Series, delta: float) -> str:
    what = ", ".join(label(best[name]) for name in ("flow", "covariance", "scale"))
    return (
        f"the best certificate is {percent(best['value'])} % ({label(best['bound'])}; {what}; seed "
        f"{label(best['seed'])}; {label(best['integrator'])}). The choice was paid for: the bounds at ε/K, with "
        f"ε = {best['epsilon']:g} and K = {label(best['num_priors'])} priors, and the integrations at δ′/J, with "
        f"δ′ = {label(delta)} and J = {label(best['num_integrations'])}."
    )
