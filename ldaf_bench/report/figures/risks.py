"""What was measured and what was certified: the paper's table as a plot, and certificates against test risks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from ldaf_bench.report import style
from ldaf_bench.report.comparison import MARKS, comparison, line
from ldaf_bench.report.grouping import SETTING, arms, at_first_level, below_test, with_test
from ldaf_bench.report.names import ESTIMATE, in_order, label, probability

SHADE = "#fbe6e8"
"""Where a certificate would be below the test risk."""
FEW_RINGS = 20
"""Rings that are drawn large; more would hide each other."""
LONGEST = 32
"""Characters of a quantity that stay on one line."""


STROKES: tuple[Literal[":", "--", "-."], ...] = (":", "--", "-.")
"""Of lines at published certificates."""
MOST_MARKS = 40
"""Of a comparison that shows everything. Beyond, it shows the first ε, and the smallest bound of each inequality. The
table has all of them."""


def compared(results: pd.DataFrame) -> pd.DataFrame:
    """What is drawn of the comparison."""
    frame, _ = comparison(results)
    if len(frame) <= MOST_MARKS:
        return frame
    frame, _ = comparison(results[at_first_level(results)])
    # Bounds that follow from one inequality hold together, so that the smallest of them costs no confidence.
    inequality = ["suite", "dataset", "classifier", "event", "integrator", "_standing"]
    means = frame.groupby([*inequality, "bound"], dropna=False)["_mean"].transform("mean")
    smallest = means.groupby([frame[name] for name in inequality], dropna=False).transform("min")
    return frame[frame["bound"].eq("") | means.eq(smallest)]


@style.styled
def plot_comparison(results: pd.DataFrame, published: pd.DataFrame | None = None) -> Figure | None:
    """Test errors, certificates by bound and held-out bounds, for each data set and arm; mean and sd over seeds.

    Published certificates are lines across the panels of their data set, if they are as small as what is shown.

    Suites share a panel while there are colours enough to tell their arms apart.
    """
    frame = compared(results)
    if frame.empty:
        return None
    frame = frame.assign(_level=[_level(row) for row in frame.to_dict("records")])
    panels = {label(dataset, 24): part for dataset, part in frame.groupby("dataset", sort=False)}
    shared = frame["_arm"].nunique() <= len(style.PALETTE)
    if not shared:
        several = frame.groupby(["suite", "_base"])["_arm"].transform("nunique").gt(1)  # backbones
        frame = frame.assign(_arm=frame["_arm"].where(several, frame["_base"]))
        split = frame.groupby(["dataset", "suite"], sort=False)
        panels = {f"{label(dataset, 24)} ·\n{label(suite, 24)}": part for (dataset, suite), part in split}
    heights = [0.4 + len(_slots(part)) * 0.115 + part["_what"].nunique() * 0.1 for part in panels.values()]
    new, axes = style.figure(
        sum(heights) + 0.45 * len(panels) + 0.8,
        len(panels),
        height_ratios=heights,
        sharex=shared and len(panels) > 1,
    )
    levels = [level for level in frame["_level"].unique() if level]
    paints = _paints(frame, arms(results))
    drawn: set[tuple[str, Literal[":", "--", "-."]]] = set()
    for ax, (title, part) in zip(axes[:, 0], panels.items(), strict=True):
        _dots(ax, part, levels, paints)
        ax.set_title(title)
        if published is not None:
            own = published[
                published["dataset"].isin(part["dataset"]) & published["certificate"].between(*ax.get_xlim())
            ]
            for number, row in enumerate(own.to_dict("records")):
                stroke = STROKES[number % len(STROKES)]
                ax.axvline(row["certificate"], color=style.INK, linewidth=1, linestyle=stroke, zorder=1)
                drawn.add((row["name"], stroke))
    axes[-1, 0].set_xlabel("risk")
    handles = [style.key(arm, (paint, "o")) for arm, paint in paints.items()]
    for level in levels:
        fill = "none" if level.startswith(ESTIMATE) else "full"
        handles.append(style.key(level, (style.NEUTRAL, _shape(level, levels)), fill=fill))
    handles += [Line2D([], [], color=style.INK, linewidth=1, linestyle=stroke, label=label(name, 40))
                for name, stroke in sorted(drawn)]  # fmt: skip
    style.legend(new, handles, 3)
    return new


def _slots(part: pd.DataFrame) -> pd.DataFrame:
    """One line of the plot for each (quantity, arm, level), from top to bottom."""
    return part.drop_duplicates(["_what", "_arm", "total", "epsilon", "certified"])


def _level(row: Mapping[Any, Any]) -> str:
    """What tells marks of one quantity and arm apart: how often a certificate may fail, or the ε of an estimate."""
    if not row["bound"]:
        return ""
    return f"may fail {line(row)[1]}" if row["certified"] else f"{ESTIMATE}, ε = {probability(row['epsilon'])}"


def _paints(frame: pd.DataFrame, every: list[str]) -> dict[str, Any]:
    """Each arm's colour, or another one if a suite or a backbone before it has taken that."""
    paints: dict[str, Any] = {}
    for name, base in frame[["_arm", "_base"]].drop_duplicates("_arm").itertuples(index=False, name=None):
        own, _ = style.looks([base], every)[base]
        paints[name] = next((paint for paint in (own, *style.PALETTE) if paint not in paints.values()), own)
    return paints


