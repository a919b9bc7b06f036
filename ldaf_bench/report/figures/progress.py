"""What happened on the way: steps of the fit, epochs of the training, and where the time went."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from ldaf_bench.messages import counted
from ldaf_bench.report import style
from ldaf_bench.report.grouping import applies, arms, distinct, networks
from ldaf_bench.report.names import heading, label, seconds
from ldaf_bench.results.record import STAGES

FRACTIONS = frozenset({"accuracy", "bound"})
"""Series that are shown in percent."""
MOST_RATIO = 1e6
"""Ratio of a series' values beyond which a logarithmic axis would show little but its length."""
MOST_BARS = 16
"""With more networks than this, a bar is an arm with all its seeds."""


@style.styled
def plot_fit(curves: pd.DataFrame, results: pd.DataFrame) -> Figure | None:
    """Every quantity of the fit by step, a line per posterior; coloured by covariance if there are several."""
    rows = curves[curves["kind"].eq("fit")]
    known = results.drop_duplicates("posterior").set_index("posterior")
    kinds, paints = known["_arm"], style.looks(arms(results), arms(results))
    if len(distinct(results, "covariance")) > 1:
        kinds = known["covariance"].where(applies(known["covariance"]), known["_arm"])
        paints = style.looks_of("covariance", kinds)
    return _small_multiples(rows, "posterior", kinds, paints, "step of the fit")


@style.styled
def plot_training(curves: pd.DataFrame, results: pd.DataFrame) -> Figure | None:
    """Every quantity of the training by epoch, a line per network; coloured by arm."""
    rows = curves[curves["kind"].eq("training")]
    kinds = networks(results).set_index("network")["_arm"]
    return _small_multiples(rows, "network", kinds, style.looks(arms(results), arms(results)), "epoch")


def _small_multiples(
    rows: pd.DataFrame, unit: str, kinds: pd.Series, paints: dict[str, style.Look], xlabel: str
) -> Figure | None:
    """A panel for each series that is there, a line for each `unit`, coloured by its kind."""
    rows = rows[rows["y"].notna() & rows["x"].notna()]
    rows = rows.assign(_kind=rows[unit].map(kinds).fillna("unknown"))
    paints = paints | style.looks(["unknown"], [])
    present = rows["series"].unique().tolist()
    if not present:
        return None
    columns = 2 if len(present) > 1 else 1
    lines = -(-len(present) // columns)
    new, axes = style.figure(0.7 + 1.95 * lines, lines, columns, sharex=True)
    for ax, series in zip(axes.flat, present, strict=False):
        some = rows[rows["series"].eq(series)]
        _lines(ax, some, unit, paints)
        ax.set_title(label(heading(series), 24), fontsize=9.5)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        # A fit often starts far above where it ends. A divergence that starts at a rounding error starts at zero.
        low, high = some["y"].min(), some["y"].max()
        if 5 * low < high < MOST_RATIO * low:
            style.log_axis(ax, "y")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if series in FRACTIONS:
            style.percent_axis(ax)
    for ax in axes.flat[len(present) :]:
        ax.remove()
    for ax in axes.flat[max(0, len(present) - columns) : len(present)]:
        ax.set_xlabel(xlabel)
        ax.xaxis.set_tick_params(labelbottom=True)
    shown = {name: look for name, look in paints.items() if rows["_kind"].eq(name).any()}
    style.legend(new, [style.key(label(name, 30), (paint, ""), line="-") for name, (paint, _) in shown.items()], 3)
    return new


def _lines(ax: Axes, rows: pd.DataFrame, unit: str, paints: dict[str, style.Look]) -> None:
    """Thousands of them if need be: one collection per colour."""
    faint = float(np.clip(4 / np.sqrt(rows[unit].nunique()), 0.12, 0.9))
    for name, group in rows.groupby("_kind", sort=True):
        group = group.sort_values([unit, "x"], kind="stable")
        ends = np.flatnonzero(group[unit].ne(group[unit].shift(-1)).to_numpy())[:-1] + 1
        paths = np.split(group[["x", "y"]].to_numpy(dtype=float), ends)
        paint, _ = paints[str(name)]
        ax.add_collection(LineCollection(paths, colors=[paint], linewidths=1.1, alpha=faint))
        # A single step is a point, which no line shows.
        dots = np.array([path[-1] for path in paths])
        ax.scatter(dots[:, 0], dots[:, 1], s=9, color=paint, alpha=faint, linewidths=0, zorder=3)
    ax.autoscale_view()


def spent(results: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each stage by network, everything counted once however many rows it stands in.

    A digest has no name in the record, but no two of them take the same time to the last digit.
    """
    once = {
        "train_seconds": ["network"],
        "digest_seconds": ["network", "method", "digest_seconds"],
        "fit_seconds": ["network", "posterior"],
        "integrate_seconds": ["network", "integration"],
    }
    rows = results[applies(results["network"])]
    parts = {
        stage: rows[rows[stage].notna()].drop_duplicates(once[stage]).groupby("network", sort=False)[stage].sum()
        for stage in STAGES
    }
    return pd.DataFrame(parts).reindex(rows["network"].unique()).fillna(0.0)


@style.styled
def plot_time(results: pd.DataFrame) -> Figure | None:
    """Where the time went: seconds of each stage, for each network."""
    frame = spent(results)
    frame = frame[frame.sum(axis=1).gt(0)]
    if frame.empty:
        return None
    known = networks(results).set_index("network").loc[frame.index]
    parts = [name for name in ("suite", "backbone") if known[name].nunique(dropna=False) > 1]
    named = zip(*(known[name] for name in (*parts, "_arm")), strict=True)
    names = [" · ".join(label(value, 30) for value in values) for values in named]
    if len(frame) > MOST_BARS:
        frame = frame.groupby(names, sort=False).sum()
        sizes = pd.Series(names).value_counts()
        frame.index = pd.Index([f"{name} ({counted(sizes[name], 'network')})" for name in frame.index])
    else:
        frame.index = pd.Index([f"{n} · seed {label(s)}" for n, s in zip(names, known["seed"], strict=True)])
        frame = frame.sort_index(kind="stable")
    return _bars(frame)


def _bars(frame: pd.DataFrame) -> Figure:
    new, axes = style.figure(1.2 + 0.27 * len(frame))
    ax = axes[0, 0]
    total = frame.sum(axis=1).to_numpy()
    scale, unit = (1, "seconds") if total.max() < 600 else (60, "minutes") if total.max() < 36000 else (3600, "hours")
    left = np.zeros(len(frame))
    places = np.arange(len(frame))
    for stage, paint in zip(STAGES, style.PALETTE, strict=False):
        ax.barh(places, frame[stage] / scale, left=left, height=0.72, color=paint, linewidth=0)
        left += frame[stage].to_numpy() / scale
    for place, value in zip(places, total, strict=True):
        ax.annotate(seconds(value), (value / scale, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(places, list(frame.index))
    ax.set_ylim(len(frame) - 0.4, -0.6)
    ax.set_xlim(0, total.max() / scale * 1.16)
    ax.grid(False, axis="y")
    ax.set_xlabel(unit)
    style.legend(new, [style.key(heading(stage), (style.PALETTE[i], "s")) for i, stage in enumerate(STAGES)], 4)
    return new
