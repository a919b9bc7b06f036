"""What was measured and what was certified: the paper's table as a plot, and certificates against test risks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ldaf_bench.report.comparison import comparison, ordered
from ldaf_bench.report.grouping import FIXED_CLASSIFIER, SETTING, done
from ldaf_bench.report.names import label
from ldaf_bench.report.style import (
    ALARM,
    INK,
    NEUTRAL,
    PALETTE,
    colour,
    figure,
    key,
    legend,
    marker,
    percent_axis,
    styled,
)

SHAPES = ("o", "s", "^", "D", "v", "P")


@styled
def plot_comparison(results: pd.DataFrame) -> Figure | None:
    """Test errors, certificates by bound and held-out bounds, for each data set and flow; mean and sd over seeds."""
    frame, _ = comparison(results)
    if frame.empty:
        return None
    datasets = frame["dataset"].unique().tolist()
    rows = [frame[frame["dataset"].eq(dataset)] for dataset in datasets]
    heights = [0.4 + len(_slots(part)) * 0.115 + part["what"].nunique() * 0.1 for part in rows]
    new, axes = figure(sum(heights) + 0.45 * len(rows) + 0.8, len(rows), height_ratios=heights, sharex=len(rows) > 1)
    levels = sorted(frame["epsilon"].dropna().unique().tolist())
    paints = _paints(frame)
    for ax, part, dataset in zip(axes[:, 0], rows, datasets, strict=True):
        _dots(ax, part, levels, paints)
        ax.set_title(label(dataset, 30))
    axes[-1, 0].set_xlabel("risk")
    handles = [key(arm, paint, "o") for arm, paint in paints.items()]
    handles += [key(f"ε = {level:g}", NEUTRAL, _shape(level, levels)) for level in levels]
    if (frame["bound"].ne("") & frame["certified"].ne(True)).any():
        handles.append(key("not certified", NEUTRAL, "o", hollow=True))
    legend(new, handles, 3)
    return new


def _slots(part: pd.DataFrame) -> pd.DataFrame:
    """One line of the plot for each (what, arm, ε), from top to bottom."""
    return part.drop_duplicates(["what", "arm", "epsilon", "certified"])


def _paints(frame: pd.DataFrame) -> dict[str, Any]:
    """Each arm's colour: that of its flow, or another one if a suite or a backbone before it has taken that."""
    paints: dict[str, Any] = {}
    for name, flow in frame[["arm", "flow"]].drop_duplicates("arm").itertuples(index=False):
        others = [paint for paint in (colour("flow", flow), *PALETTE) if paint not in paints.values()]
        paints[name] = others[0] if others else colour("flow", flow)
    return paints


def _shape(level: float, levels: list[float]) -> str:
    return SHAPES[levels.index(level) % len(SHAPES)] if level in levels else "|"


def _dots(ax: Axes, part: pd.DataFrame, levels: list[float], paints: dict[str, Any]) -> None:
    y, ticks, names = 0.0, [], []
    shade = False
    for what, group in part.groupby("what", sort=False):
        first = y
        for row in group.itertuples():
            paint = paints[row.arm]
            hollow = bool(row.bound) and not row.certified
            measured = not row.bound
            ax.errorbar(
                row.mean, y, xerr=None if np.isnan(row.sd) else row.sd, color=paint, elinewidth=1.2, capsize=2.2,
                marker="o" if measured else _shape(row.epsilon, levels), markersize=5,
                markerfacecolor="white" if hollow else paint,
            )  # fmt: skip
            y += 1
        if shade:
            ax.axhspan(first - 0.95, y - 0.05, color="#f4f4f4", zorder=0, linewidth=0)
        shade = not shade
        ticks.append((first + y - 1) / 2)
        names.append(str(what))
        y += 0.9
    ax.set_yticks(ticks, names)
    ax.set_ylim(y - 0.9, -0.95)
    ax.grid(False, axis="y")
    ax.set_xlim(left=0)
    percent_axis(ax, "x")


