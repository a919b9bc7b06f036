"""Naming a best certificate: allowed only where the choice was paid for before anything ran."""

from __future__ import annotations

from typing import Any

import pandas as pd

from ldaf_bench.report.grouping import FIXED_CLASSIFIER, done, stochastic
from ldaf_bench.report.names import label, percent

DETERMINISTIC = frozenset({"bonferroni"})
"""Integrators without chance, which cost no δ′."""
START = ["certificate_hash", "prior", "tolerance", "covariance", "scale", "seed"]
"""What tells two priors over classifiers apart: `prior` alone is only the network."""


def best_certificate(frame: pd.DataFrame) -> pd.Series:
    r"""The certified row of the smallest value; a `ValueError` with a sentence if nobody may name it.

    A best of several certificates holds only if each was evaluated at ε/K and δ′/J, where K counts the priors and J the
    integrations that could have been picked. So the records must have paid K ≥ number of priors and J ≥ number of
    integrations that are compared here. `catoni` rests on an event of its own and counts beside the other bounds,
    which follow from one event. Rows that are not certified are no candidates, and so cost nothing. All rows have to
    be of one data set, one ε, and either about stochastic classifiers or about mean classifiers.
    """
    rows = done(frame)
    rows = rows[rows["certified"].eq(True)]
    if rows.empty:
        raise ValueError("No certificate rests on a guaranteed integration, so there is no best one to name.")
    for column, what in (("dataset", "data sets"), ("epsilon", "levels ε")):
        if rows[column].nunique(dropna=False) > 1:
            raise ValueError(f"Certificates of several {what} cannot be compared: select one first.")
    fixed = rows["bound"].isin(FIXED_CLASSIFIER)
    if fixed.any() and not fixed.all():
        raise ValueError(
            "Certificates of mean and of stochastic classifiers spend ε each, so one cannot choose between them."
        )
    families = rows["bound"].eq("catoni").nunique()
    compared = len(rows[["certificate_hash", "prior"] if fixed.all() else START].drop_duplicates()) * families
    _refuse_unpaid(compared, rows["num_priors"].min(), "priors", "ε")
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
            "set `certificates.report: best` in the suite and run it again."
        )


def best_sentences(frame: pd.DataFrame) -> list[str]:
    """For each data set and ε the best certified value of a stochastic classifier, or why nobody may name one."""
    rows = stochastic(done(frame))
    sentences = []
    for (dataset, epsilon), group in rows.groupby(["dataset", "epsilon"], sort=True):
        where = f"{label(dataset, 40)}, ε = {epsilon:g}"
        try:
            best = best_certificate(group)
        except ValueError as refusal:
            sentences.append(f"{where}: {refusal}")
            continue
        what = ", ".join(label(best[name]) for name in ("flow", "covariance", "scale"))
        sentences.append(
            f"{where}: the best certificate is {percent(best['value'])} % ({label(best['bound'])}; {what}; seed "
            f"{label(best['seed'])}; {label(best['integrator'])}), chosen among priors that were paid for with "
            f"K = {label(best['num_priors'])}."
        )
    return sentences
