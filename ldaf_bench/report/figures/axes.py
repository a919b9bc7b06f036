"""Every axis that a suite can sweep and that has no figure of its own: certificate and test risk against it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldaf_bench.report.figures.ablations import SHOWN, panels, shapes
from ldaf_bench.report.grouping import Held, done, hold, merge, over_seeds, settings, stochastic
from ldaf_bench.report.names import label
from ldaf_bench.report.style import colour, figure, in_order, key, legend, marker, percent_axis, power, styled

OTHERS = {
    "num_nodes": "nodes n",
    "horizon": "horizon T",
    "tolerance": "Krylov tolerance",
    "backbone": "backbone",
    "certificate_fraction": "certificate fraction",
    "objective": "objective of the posterior",
    "optimizer": "optimizer of the posterior",
    "epsilon": "ε",
}
"""The axes without a figure, and what they are called; covariances, flows and numbers of points have theirs."""
WIDE = 10
"""From this ratio of the largest to the smallest on, an axis is logarithmic."""


def swept(results: pd.DataFrame) -> tuple[list[tuple[str, str, pd.DataFrame]], Held]:
    """(axis, title, rows) of every panel, and what was held fixed in the panels that are not about it."""
    found: list[tuple[str, str, pd.DataFrame]] = []
    everything: Held = {}
    for axis in OTHERS:
        rows = stochastic(done(results))
        # A prior that is not fitted is a value of one axis, and no part of any other.
        fitted = rows[rows["objective"].ne("prior")]
        rows, held = hold(rows if axis == "objective" or fitted.empty else fitted, (axis, "flow"))
        parts = [(title, part) for title, part in panels(rows) if len(settings(part, axis)) > 1]
        found += [(axis, title, part) for title, part in parts]
        for name, suites in held.items() if parts else ():
            for suite, values in suites.items():
                merge(everything, name, suite, values)
    return found, everything


@styled
def plot_axes(results: pd.DataFrame) -> Figure | None:
    """Certificate and test risk against each of OTHERS that has two values or more, a panel for each."""
    parts, _ = swept(results)
    if not parts:
        return None
    columns = 1 if len(parts) < 3 else 2
    lines = -(-len(parts) // columns)
    new, axes = figure(0.8 + 2.1 * lines, lines, columns)
    for ax in axes.flat[len(parts) :]:
        ax.remove()
    for ax, (axis, title, rows) in zip(axes.flat, parts, strict=False):
        values = settings(rows, axis)
        places, numeric = _places(values)
        for index, flow in enumerate(flows := in_order("flow", rows["flow"])):
            # Side by side, because flows that agree would hide each other.
            moved = _aside(places, index - (len(flows) - 1) / 2, numeric=numeric)
            for column in SHOWN:
                _line(ax, rows[rows["flow"].eq(flow)], axis, column, values, moved, joined=numeric)
        if numeric:
            _number_line(ax, places)
        else:
            ax.set_xticks(places, ["precision's\nown" if value is None else label(value, 12) for value in values])
            ax.set_xlim(-0.5, len(values) - 0.5)
            ax.grid(False, axis="x")
        ax.set(xlabel=OTHERS[axis], ylabel="risk")
        ax.set_title(title)
        percent_axis(ax)
    whole = pd.concat([rows for *_, rows in parts])
    handles = [key(label(f), colour("flow", f), marker("flow", f)) for f in in_order("flow", whole["flow"])]
    joined = any(_places(settings(rows, axis))[1] for axis, _, rows in parts)
    legend(new, handles + shapes(whole, joined=joined), 2)
    return new


def _places(values: list[Any]) -> tuple[np.ndarray, bool]:
    """Where the values stand, and whether that is a number line; null and names have only an order."""
    if all(isinstance(value, int | float) for value in values):
        return np.array(values, dtype=float), True
    return np.arange(len(values), dtype=float), False


def _wide(places: np.ndarray) -> bool:
    """Whether a number line is logarithmic."""
    return bool(places.min() > 0 and places.max() / places.min() >= WIDE)


def _aside(places: np.ndarray, steps: float, *, numeric: bool) -> np.ndarray:
    """The places, moved by a little that looks the same everywhere."""
    if not numeric:
        return places + 0.12 * steps
    if _wide(places):
        return places * (places.max() / places.min()) ** (0.025 * steps)
    return places + 0.025 * steps * (places.max() - places.min())


def _line(
    ax: Axes, rows: pd.DataFrame, axis: str, column: str, values: list[Any], places: np.ndarray, *, joined: bool
) -> None:
    """Mean and sd over seeds at each value, certificates filled and test risks hollow."""
    flow, hollow = str(rows["flow"].iloc[0]), column != "value"
    paint = colour("flow", flow)
    found = over_seeds(rows, [axis], column)
    where = dict(zip(values, places, strict=True))
    found = found.assign(place=[where.get(None if pd.isna(value) else value) for value in found[axis]])
    found = found[found["place"].notna()].sort_values("place", kind="stable")
    ax.errorbar(
        found["place"], found["mean"], yerr=found["sd"].fillna(0), color=paint, marker=marker("flow", flow),
        markerfacecolor="white" if hollow else paint, capsize=2.2, elinewidth=1.1, linewidth=1.1,
        linestyle="none" if not joined else ":" if hollow else "-",
    )  # fmt: skip


def _number_line(ax: Axes, places: np.ndarray) -> None:
    if _wide(places):
        ax.set_xscale("log")
    ax.minorticks_off()
    shown = places if len(places) <= 8 else places[:: -(-len(places) // 8)]
    ax.set_xticks(shown, [power(place) for place in shown])
    ax.margins(x=0.08)
