"""What happened on the way: alternations of the fit, epochs of the training, and where the time went."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from ldaf_bench.report.grouping import applies, distinct, networks
from ldaf_bench.report.names import label, seconds
from ldaf_bench.report.style import TINY, colour, figure, in_order, key, legend, log_axis, percent_axis, styled

ALTERNATION = {"bound": "surrogate λ-bound (cross-entropy)", "lam": "λ", "kl": "KL", "cross_entropy": "cross-entropy"}
TRAINING = {"loss": "training loss", "accuracy": "training accuracy"}
STAGES = ("train", "push", "fit", "integrate")
MOST_BARS = 16
"""With more priors than this, the bars are of flows and seeds together."""


@styled
def plot_alternations(curves: pd.DataFrame, results: pd.DataFrame) -> Figure | None:
    """λ, KL, bound and surrogate over the alternations, a line per posterior."""
    rows = curves[curves["kind"].eq("alternation")]
    cells = results.drop_duplicates("cell").set_index("cell")
    kind = "covariance" if len(distinct(results, "covariance")) > 1 else "flow"
    return _small_multiples(rows, "cell", ALTERNATION, kind, cells[kind], "alternation", percent="bound")


@styled
def plot_training(curves: pd.DataFrame, results: pd.DataFrame) -> Figure | None:
    """Loss and accuracy by epoch, a line per prior."""
    rows = curves[curves["kind"].eq("training")]
    flows = networks(results).set_index("prior")["flow"]
    return _small_multiples(rows, "prior", TRAINING, "flow", flows, "epoch", percent="accuracy")


def _small_multiples(
    rows: pd.DataFrame, unit: str, titles: dict[str, str], kind: str, kinds: pd.Series, xlabel: str, percent: str
) -> Figure | None:
    """A panel for each series that is there, a line for each `unit`, coloured by its `kind`."""
    rows = rows[rows["y"].notna() & rows["x"].notna()]
    present = [series for series in titles if rows["series"].eq(series).any()]
    if not present:
        return None
    rows = rows.assign(kind=rows[unit].map(kinds).fillna("").astype(str))
    columns = 2 if len(present) > 1 else 1
    lines = -(-len(present) // columns)
    new, axes = figure(0.7 + 1.95 * lines, lines, columns, sharex=True)
    for ax, series in zip(axes.flat, present, strict=False):
        some = rows[rows["series"].eq(series)]
        _lines(ax, some, unit, kind)
        ax.set_title(titles[series], fontsize=9.5)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        # A fit often starts far above where it ends; λ stays in (0, 2).
        if series != "lam" and some["y"].gt(TINY).all() and some["y"].max() > 5 * some["y"].min():
            log_axis(ax, "y")
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        if series == percent:
            percent_axis(ax)
    for ax in axes.flat[len(present) :]:
        ax.set_visible(False)
    for ax in axes.flat[max(0, len(present) - columns) : len(present)]:
        ax.set_xlabel(xlabel)
        ax.xaxis.set_tick_params(labelbottom=True)
    names = in_order(kind, rows["kind"])
    legend(new, [key(label(name or "no flow"), colour(kind, name), "", line="-") for name in names], 4)
    return new


def _lines(ax: Axes, rows: pd.DataFrame, unit: str, kind: str) -> None:
    """Thousands of them if need be: one collection per colour."""
    faint = float(np.clip(4 / np.sqrt(rows[unit].nunique()), 0.12, 0.9))
    for name, group in rows.groupby("kind", sort=True):
        group = group.sort_values([unit, "x"], kind="stable")
        ends = np.flatnonzero(group[unit].ne(group[unit].shift(-1)).to_numpy())[:-1] + 1
        paths = np.split(group[["x", "y"]].to_numpy(dtype=float), ends)
        paint = colour(kind, str(name))
        ax.add_collection(LineCollection(paths, colors=[paint], linewidths=1.1, alpha=faint))
        # A single alternation is a point, which no line shows.
        dots = np.array([path[-1] for path in paths])
        ax.scatter(dots[:, 0], dots[:, 1], s=9, color=paint, alpha=faint, linewidths=0, zorder=3)
    ax.autoscale_view()


def spent(results: pd.DataFrame) -> pd.DataFrame:
    """Seconds of each stage by prior network, everything counted once however many rows it stands in.

    Training counts once per prior, the pushforward once per prior and tolerance, an integration once per cell, and a
    fit once per posterior: two fits whose settings are not in the record differ in their time, to the last digit.
    """
    stages = {
        "train": ["prior"],
        "push": ["prior", "tolerance"],
        "fit": ["prior", "tolerance", "covariance", "scale", "objective", "fit_points", "optimizer", "fit_seconds"],
        "integrate": ["prior", "cell"],
    }
    rows = results[applies(results["prior"])]
    parts = {}
    for stage, keys in stages.items():
        column = f"{stage}_seconds"
        once = (
            rows[rows[column].notna()].assign(spent=rows[column]).groupby(keys, dropna=False, sort=False)["spent"].max()
        )
        parts[stage] = once.groupby("prior", sort=False).sum()
    return pd.DataFrame(parts).reindex(rows["prior"].unique()).fillna(0.0)


@styled
def plot_time(results: pd.DataFrame) -> Figure | None:
    """Where the time went: seconds of training, pushing forward, fitting and integrating, for each prior."""
    frame = spent(results)
    frame = frame[frame.sum(axis=1).gt(0)]
    if frame.empty:
        return None
    known = networks(results).set_index("prior").loc[frame.index]
    parts: list[str] = [c for c in ("dataset", "backbone") if known[c].nunique(dropna=False) > 1]
    flows = known["flow"].where(applies(known["flow"]), known["method"])
    names = _joined(known, parts, flows)
    if len(frame) > MOST_BARS:
        frame = frame.groupby(names, sort=False).sum()
        sizes = pd.Series(names).value_counts()
        frame.index = pd.Index([f"{name} ({sizes[name]} priors)" for name in frame.index])
    else:
        frame.index = pd.Index([f"{n} · seed {label(s)}" for n, s in zip(names, known["seed"], strict=True)])
        frame = frame.sort_index(kind="stable")
    return _bars(frame)


def _joined(known: pd.DataFrame, parts: Sequence[str], flows: pd.Series) -> list[str]:
    return [
        " · ".join(label(v, 16) for v in (*row, flow)) for row, flow in zip(known[parts].to_numpy(), flows, strict=True)
    ]


def _bars(frame: pd.DataFrame) -> Figure:
    new, axes = figure(1.2 + 0.27 * len(frame))
    ax = axes[0, 0]
    total = frame.sum(axis=1).to_numpy()
    scale, unit = (1, "seconds") if total.max() < 600 else (60, "minutes") if total.max() < 36000 else (3600, "hours")
    left = np.zeros(len(frame))
    places = np.arange(len(frame))
    for stage in STAGES:
        ax.barh(places, frame[stage] / scale, left=left, height=0.72, color=colour("stage", stage), linewidth=0)
        left += frame[stage].to_numpy() / scale
    for place, value in zip(places, total, strict=True):
        ax.annotate(seconds(value), (value / scale, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    ax.set_yticks(places, list(frame.index))
    ax.set_ylim(len(frame) - 0.4, -0.6)
    ax.set_xlim(0, total.max() / scale * 1.16)
    ax.grid(False, axis="y")
    ax.set_xlabel(unit)
    legend(new, [key(stage, colour("stage", stage), "s") for stage in STAGES], 4)
    return new
