"""FIGURES: each a title, a sentence below it, and a function from records to a matplotlib figure.

A function that does not find its data in the records returns None, and the figure is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from ldaf_bench.report.comparison import comparison
from ldaf_bench.report.figures.ablations import other_axes, plot_sweep, sweep, swept_certificates
from ldaf_bench.report.figures.integration import EACH, plot_convergence, plot_cost, plot_price
from ldaf_bench.report.figures.progress import plot_fit, plot_time, plot_training
from ldaf_bench.report.figures.risks import calibration, compared, plot_calibration, plot_comparison
from ldaf_bench.report.names import Held, column
from ldaf_bench.report.records import Records, published

SPREAD = "Bars are standard deviations over seeds."
"""A sentence of the captions below, which is not true of a single seed."""


class Plot(NamedTuple):
    """A figure of the report."""

    title: str
    caption: str
    plot: Callable[[Records], Figure | None]
    held: Callable[[Records], Held] = lambda _: {}
    """What the comparison was held at, to be said below it."""
    drawn: Callable[[Records], pd.DataFrame] = lambda r: r.results[:0]
    """The certificates that are drawn: how often they may fail, and what they are over seeds, is said below it."""


FIGURES: dict[str, Plot] = {
    "comparison": Plot(
        "Risks and certificates",
        "Test errors, and certificates of each classifier by bound. If there are very many: at the first ε, and "
        "of bounds that follow from one inequality the smallest, which costs no confidence. A vertical line is "
        "a certificate that was published elsewhere. " + SPREAD,
        lambda r: plot_comparison(r.results, published(r.plans)),
        lambda r: comparison(r.results)[1],
        lambda r: compared(r.results),
    ),
    "calibration": Plot(
        "Certificate against test risk",
        "Each point is the certificate of one seed, at the first ε of its suite, against the test risk of its "
        "classifier. Bounds that agree everywhere are drawn once. A certified value below the diagonal contradicts the "
        "test part. It has a red ring, and is shown at every ε.",
        lambda r: plot_calibration(r.results),
        drawn=lambda r: calibration(r.results),
    ),
    "price": Plot(
        "What a guaranteed integration costs",
        "A mark for each random integration with a guarantee: its seconds, and by how much the guaranteed upper end of "
        "the risk exceeds the risk. q is the number of points or draws per datum.",
        lambda r: plot_price(r.results),
    ),
    "convergence": Plot(
        "Convergence of the integrators",
        "Root mean square error of the Gibbs risk against points per datum, over integrator seeds and posteriors, with "
        "bands. The reference is an estimate too: points near its error or below it say nothing about an integrator.",
        lambda r: plot_convergence(r.curves),
    ),
    "convergence_each": Plot(
        "Convergence of the integrators, datum by datum",
        "Root mean square error of each datum's own Gibbs risk against points per datum, over some data, integrator "
        "seeds and posteriors, with bands. The reference is an estimate too.",
        lambda r: plot_convergence(r.curves, EACH),
    ),
    "cost": Plot(
        "Accuracy against cost",
        "Root mean square error of the Gibbs risk against the seconds of one integration. Points near the error of the "
        "reference or below it say nothing about an integrator.",
        lambda r: plot_cost(r.curves),
    ),
    "scale": Plot(
        "Scale of the prior",
        "Certificate and test risk by the scale of the prior, a line for each covariance initialization. " + SPREAD,
        lambda r: plot_sweep(r.results, [column("scale")]),
        lambda r: sweep(r.results, [column("scale")])[1],
        lambda r: swept_certificates(r.results, [column("scale")]),
    ),
    "points": Plot(
        "Number of points",
        "Certificate and test risk by the points per datum, a line for each integrator. " + SPREAD,
        lambda r: plot_sweep(r.results, [column("num_points")]),
        lambda r: sweep(r.results, [column("num_points")])[1],
        lambda r: swept_certificates(r.results, [column("num_points")]),
    ),
    "axes": Plot(
        "Everything else that was swept",
        "Certificate and test risk by each axis that has no figure of its own. A panel shows one axis and holds all "
        "others. " + SPREAD,
        lambda r: plot_sweep(r.results, other_axes()),
        lambda r: sweep(r.results, other_axes())[1],
        lambda r: swept_certificates(r.results, other_axes()),
    ),
    "fit": Plot(
        "Fitting the posteriors",
        "One line per posterior; a dot marks the end of the fit. The bound is the one that the fit minimizes. It is no "
        "certificate.",
        lambda r: plot_fit(r.curves, r.results),
    ),
    "training": Plot(
        "Training the networks",
        "One line per network, on training data during training (augmented, if the recipe says so). A network that "
        "several methods share has the name of the first.",
        lambda r: plot_training(r.curves, r.results),
    ),
    "time": Plot(
        "Where the time went",
        "Training counts once per network, a digest once per network and method, however many integrations share them. "
        "A network that several methods share has the name of the first.",
        lambda r: plot_time(r.results),
    ),
}
"""In the order of the page."""
