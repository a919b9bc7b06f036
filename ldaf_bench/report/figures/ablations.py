"""One axis at a time: covariance initializations, flows, and the number of points in training and in evaluation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ldaf_bench.report import style
from ldaf_bench.report.comparison import MEASURED
from ldaf_bench.report.grouping import SEEDS, SETTING, Held, applies, distinct, done, hold, over_seeds, stochastic
from ldaf_bench.report.names import label
from ldaf_bench.report.style import INK, colour, count, figure, in_order, key, legend, marker, percent_axis, styled

SHOWN = {"value": "certificate", "test_risk": "Gibbs risk, test part"}
"""What an ablation shows: filled and hollow."""


def ablation(results: pd.DataFrame, *axes: str) -> tuple[pd.DataFrame, Held]:
    """The rows of fitted stochastic classifiers that differ in these axes and in seeds only."""
    rows = stochastic(done(results))
    fitted = rows[rows["objective"].ne("prior")]
    return hold(fitted if not fitted.empty else rows, axes)


def shown(rows: pd.DataFrame) -> dict[str, str]:
    """SHOWN, with another word for values that rest on an estimate of the risk."""
    certified = rows["certified"].eq(True)
    word = (
        "certificate" if certified.all() else "certificate or estimate" if certified.any() else "bound, not certified"
    )
    return {**SHOWN, "value": word}


def shapes(rows: pd.DataFrame, *, joined: bool) -> list[Line2D]:
    """The entries of a legend for certificates, which are filled, and test risks, hollow and dotted where joined."""
    lines = {"value": "-" if joined else "none", "test_risk": ":" if joined else "none"}
    named = shown(rows).items()
    return [key(name, style.NEUTRAL, "o", hollow=column != "value", line=lines[column]) for column, name in named]


def panels(rows: pd.DataFrame, *by: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows that share a panel, and its title: by data set, by suite if there are several, and by these columns."""
    columns = ["dataset", *(["suite"] if rows["suite"].nunique() > 1 else []), *by]
    groups = dict(iter(rows.groupby(columns, sort=False)))
    values = [in_order(name, rows[name]) if name == "flow" else rows[name].unique().tolist() for name in columns]
    found = [(names, groups[names]) for names in itertools.product(*values) if names in groups]
    return [(" · ".join(label(name, 40) for name in names if name), part) for names, part in found]


@styled
def plot_covariance(results: pd.DataFrame) -> Figure | None:
    """Certificate and test risk by covariance initialization; a panel per flow if several scales were swept."""
    rows, _ = ablation(results, "covariance", "scale", "flow")
    rows = rows[applies(rows["covariance"])]
    if len(rows[["covariance", "scale"]].drop_duplicates()) < 2:
        return None
    by_scale = rows["scale"].nunique() > 1
    axis, kind = ("scale", "covariance") if by_scale else ("covariance", "flow")
    parts = panels(rows, "flow") if by_scale else panels(rows)
    new, axes = figure(1.1 + 2.1 * len(parts), len(parts), sharex=True, sharey=rows["dataset"].nunique() == 1)
    places = _places(distinct(rows, axis))
    last = max(places.values(), default=-1.0)
    if rows[axis].isna().any():
        # `scaled` finds its own scale, and stands beside those that were given.
        places[None] = last + 1
    for ax, (title, part) in zip(axes[:, 0], parts, strict=True):
        for column in SHOWN:
            _points(ax, over_seeds(part, [kind, axis], column), axis, kind, places, hollow=column != "value")
        ax.set_title(title)
        ax.set_xticks(list(places.values()), [label(value or "its own", 12) for value in places])
        ax.set_xlim(-0.5, max(places.values()) + 0.5)
        if None in places and len(places) > 1:
            ax.axvline(last + 0.5, color=style.NEUTRAL, linewidth=0.8, linestyle="--", zorder=1)
        ax.set_ylabel("risk")
        ax.grid(False, axis="x")
        percent_axis(ax)
    axes[-1, 0].set_xlabel("scale" if by_scale else "covariance initialization")
    handles = [key(label(name), colour(kind, name), marker(kind, name)) for name in in_order(kind, rows[kind])]
    legend(new, handles + shapes(rows, joined=by_scale), 2)
    return new


def _places(values: list[Any]) -> dict[Any, float]:
    """Numbers stand by their logarithms, those next to each other about one apart; names one after the other."""
    if len(values) < 2 or not all(isinstance(value, int | float) and value > 0 for value in values):
        return {value: float(place) for place, value in enumerate(values)}
    logs = np.log(np.array(values, dtype=float))
    unit = max(np.diff(logs).min(), (logs[-1] - logs[0]) / 12)
    return dict(zip(values, ((logs - logs[0]) / unit).tolist(), strict=True))


