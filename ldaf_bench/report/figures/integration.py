"""How fast integrators converge, and what their accuracy costs; from curves of kinds `integration` and
`integration_each`. And what guarantees cost, from the results."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ldaf_bench.report.grouping import arms, done
from ldaf_bench.report.names import label
from ldaf_bench.report.style import INK, NEUTRAL, TINY, count, figure, key, legend, log_axis, looks, looks_of, styled

REFERENCE = "reference"
"""The series that is no integrator: the standard error of the risk that all others are compared with."""


WHOLE, EACH = "integration", "integration_each"
"""Kinds of curves: errors of the risk of the whole part, and of each datum's own risk."""


def reference_error(curves: pd.DataFrame, kind: str) -> float | None:
    """Root mean square over posteriors; None if the records do not know it."""
    errors = curves[curves["kind"].eq(kind) & curves["series"].eq(REFERENCE) & curves["y"].gt(TINY)]["y"]
    return None if errors.empty else float(np.sqrt((errors**2).mean()))


def _floor(ax: Axes, curves: pd.DataFrame, kind: str) -> list[Line2D]:
    """A line at the error of the reference, if it is known, and its entry for the legend."""
    error = reference_error(curves, kind)
    if error is None:
        return []
    ax.axhline(error, color=INK, linestyle="--", linewidth=1.3, zorder=2)
    return [key("error of the reference", (INK, ""), line="--")]


def convergence(curves: pd.DataFrame, kind: str) -> pd.DataFrame:
    """`y`, `low`, `high` and `seconds` by integrator and points per datum; root mean square over posteriors."""
    rows = curves[curves["kind"].eq(kind) & curves["y"].gt(TINY) & curves["x"].ge(1)]
    rows = rows[rows["series"].ne(REFERENCE)]
    rows = rows.assign(square=rows["y"] ** 2)
    groups = rows.groupby(["series", "x"], sort=True)
    found = groups[["square", "low", "high", "seconds"]].mean()
    return found.assign(y=np.sqrt(found["square"])).drop(columns="square").reset_index()


@styled
def plot_convergence(curves: pd.DataFrame, kind: str = WHOLE) -> Figure | None:
    """Root mean square error of the risk against points per datum, with bands and the slopes −1/2 and −1."""
    frame = convergence(curves, kind)
    if frame["x"].nunique() < 2:
        return None
    new, axes = figure(4.4)
    ax = axes[0, 0]
    # The limits are the curves'; slopes and bands may leave them.
    _slopes(ax, frame)
    looks = looks_of("integrator", frame["series"])
    for name, (paint, marker) in looks.items():
        rows = frame[frame["series"].eq(name)]
        ax.plot(rows["x"], rows["y"], color=paint, marker=marker, zorder=3)
        band = rows[rows["low"].gt(0) & rows["high"].notna()]
        if len(band) > 1:
            ax.fill_between(band["x"], band["low"], band["high"], color=paint, alpha=0.18, linewidth=0)
    floor = _floor(ax, curves, kind)
    log_axis(ax, "x", 2)
    log_axis(ax, "y")
    error = reference_error(curves, kind) or frame["y"].min()
    lowest = np.nanmin(frame[["y", "low"]].where(frame[["y", "low"]] > 0).to_numpy(dtype=float))
    highest = np.nanmax(frame[["y", "high"]].to_numpy(dtype=float))
    # A band's lower end can be next to nothing, and would take all of the room.
    ax.set_ylim(max(min(lowest, error), min(frame["y"].min(), error) / 5) / 1.6, max(highest, error) * 1.6)
    places = sorted(frame["x"].unique())
    if len(places) <= 8:
        ax.set_xticks(places, [count(place) for place in places])
    ax.set(xlabel="points per datum", ylabel=f"RMS error of {'the' if kind == WHOLE else 'a datum’s'} risk")
    handles = [key(label(name), look, line="-") for name, look in looks.items()]
    handles += [key("slope −1/2", ("#777777", ""), line=":"), key("slope −1", ("#777777", ""), line="-.")]
    legend(new, handles + floor, 3)
    return new


