"""Certificate and test risk against every axis that was swept, one axis at a time."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ldaf_bench.columns import Column
from ldaf_bench.report import style
from ldaf_bench.report.grouping import (
    PRICE,
    add_held,
    applies,
    arms,
    axes,
    done,
    fitted,
    hold,
    is_mean,
    over_seeds,
    remembered,
    settings,
    standing,
)
from ldaf_bench.report.names import Held, axis_title, label, setting

ARM = "_arm"
LINES = {"scale": "covariance", "num_points": "integrator"}
"""Axes with a figure of their own, in which each value of another column is a line, and each arm a panel."""
ELSEWHERE = frozenset({"flow", "bound", *LINES})
"""Axes that have no panel among the others: the comparison has flows and bounds."""
WIDE = 4
"""From this ratio of the largest to the smallest on, numbers stand by their logarithms."""


class Panel(NamedTuple):
    """Certificate and test risk against one axis."""

    axis: Column
    title: str
    rows: pd.DataFrame
    """With `_line`, the line that each row belongs to."""


def other_axes() -> list[Column]:
    """All axes that have no figure of their own, those of methods that nobody knew included."""
    return [axis for axis in axes() if axis.name not in ELSEWHERE]


@remembered
def sweep(results: pd.DataFrame, swept: Iterable[Column]) -> tuple[list[Panel], Held]:
    """The panels of all these axes that have several values, and what was held fixed in the others' panels."""
    panels: list[Panel] = []
    everything: Held = {}
    for axis in swept:
        lines = LINES.get(axis.name, ARM)
        rows = _about(done(results), axis, lines)
        if len(settings(rows, axis)) < 2:
            continue
        rows, held = hold(rows, (axis.name, "flow", lines))
        rows = rows.assign(_line=rows[lines].where(applies(rows[lines]), rows[ARM]))
        found = [
            (title, part)
            for title, part in _parts(rows, lines)
            if any(len(settings(own, axis)) > 1 for _, own in part.groupby("_line"))
        ]
        panels += [Panel(axis, title, part) for title, part in found]
        for name, places in held.items() if found else ():
            for where, values in places.items():
                add_held(everything, name, where, values)
    return panels, everything


def swept_certificates(results: pd.DataFrame, swept: Iterable[Column]) -> pd.DataFrame:
    """All certificates that the panels show, over seeds, with their `_standing`."""
    panels, _ = sweep(results, swept)
    if not panels:
        return results[:0]
    own = ["bound", "epsilon", "total", "certified", *PRICE, "integrator", "num_points", "num_certificate"]
    found = over_seeds(pd.concat([panel.rows for panel in panels]), own, "value")
    return found.assign(_standing=standing(found, found["_seeds"]))


def _about(rows: pd.DataFrame, axis: Column, lines: str) -> pd.DataFrame:
    """The rows of fitted classifiers that say something of the axis.

    An unfitted prior is a value of one axis, and no part of any other. Where lines are of another column, those without
    a value of the axis stay: a covariance may find its scale itself, and an integrator may use no points.
    """
    rows = rows[~is_mean(rows)] if axis.name == "objective" else fitted(rows)
    known = applies(rows[axis.name])
    owners = [rows[name] for name in ("suite", "plan", "method", "classifier")]
    somewhere = known.groupby(owners, dropna=False).transform("any")
    return rows[somewhere if axis.null_means or lines != ARM else known]


def _parts(rows: pd.DataFrame, lines: str) -> list[tuple[str, pd.DataFrame]]:
    """Rows that share a panel, and its title: by data set and suite if there are several, by arm if lines are not."""
    names = [name for name in ("dataset", "suite") if rows[name].nunique() > 1] + [ARM] * (lines != ARM) or ["dataset"]
    orders = [arms(rows) if name == ARM else rows[name].unique().tolist() for name in names]
    groups = dict(iter(rows.groupby(names, sort=False)))
    found = [(values, groups[values]) for values in itertools.product(*orders) if values in groups]
    return [(" · ".join(label(value, 40) for value in values if value), part) for values, part in found]