def _shape(level: str, levels: list[str]) -> str:
    return style.MARKERS[levels.index(level) % len(style.MARKERS)] if level in levels else "o"


def _dots(ax: Axes, part: pd.DataFrame, levels: list[str], paints: dict[str, Any]) -> None:
    y, ticks, names = 0.0, [], []
    shade = False
    for what, group in part.groupby("_what", sort=False):
        first = y
        for row in group.to_dict("records"):
            look = paints[row["_arm"]], _shape(row["_level"], levels)
            ax.errorbar(
                row["_mean"], y, xerr=None if np.isnan(row["_sd"]) else row["_sd"], elinewidth=1.2, capsize=2.2,
                markersize=5, **style.filled(look, "none" if row["bound"] and not row["certified"] else "full"),
            )  # fmt: skip
            y += 1
        if shade:
            ax.axhspan(first - 0.95, y - 0.05, color="#f4f4f4", zorder=0, linewidth=0)
        shade = not shade
        ticks.append((first + y - 1) / 2)
        marks = {MARKS.get(kind, "") for kind in group["_standing"]} - {""}
        name = " ".join([str(what), *sorted(marks)])
        names.append(name if len(name) <= LONGEST else name.replace(": ", ":\n", 1))
        y += 0.9
    ax.set_yticks(ticks, names)
    ax.set_ylim(y - 0.9, -0.95)
    ax.grid(False, axis="y")
    low, high = float(part["_mean"].min()), float(part["_mean"].max())
    if low <= high - low:  # else zero is far away, and differences would be too small to be seen
        ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(5))
    style.percent_axis(ax, "x")


def calibration(results: pd.DataFrame) -> pd.DataFrame:
    """The rows to draw: those at the first ε of their suite, and what is broken, which is never left out."""
    whole = with_test(results)
    return whole[at_first_level(whole) | whole.index.isin(below_test(whole).index)]


@style.styled
def plot_calibration(results: pd.DataFrame) -> Figure | None:
    """Every certificate against the test risk of its classifier; one below the diagonal is an alarm."""
    frame = calibration(results)
    broken = below_test(frame)
    if frame.empty:
        return None
    together = twins(frame)
    new, axes = style.figure(5.2)
    ax = axes[0, 0]
    size, opacity = (15, 0.7) if len(frame) < 500 else (9, 0.5)
    paints = style.looks_of("bound", together)
    for bound, (paint, marker) in paints.items():
        for certified in (False, True):
            some = frame[frame["bound"].eq(bound) & frame["certified"].eq(True).eq(certified)]
            ax.scatter(
                some["_tested"], some["value"], s=size, marker=marker, linewidths=0.8, alpha=opacity,
                facecolors=[paint] if certified else "none", edgecolors=[paint], zorder=3,
            )  # fmt: skip
    ax.plot([0, 1], [0, 1], color=style.INK, linewidth=1, zorder=2)
    ax.fill_between([0, 1], [0, 1], color=SHADE, linewidth=0, zorder=0)
    handles = [style.key(", ".join(map(label, together[bound])), look) for bound, look in paints.items()]
    if frame["certified"].ne(True).any():
        handles.append(style.key("estimate, not certified", (style.NEUTRAL, "o"), fill="none"))
    if not broken.empty:
        ring, width = (110, 1.8) if len(broken) <= FEW_RINGS else (30, 0.8)
        ax.scatter(broken["_tested"], broken["value"], s=ring, marker="o", facecolors="none", edgecolors=style.ALARM,
                   linewidths=width, zorder=4, label="below")  # fmt: skip
        ax.set_title(f"{len(broken)} certified below the test risk", color=style.ALARM)
    handles.append(style.key("below test risk", (SHADE, "s")))
    # Certificates lie above test risks, so a square would be half empty if both axes had the same range.
    left, right = float(frame["_tested"].min()), float(frame["_tested"].max())
    margin = 0.1 * (right - left) or 0.1 * right or 0.01
    top = max(float(frame["value"].max()), right)
    ax.set(xlim=(left - margin, right + margin), ylim=(max(0.0, left - margin), top + 0.06 * (top - left) + margin))
    if float(frame["value"].min()) < left - margin:
        ax.set_ylim(bottom=max(0.0, float(frame["value"].min()) - margin))
    ax.set(xlabel="risk on the test part", ylabel="certificate")
    ax.xaxis.set_major_locator(MaxNLocator(6))
    style.percent_axis(ax, "x")
    style.percent_axis(ax, "y")
    style.legend(new, handles, 4)
    return new


def twins(frame: pd.DataFrame) -> dict[str, list[str]]:
    """The bounds to draw, each with all bounds that have its rows and agree with it in every one of them."""
    identity = [*SETTING, "integration", "epsilon"]
    values = frame.drop_duplicates([*identity, "bound"]).pivot(index=identity, columns="bound", values="value")
    together: dict[str, list[str]] = {}
    for bound in in_order("bound", frame["bound"]):
        same = (
            one for one in together if np.allclose(values[one], values[bound], rtol=1e-6, atol=1e-9, equal_nan=True)
        )
        together.setdefault(next(same, bound), []).append(bound)
    return together