def _points(ax: Axes, frame: pd.DataFrame, axis: str, kind: str, places: dict[Any, float], *, hollow: bool) -> None:
    """Mean and sd at one place per value of `axis`, side by side for each `kind`."""
    names = in_order(kind, frame[kind])
    for index, name in enumerate(names):
        shift = (index - (len(names) - 1) / 2) * 0.5 / max(len(names), 3)
        rows = frame[frame[kind].eq(name)]
        rows = rows.assign(place=[places.get(None if pd.isna(value) else value) for value in rows[axis]])
        rows = rows[rows["place"].notna()].sort_values("place", kind="stable")
        paint = colour(kind, name)
        ax.errorbar(
            rows["place"].astype(float) + shift, rows["mean"], yerr=rows["sd"].fillna(0),
            color=paint, marker=marker(kind, name), markerfacecolor="white" if hollow else paint, capsize=2.2,
            elinewidth=1.1, linewidth=1.1, linestyle="none" if axis == "covariance" else ":" if hollow else "-",
        )  # fmt: skip


@styled
def plot_flows(results: pd.DataFrame) -> Figure | None:
    """Errors and certificate of each flow, every seed as a point, mean and sd beside."""
    rows, _ = ablation(results, "flow", "method", "backbone")
    rows = rows[applies(rows["flow"])]
    flows = in_order("flow", rows["flow"])
    if len(flows) < 2:
        return None
    bounds = " or ".join(label(bound) for bound in rows["bound"].unique())
    levels = " or ".join(f"{level:g}" for level in distinct(rows, "epsilon"))
    quantities = {**MEASURED, "value": f"{shown(rows)['value']}: {bounds}, ε = {levels}"}
    paints = dict(zip(quantities, (INK, style.SKY, style.GREEN, style.PURPLE), strict=True))
    parts = panels(rows, *(["backbone"] if len(distinct(rows, "backbone")) > 1 else []))
    new, axes = figure(0.9 + 2.7 * len(parts), len(parts), sharex=True)
    for ax, (title, part) in zip(axes[:, 0], parts, strict=True):
        for index, column in enumerate(quantities):
            shift = (index - 1.5) * 0.19
            # A mean classifier's error stands in the rows of every bound; once per seed is enough.
            seeds = part.drop_duplicates([*SETTING, "flow", *SEEDS, column])
            place = seeds["flow"].map(flows.index).astype(float) + shift
            ax.scatter(place - 0.035, seeds[column], s=10, color=paints[column], alpha=0.55, linewidths=0, zorder=3)
            found = over_seeds(part, ["flow"], column)
            ax.errorbar(
                found["flow"].map(flows.index).astype(float) + shift + 0.035, found["mean"], yerr=found["sd"].fillna(0),
                linestyle="none", color=paints[column], marker="os^D"[index], capsize=2.5, elinewidth=1.2, zorder=4,
            )  # fmt: skip
        ax.set_xticks(range(len(flows)), [label(flow) for flow in flows])
        ax.set_xlim(-0.5, len(flows) - 0.5)
        ax.set_ylabel("risk")
        ax.set_title(title)
        ax.grid(False, axis="x")
        percent_axis(ax)
    legend(new, [key(quantities[c], paints[c], "os^D"[i]) for i, c in enumerate(quantities)], 2)
    return new


COUNTED = {"fit_points": "points per datum in training", "num_points": "points per datum in evaluation"}


@styled
def plot_counts(results: pd.DataFrame) -> Figure | None:
    """Certificate and test risk against the points per datum, in training and in evaluation; panels that were swept."""
    parts: list[tuple[str, str, pd.DataFrame]] = []
    for axis in COUNTED:
        rows, _ = ablation(results, axis, *(["integrator"] if axis == "num_points" else []))
        for title, part in panels(rows[applies(rows[axis])]):
            if part.groupby("integrator", dropna=False)[axis].nunique().max() > 1:
                parts.append((axis, title, part))
    if not parts:
        return None
    new, axes = figure(0.9 + 2.5 * len(parts), len(parts))
    names = in_order("integrator", {str(name) for *_, rows in parts for name in rows["integrator"]})
    for ax, (axis, title, rows) in zip(axes[:, 0], parts, strict=True):
        here = in_order("integrator", rows["integrator"])
        for name, column in itertools.product(here, SHOWN):
            some = rows[rows["integrator"].eq(name)]
            found = over_seeds(some, [axis], column).sort_values(axis)
            # Side by side, because integrators that agree would hide each other.
            place = found[axis].astype(float) * 2 ** (0.06 * (here.index(name) - (len(here) - 1) / 2))
            paint = colour("integrator", name)
            ax.errorbar(
                place, found["mean"], yerr=found["sd"].fillna(0), color=paint, capsize=2.5, elinewidth=1.1,
                marker=marker("integrator", name), linestyle="-" if column == "value" else ":",
                markerfacecolor=paint if some["certified"].eq(True).all() else "white",
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ticks = sorted(rows[axis].astype(float).unique())
        ax.set_xticks(ticks, [count(tick) for tick in ticks])
        ax.set(xlabel=COUNTED[axis], ylabel="risk")
        ax.set_title(title)
        ax.margins(x=0.08)
        percent_axis(ax)
    handles = [key(label(name), colour("integrator", name), marker("integrator", name)) for name in names]
    handles += [key(SHOWN[column], style.NEUTRAL, "", line="-" if column == "value" else ":") for column in SHOWN]
    if any(rows["certified"].ne(True).any() for *_, rows in parts):
        handles.append(key("not certified", style.NEUTRAL, "o", hollow=True))
    legend(new, handles, 3)
    return new
