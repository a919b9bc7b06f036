"""How figures look: one column wide, so that the same figure is readable on a phone and in print."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from ldaf_bench.report.names import column, in_order

WIDTH = 5.0
"""Inches. Ten points in five inches are nine pixels on a phone of 360."""
PALETTE: list[tuple[float, float, float]] = list(sns.color_palette("colorblind"))
LINE = 68
"""Characters of a legend beside each other, the keys included."""
INK = "#333333"
NEUTRAL = "#9a9a9a"
"""For entries of a legend that are about a shape, whatever its colour."""
TINY = 1e-18
"""What is not above this has no place on a logarithmic axis."""
ALARM = "#c1121f"

MARKERS = "os^DvPXp*<"
"""One for each colour, for those who do not see the colours."""

THEME: Any = {
    **sns.axes_style("whitegrid"),
    **sns.plotting_context("paper"),
    "font.family": ["DejaVu Sans"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 11,
    # One weight only: putting a second font into every PDF takes longer than drawing it.
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.title_fontsize": 9,
    "legend.frameon": False,
    "axes.edgecolor": "#888888",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 5.5,
    # Names come from files: a dollar sign in one must not start a formula.
    "text.parse_math": False,
    # TrueType, because publishers refuse Type 3, though embedding it takes half of a report's time.
    "pdf.fonttype": 42,
    "svg.hashsalt": "ldaf_bench",
    "axes.unicode_minus": True,
}

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def styled(plot: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a plot in the house style, and leave matplotlib's settings as they were."""

    @functools.wraps(plot)
    def inside(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with mpl.rc_context(THEME):
            return plot(*args, **kwargs)

    return inside


def figure(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, np.ndarray]:
    """A figure of the common width and its axes as a (rows, columns) array; none of it is known to pyplot."""
    new = Figure(figsize=(WIDTH, height), layout=ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.07))
    axes = new.subplots(rows, columns, squeeze=False, **options)
    for ax in axes.flat:
        sns.despine(ax=ax)
    return new, axes


Look = tuple[Any, str]
"""Colour and marker."""


def looks(names: Iterable[str], known: Sequence[str]) -> dict[str, Look]:
    """Colours and markers of names by their place among all that are known, so that figures agree."""
    places = {name: known.index(name) if name in known else zlib.crc32(name.encode()) for name in names}
    # After a round of all colours the markers are moved by one, so that no two neighbours look alike.
    return {
        name: (PALETTE[i % len(PALETTE)], MARKERS[(i + i // len(PALETTE)) % len(MARKERS)]) for name, i in places.items()
    }


def looks_of(kind: str, names: Iterable[str]) -> dict[str, Look]:
    """Colours and markers of integrators, bounds, …, in the order of their registry."""
    return looks(in_order(kind, names), column(kind).names())


def percent_axis(ax: Axes, which: str = "y") -> None:
    """Show fractions as percent, with as many digits as the ticks need."""
    axis = ax.yaxis if which == "y" else ax.xaxis

    def show(value: float, _: Any) -> str:
        return f"{100 * value:.4g} %"

    axis.set_major_formatter(FuncFormatter(show))


def power(value: float, _: Any = None) -> str:
    """A number of a logarithmic axis, in plain characters because formulas are off."""
    if 0.01 <= value <= 1000:
        return f"{value:g}"
    exponent = round(np.log10(value)) if value > 0 else 0
    digits = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{digits}" if value > 0 and np.isclose(value, 10.0**exponent) else f"{value:g}"


def log_axis(ax: Axes, which: str, base: int = 10) -> None:
    """A logarithmic axis that says its numbers without a formula."""
    (ax.set_xscale if which == "x" else ax.set_yscale)("log", base=base)
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_formatter(FuncFormatter(power if base == 10 else count))
    axis.set_minor_formatter(NullFormatter())


def count(value: float, _: Any = None) -> str:
    """A number of points: 256, 4k, 1M; powers of two by their binary thousands, as is usual for them."""
    for size, unit in ((2**20, "M"), (2**10, "k")):
        if value >= size and value % size == 0:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def key(name: str, look: Look, *, fill: str = "full", line: Any = "none") -> Line2D:
    """An entry of a legend that is made by hand."""
    return Line2D([], [], linestyle=line, label=name, **filled(look, fill))


def filled(look: Look, fill: str) -> dict[str, Any]:
    """Options of a marker: `full`, `bottom` (half of it), or `none`."""
    paint, marker = look
    return {
        "color": paint, "marker": marker, "fillstyle": "full" if fill == "none" else fill,
        "markerfacecolor": "white" if fill == "none" else paint, "markerfacecoloralt": "white",
    }  # fmt: skip


def legend(figure: Figure, handles: list[Line2D], columns: int = 3, title: str | None = None) -> None:
    """Below the axes, where it covers nothing, in as many columns as fit."""
    if handles:
        longest = max(len(str(handle.get_label())) for handle in handles)
        fitting = max(1, LINE // (longest + 7))
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(columns, len(handles), fitting), title=title
        )
