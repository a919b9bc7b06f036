"""How figures look: one column wide, so that the same figure is readable on a phone and in print."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

WIDTH = 5.0
"""Inches. Ten points in five inches are nine pixels on a phone of 360."""
PALETTE: list[tuple[float, float, float]] = list(sns.color_palette("colorblind"))
BLUE, ORANGE, GREEN, RED, PURPLE, BROWN, PINK, GREY, YELLOW, SKY = PALETTE
INK = "#333333"
NEUTRAL = "#9a9a9a"
"""For entries of a legend that are about a shape, whatever its colour."""
TINY = 1e-18
"""What is not above this has no place on a logarithmic axis."""
ALARM = "#c1121f"

COLOURS: dict[str, dict[str, Any]] = {
    "flow": {"daf": BLUE, "sflow": ORANGE, "linear": GREEN, "": INK},
    "integrator": {
        "mc": BLUE, "qmc": ORANGE, "conditional": GREEN, "rqmc": PURPLE, "forward_mc": SKY, "bonferroni": BROWN,
    },
    "bound": {
        "kl": BLUE, "kl_exact": SKY, "lambda": ORANGE, "quad": GREEN, "classic": PURPLE, "catoni": BROWN,
        "test_set": INK, "chernoff": GREY,
    },
    "covariance": {
        "code": BLUE, "constant": ORANGE, "paper": GREEN, "isotropic": PURPLE, "scaled": BROWN, "dense": PINK,
    },
    "stage": {"train": BLUE, "push": SKY, "fit": ORANGE, "integrate": GREEN},
}  # fmt: skip
"""The same colour for the same thing in every figure."""
MARKERS: dict[str, dict[str, str]] = {
    "flow": {"daf": "o", "sflow": "s", "linear": "^", "": "D"},
    "integrator": {"mc": "o", "qmc": "s", "conditional": "^", "rqmc": "D", "forward_mc": "v", "bonferroni": "P"},
    "bound": {
        "kl": "o", "kl_exact": "v", "lambda": "s", "quad": "^", "classic": "D", "catoni": "P", "test_set": "X",
        "chernoff": "p",
    },
    "covariance": {"code": "o", "constant": "s", "paper": "^", "isotropic": "D", "scaled": "v", "dense": "P"},
}  # fmt: skip
"""The same marker too, for those who do not see the colours."""

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


def colour(kind: str, name: str) -> Any:
    """Of a flow, an integrator, a bound, …; the same for the same name wherever it appears, known or not."""
    return COLOURS.get(kind, {}).get(name) or PALETTE[zlib.crc32(name.encode()) % len(PALETTE)]


def marker(kind: str, name: str) -> str:
    """Likewise."""
    return MARKERS.get(kind, {}).get(name) or "o^sDvPX<>"[zlib.crc32(name.encode()) % 9]


def in_order(kind: str, names: Iterable[str]) -> list[str]:
    """Names as COLOURS lists them, then those that it does not know."""
    known, given = COLOURS.get(kind, {}), set(names)
    return [*(name for name in known if name in given), *sorted(given - set(known))]


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


def key(name: str, colour: Any = INK, marker: str = "o", *, hollow: bool = False, line: Any = "none") -> Line2D:
    """An entry of a legend that is made by hand."""
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, linestyle=line, markerfacecolor=face, label=name)


def legend(figure: Figure, handles: list[Line2D], columns: int = 3, title: str | None = None) -> None:
    """Below the axes, where it covers nothing."""
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=min(columns, len(handles)), title=title)
