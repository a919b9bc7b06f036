"""What things are called in figures and tables: the paper's words for columns, short labels for whatever was swept."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ldaf_bench.messages import printable

COLUMNS = {
    "suite": "suite",
    "cell": "cell",
    "prior": "prior",
    "method": "method",
    "dataset": "data set",
    "backbone": "backbone",
    "flow": "flow",
    "num_nodes": "n",
    "num_classes": "c",
    "horizon": "T",
    "tolerance": "Krylov tolerance",
    "covariance": "covariance",
    "scale": "scale",
    "seed": "seed",
    "split_seed": "split seed",
    "certificate_fraction": "certificate fraction",
    "num_prior": "prior points",
    "num_certificate": "m",
    "num_test": "test points",
    "objective": "objective",
    "fit_points": "points in training",
    "optimizer": "optimizer",
    "integrator": "integrator",
    "num_points": "q",
    "bound": "bound",
    "epsilon": "ε",
    "delta": "δ′",
    "num_priors": "K",
    "num_integrations": "J",
    "kl": "KL",
    "value": "certificate",
    "certified": "certified",
    "risk": "risk, certificate part",
    "test_risk": "risk, test part",
    "prior_test_risk": "prior test risk",
    "mean_test_error": "mean classifier",
    "train_seconds": "train",
    "push_seconds": "push",
    "fit_seconds": "fit",
    "integrate_seconds": "integrate",
    "flow_error": "flow error",
    "device": "device",
    "workers": "workers",
    "finished": "finished",
    "error": "error",
}
"""Headings, as short as a phone needs them."""


def heading(column: str) -> str:
    """Of a column."""
    return COLUMNS.get(column, column.replace("_", " "))


def text(value: Any, longest: int = 400) -> str:
    """Any value of a record on one line: nothing that acts on a terminal or a page, nothing without end."""
    if value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    line = printable(" ".join(str(value).split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def label(value: Any, longest: int = 22) -> str:
    """For a figure, where there is little room."""
    return text(value, longest) or "none"


def setting(axis: str, value: Any, longest: int = 22) -> str:
    """A value of an axis: without a Krylov tolerance, the precision's own was taken."""
    return "the precision's own" if axis == "tolerance" and pd.isna(value) else label(value, longest)


def held_fixed(held: dict[str, dict[str, list[Any]]]) -> str:
    """What a comparison was held at, and what it was not because suites differ; empty if nothing was swept beside it.

    `held` has the values of each column by suite.
    """
    alike, apart = [], []
    for axis, suites in held.items():
        shown = {suite: " or ".join(setting(axis, value) for value in values) for suite, values in suites.items()}
        if len(set(shown.values())) == 1:
            alike.append(f"{heading(axis)} {next(iter(shown.values()))}")
        elif shown:
            each = ", ".join(f"{values} in {label(suite, 80)}" for suite, values in shown.items())
            apart.append(f"{heading(axis)} ({each})")
    sentences = [f"Held fixed: {', '.join(alike)}."] if alike else []
    if apart:
        sentences.append(
            f"Differs between suites: {', '.join(apart)}; so what differs between their results cannot be put down to "
            "one axis."
        )
    return " ".join(sentences)


def arm(row: Any, several_backbones: bool) -> str:
    """What is compared: a flow, or the plain network; with its backbone if there are several."""
    name = label(row.flow) if row.flow and not pd.isna(row.flow) else label(row.method)
    return f"{label(row.backbone)} · {name}" if several_backbones else name


def percent(mean: float, sd: float = math.nan) -> str:
    """A risk as mean ± standard deviation in percent, without a deviation if there is none."""
    if math.isnan(mean):
        return "–"
    return f"{100 * mean:.2f}" if math.isnan(sd) else f"{100 * mean:.2f} ± {100 * sd:.2f}"


def seconds(value: float) -> str:
    """A time that people can read."""
    if math.isnan(value):
        return "–"
    if value < 60:
        return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.1f} min" if value < 3600 else f"{value / 3600:.1f} h"