def _slopes(ax: Axes, frame: pd.DataFrame) -> None:
    """From where the worst curve of at least two points begins, so that both lines can be compared with all curves."""
    lengths = frame.groupby("series")["x"].transform("count")
    curves = frame[lengths.gt(1)] if lengths.gt(1).any() else frame
    start = curves.loc[curves["x"].eq(curves["x"].min()), "y"].max()
    x = np.array([frame["x"].min(), frame["x"].max()], dtype=float)
    for slope, line in ((-0.5, ":"), (-1.0, "-.")):
        ax.plot(x, start * (x / curves["x"].min()) ** slope, color="#777777", linestyle=line, linewidth=1.2, zorder=1)


@styled
def plot_cost(curves: pd.DataFrame) -> Figure | None:
    """Root mean square error of the risk against the seconds of one integration; to the lower left is better."""
    frame = convergence(curves, WHOLE)
    frame = frame[frame["seconds"].gt(TINY)]
    if len(frame) < 2:
        return None
    new, axes = figure(4.4)
    ax = axes[0, 0]
    handles = []
    for name, (paint, marker) in looks_of("integrator", frame["series"]).items():
        rows = frame[frame["series"].eq(name)].sort_values("x")
        ax.plot(rows["seconds"], rows["y"], color=paint, marker=marker, zorder=3)
        counts = [count(x) for x in (rows["x"].iloc[0], rows["x"].iloc[-1])]
        points = "–".join(dict.fromkeys(counts))
        handles.append(key(f"{label(name)}, {points}", (paint, marker), line="-"))
    handles += _floor(ax, curves, WHOLE)
    log_axis(ax, "x")
    log_axis(ax, "y")
    ax.margins(0.09, 0.1)
    ax.set_title("lower left is better", fontsize=9)
    ax.set(xlabel="seconds for one integration", ylabel="RMS error of the risk")
    legend(new, handles, 2, "integrator, points per datum")
    return new


def charges(results: pd.DataFrame) -> pd.DataFrame:
    """One row for each random integration with a guarantee; `_charge` is what that adds to the risk."""
    rows = done(results)
    rows = rows.assign(_charge=rows["risk_upper"] - rows["risk"])
    known = rows["delta"].gt(0) & rows["_charge"].gt(TINY) & rows["integrate_seconds"].gt(TINY)
    return rows[known].drop_duplicates("integration")


@styled
def plot_price(results: pd.DataFrame) -> Figure | None:
    """What the guarantee adds to the risk against the seconds of one integration; to the lower left is better."""
    frame = charges(results)
    if len(frame[["_arm", "integrator", "num_points"]].drop_duplicates()) < 2:
        return None
    new, axes = figure(4.4)
    ax = axes[0, 0]
    paints = looks([arm for arm in arms(results) if frame["_arm"].eq(arm).any()], arms(results))
    shapes = looks_of("integrator", frame["integrator"])
    for (arm, integrator), rows in frame.groupby(["_arm", "integrator"], sort=False):
        look = {"color": paints[arm][0], "marker": shapes[integrator][1]}
        ax.plot(rows["integrate_seconds"], 100 * rows["_charge"], linestyle="none", alpha=0.8, zorder=3, **look)
    log_axis(ax, "x")
    log_axis(ax, "y")
    ax.margins(0.09, 0.1)
    ax.set_title("lower left is better", fontsize=9)
    ax.set(xlabel="seconds for one integration", ylabel="added to the risk (points)")
    handles = [key(arm, (paint, ""), line="-") for arm, (paint, _) in paints.items()]
    for name, (_, marker) in shapes.items():
        points = frame.loc[frame["integrator"].eq(name), "num_points"]
        counts = "–".join(dict.fromkeys(count(number) for number in (points.min(), points.max())))
        handles.append(key(f"{label(name)}, q = {counts}", (NEUTRAL, marker)))
    legend(new, handles, 2)
    return new
