"""One axis at a time: covariance initializations, flows, and the number of points in training and in evaluation."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldaf_bench.report import style
from ldaf_bench.report.comparison import MEASURED
from ldaf_bench.report.grouping import Held, applies, distinct, done, hold, over_seeds, stochastic
from ldaf_bench.report.names import label
from ldaf_bench.report.style import INK, colour, count, figure, in_order, key, legend, marker, percent_axis, styled

SHOWN = {"value": "certificate", "test_risk": "Gibbs risk, test part"}
"""What an ablation shows: filled and hollow."""


def ablation(results: pd.DataFrame, *axes: str) -> tuple[pd.DataFrame, Held]:
    """The rows of fitted stochastic classifiers that differ in these axes and in seeds only."""
    rows = stochastic(done(results))
    fitted = rows[rows["objective"].ne("prior")]
    return hold(fitted if not fitted.empty else rows, axes)


@styled
def plot_covariance(results: pd.DataFrame) -> Figure | None:
    """Certificate and test risk by covariance initialization; a panel per flow if several scales were swept."""
    rows, _ = ablation(results, "covariance", "scale", "flow")
    rows = rows[applies(rows["covariance"])]
    if len(rows[["covariance", "scale"]].drop_duplicates()) < 2:
        return None
    by_scale = rows["scale"].nunique() > 1
    axis, kind, panel = ("scale", "covariance", "flow") if by_scale else ("covariance", "flow", "")
    datasets = rows["dataset"].unique().tolist()
    panels = [(dataset, flow) for dataset in datasets for flow in (in_order("flow", rows["flow"]) if panel else [""])]
    new, axes = figure(1.1 + 2.1 * len(panels), len(panels), sharex=True, sharey=len(datasets) == 1)
    places = {value: place for place, value in enumerate(distinct(rows, axis))}
    for ax, (dataset, flow) in zip(axes[:, 0], panels, strict=True):
        part = rows[rows["dataset"].eq(dataset) & (rows["flow"].eq(flow) | (not panel))]
        for column in SHOWN:
            _points(ax, over_seeds(part, [kind, axis], column), axis, kind, places, hollow=column != "value")
        ax.set_title(" · ".join(label(name) for name in (dataset, flow) if name))
        ax.set_xticks(list(places.values()), [label(value, 12) for value in places])
        ax.set_xlim(-0.5, len(places) - 0.5)
        ax.grid(False, axis="x")
        percent_axis(ax)
    axes[-1, 0].set_xlabel("scale" if by_scale else "covariance initialization")
    handles = [key(label(name), colour(kind, name), marker(kind, name)) for name in in_order(kind, rows[kind])]
    handles += [key(name, style.NEUTRAL, "o", hollow=column != "value") for column, name in SHOWN.items()]
    legend(new, handles, 2)
    return new


def _points(ax: Axes, frame: pd.DataFrame, axis: str, kind: str, places: dict[Any, int], *, hollow: bool) -> None:
    """Mean and sd at one place per value of `axis`, side by side for each `kind`."""
    names = in_order(kind, frame[kind])
    for index, name in enumerate(names):
        shift = (index - (len(names) - 1) / 2) * 0.5 / max(len(names), 3)
        rows = frame[frame[kind].eq(name) & applies(frame[axis])].sort_values(axis)
        paint = colour(kind, name)
        ax.errorbar(
            np.array([places[value] for value in rows[axis]]) + shift, rows["mean"], yerr=rows["sd"].fillna(0),
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
    quantities = {**MEASURED, "value": f"certificate: {label(rows['bound'].iloc[0])}, ε = {rows['epsilon'].iloc[0]:g}"}
    paints = dict(zip(quantities, (INK, style.SKY, style.GREEN, style.PURPLE), strict=True))
    datasets = rows["dataset"].unique().tolist()
    new, axes = figure(0.9 + 2.7 * len(datasets), len(datasets), sharex=True)
    for ax, dataset in zip(axes[:, 0], datasets, strict=True):
        part = rows[rows["dataset"].eq(dataset)]
        for index, column in enumerate(quantities):
            shift = (index - 1.5) * 0.19
            # A mean classifier's error stands in the rows of every backbone and bound; once per seed is enough.
            seeds = part.drop_duplicates(["backbone", "flow", "seed", "split_seed", column])
            place = seeds["flow"].map(flows.index).astype(float) + shift
            ax.scatter(place - 0.035, seeds[column], s=10, color=paints[column], alpha=0.55, linewidths=0, zorder=3)
            found = over_seeds(part, ["flow"], column)
            ax.errorbar(
                found["flow"].map(flows.index).astype(float) + shift + 0.035, found["mean"], yerr=found["sd"].fillna(0),
                linestyle="none", color=paints[column], marker="os^D"[index], capsize=2.5, elinewidth=1.2, zorder=4,
            )  # fmt: skip
        ax.set_xticks(range(len(flows)), [label(flow) for flow in flows])
        ax.set_xlim(-0.5, len(flows) - 0.5)
        ax.set_title(label(dataset, 30))
        ax.grid(False, axis="x")
        percent_axis(ax)
    legend(new, [key(quantities[c], paints[c], "os^D"[i]) for i, c in enumerate(quantities)], 2)
    return new


COUNTED = {"fit_points": "points per datum in training", "num_points": "points per datum in evaluation"}


@styled
def plot_counts(results: pd.DataFrame) -> Figure | None:
    """Certificate and test risk against the points per datum, in training and in evaluation; panels that were swept."""
    panels: list[tuple[str, str, pd.DataFrame]] = []
    for axis in COUNTED:
        rows, _ = ablation(results, axis, *(["integrator"] if axis == "num_points" else []))
        rows = rows[applies(rows[axis])]
        for dataset, part in rows.groupby("dataset", sort=False):
            if part.groupby("integrator", dropna=False)[axis].nunique().max() > 1:
                panels.append((axis, str(dataset), part))
    if not panels:
        return None
    new, axes = figure(0.9 + 2.5 * len(panels), len(panels))
    names = in_order("integrator", {str(name) for *_, rows in panels for name in rows["integrator"]})
    for ax, (axis, dataset, rows) in zip(axes[:, 0], panels, strict=True):
        for name, (column, _) in itertools.product(names, SHOWN.items()):
            some = rows[rows["integrator"].eq(name)].astype({axis: float})
            # Side by side, because integrators that agree would hide each other.
            some = some.assign(place=some[axis] * 2 ** (0.06 * (names.index(name) - (len(names) - 1) / 2)))
            sns.lineplot(
                some, x="place", y=column, ax=ax, errorbar="sd", err_style="bars", err_kws={"capsize": 2.5},
                legend=False, color=colour("integrator", name), marker=marker("integrator", name), markeredgewidth=0,
                linestyle="-" if column == "value" else ":",
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ticks = sorted(rows[axis].astype(float).unique())
        ax.set_xticks(ticks, [count(tick) for tick in ticks])
        ax.set(xlabel=COUNTED[axis], ylabel="")
        ax.set_title(label(dataset, 30))
        ax.margins(x=0.08)
        percent_axis(ax)
    handles = [key(label(name), colour("integrator", name), marker("integrator", name)) for name in names]
    handles += [
        key(title, style.NEUTRAL, "", line="-" if column == "value" else ":") for column, title in SHOWN.items()
    ]
    legend(new, handles, 3)
    return new