@style.styled
def plot_sweep(results: pd.DataFrame, swept: Iterable[Column]) -> Figure | None:
    """A panel for each axis that has several values."""
    panels, _ = sweep(results, swept)
    if not panels:
        return None
    columns = 1 if len(panels) < 3 else 2
    lines = -(-len(panels) // columns)
    new, grid = style.figure(0.9 + 2.2 * lines, lines, columns)
    whole = pd.concat([panel.rows for panel in panels])
    kind = LINES.get(panels[0].axis.name, ARM)
    every = arms(results)
    paints = style.looks([arm for arm in every if whole[ARM].eq(arm).any()], every)
    if kind != ARM:
        paints = style.looks_of(kind, whole["_line"])
    for ax in grid.flat[len(panels) :]:
        ax.remove()
    for ax, panel in zip(grid.flat, panels, strict=False):
        _draw(ax, panel, paints, room=26 if columns == 2 else 64)
    handles = [style.key(label(name, 30), look) for name, look in paints.items()]
    grey = (style.NEUTRAL, "o")
    if (certified := whole["certified"].eq(True)).any():
        handles.append(style.key("certificate", grey, line="-"))
    if not certified.all():
        handles.append(style.key("estimate, not certified", grey, fill="bottom", line="-"))
    handles.append(style.key("Gibbs risk, test part", grey, fill="none", line=":"))
    style.legend(new, handles, 2)
    return new


def _draw(ax: Axes, panel: Panel, paints: dict[str, style.Look], room: int) -> None:
    axis, title, rows = panel
    values = settings(rows, axis)
    if (~applies(rows[axis.name])).any():  # what has no value stands apart, on the right
        values = [*(value for value in values if value is not None), None]
    places, numeric = _places([value for value in values if value is not None])
    where = dict(zip(values, [*places, places[-1] + 1], strict=False))
    present = [name for name in paints if rows["_line"].eq(name).any()]
    for index, name in enumerate(present):
        some = rows[rows["_line"].eq(name)]
        certified = some["certified"].eq(True)
        for part, quantity, fill in (
            (some[certified], "value", "full"), (some[~certified], "value", "bottom"), (some, "test_risk", "none"),
        ):  # fmt: skip
            found = over_seeds(part, [axis.name], quantity)
            place = pd.Series([where[None if pd.isna(v) or v == "" else v] for v in found[axis.name]], dtype=float)
            for here, joined in ((place <= places[-1], numeric), (place > places[-1], False)):
                points = found[here].assign(_place=place[here]).sort_values("_place", kind="stable")
                if not points.empty:
                    # Side by side, because lines that agree would hide each other.
                    shift = min(0.15, 0.3 / len(present)) * (index - (len(present) - 1) / 2)
                    line = "none" if not joined else ":" if fill == "none" else "-"
                    ax.errorbar(
                        points["_place"] + shift, points["_mean"], yerr=points["_sd"].fillna(0), capsize=2.2,
                        elinewidth=1.1, linewidth=1.1, linestyle=line, **style.filled(paints[name], fill),
                    )  # fmt: skip
    shown = [_tick(axis, value) for value in values]
    _ticks(ax, list(where.values()), shown, room)
    if None in where and numeric:
        ax.axvline(places[-1] + 0.5, color=style.NEUTRAL, linewidth=0.8, linestyle="--", zorder=1)
    ax.grid(False, axis="x")
    ax.set(xlabel="\n".join(textwrap.wrap(axis_title(axis.name), room - 4)), ylabel="risk")
    ax.set_title("\n".join(textwrap.wrap(label(title, 3 * room), room - 4)), fontsize=10)
    style.percent_axis(ax)


def _places(values: list[Any]) -> tuple[list[float], bool]:
    """Where values stand, about one apart, and whether that is a number line; names have only an order."""
    if isinstance(values[0], str | bool):
        return [float(place) for place in range(len(values))], False
    numbers = np.array(values, dtype=float)
    if numbers[0] > 0 and numbers[-1] / numbers[0] >= WIDE:
        numbers = np.log(numbers)
    span = numbers[-1] - numbers[0]
    return ((numbers - numbers[0]) / (span or 1.0) * (len(values) - 1)).tolist(), True


def _tick(axis: Column, value: Any) -> str:
    if value is None:
        return "\n".join(textwrap.wrap(setting(axis.name, None), 12))
    if isinstance(value, int) and not isinstance(value, bool):
        return style.count(value)
    return style.power(float(f"{value:.3g}")) if isinstance(value, float) else label(value, 16)


def _ticks(ax: Axes, places: list[float], shown: list[str], room: int) -> None:
    """Labels that do not touch: long ones are slanted, and of numbers that are too close some are left out."""
    kept: list[int] = []
    for i, place in enumerate(places):
        if not kept or place - places[kept[-1]] >= (places[-1] - places[0]) / 9:
            kept.append(i)
    widths = {i: max(map(len, shown[i].split("\n"))) for i in kept}
    gaps = {(i, j): (places[j] - places[i]) / (places[-1] + 1) * room for i, j in itertools.pairwise(kept)}
    long = any((widths[i] + widths[j]) / 2 + 1 > gap for (i, j), gap in gaps.items())
    slanted: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks([places[i] for i in kept], [shown[i] for i in kept], **slanted)
    ax.set_xlim(-0.5, places[-1] + 0.5)