@styled
def plot_calibration(results: pd.DataFrame) -> Figure | None:
    """Every certificate against the test risk of the classifier that it is about; below the diagonal is the scandal."""
    whole = with_test(results)
    if whole.empty:
        return None
    broken = whole[whole["certified"].eq(True) & whole["value"].lt(whole["tested"])]
    # Rows are in the plan's order, so this is the first ε of the suite file; what is broken is never left out.
    first = whole["epsilon"].eq(whole.groupby("suite", dropna=False)["epsilon"].transform("first"))
    frame, together = _without_twins(whole[first | whole.index.isin(broken.index)])
    new, axes = figure(5.2)
    ax = axes[0, 0]
    bounds = ordered(frame["bound"].unique().tolist())
    size, opacity = (13, 0.6) if len(frame) < 500 else (7, 0.4)
    for bound in bounds:
        for certified in (False, True):
            some = frame[frame["bound"].eq(bound) & frame["certified"].eq(True).eq(certified)]
            paint = colour("bound", bound)
            ax.scatter(
                some["tested"], some["value"], s=size, marker=marker("bound", bound), linewidths=0.8, alpha=opacity,
                facecolors=[paint] if certified else "none", edgecolors=[paint], zorder=3,
            )  # fmt: skip
    ax.plot([0, 1], [0, 1], color=INK, linewidth=1, zorder=2)
    ax.fill_between([0, 1], [0, 1], color=ALARM, alpha=0.05, linewidth=0, zorder=0)
    handles: list[Line2D] = [
        key("lambda, quad" if together and bound == "lambda" else label(bound), colour("bound", bound),
            marker("bound", bound))
        for bound in bounds
    ]  # fmt: skip
    if frame["certified"].ne(True).any():
        handles.append(key("not certified", NEUTRAL, "o", hollow=True))
    if not broken.empty:
        ax.scatter(broken["tested"], broken["value"], s=110, marker="o", facecolors="none", edgecolors=ALARM,
                   linewidths=1.8, zorder=4, label="below")  # fmt: skip
        ax.set_title(f"{len(broken)} certified below the test risk", color=ALARM)
    ax.text(0.97, 0.03, "certificate below test risk", transform=ax.transAxes, ha="right", fontsize=8.5, color=ALARM)
    # Certificates lie above test risks, so a square would be half empty if both axes had the same range.
    left, right = float(frame["tested"].min()), float(frame["tested"].max())
    margin = 0.1 * (right - left) or 0.1 * right or 0.01
    top = max(float(frame["value"].max()), right)
    ax.set(xlim=(left - margin, right + margin), ylim=(max(0.0, left - margin), top + 0.06 * (top - left) + margin))
    if float(frame["value"].min()) < left - margin:
        ax.set_ylim(bottom=max(0.0, float(frame["value"].min()) - margin))
    ax.set(xlabel="risk on the test part", ylabel="certificate")
    ax.xaxis.set_major_locator(MaxNLocator(6))
    percent_axis(ax, "x")
    percent_axis(ax, "y")
    legend(new, handles, 4)
    return new


def _without_twins(frame: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """Without the rows of `quad` if `lambda` says the same in all of them, as it does with the best λ; and whether."""
    identity = [*SETTING, "cell", "epsilon"]
    ours, theirs = (
        frame[frame["bound"].eq(bound)].drop_duplicates(identity).set_index(identity)["value"].sort_index()
        for bound in ("lambda", "quad")
    )
    equal = not ours.empty and ours.index.equals(theirs.index) and np.allclose(ours, theirs, rtol=1e-6, atol=1e-9)
    return (frame[frame["bound"].ne("quad")] if equal else frame), bool(equal)


def with_test(results: pd.DataFrame) -> pd.DataFrame:
    """Certificates with `tested`, the test risk of what they are about: the mean or the stochastic classifier."""
    frame = done(results)
    fixed = frame["bound"].isin(FIXED_CLASSIFIER)
    tested = frame["mean_test_error"].where(fixed, frame["test_risk"])
    return frame.assign(tested=tested)[tested.notna()]
