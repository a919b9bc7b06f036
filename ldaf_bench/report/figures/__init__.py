"""FIGURES: each a title, a sentence below it, and a function from records to a matplotlib figure.

A function that does not find its data in the records returns None, and the figure is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from matplotlib.figure import Figure

from ldaf_bench.report.comparison import comparison
from ldaf_bench.report.figures.ablations import ablation, plot_counts, plot_covariance, plot_flows
from ldaf_bench.report.figures.axes import plot_axes, swept
from ldaf_bench.report.figures.integration import plot_convergence, plot_cost
from ldaf_bench.report.figures.progress import plot_alternations, plot_time, plot_training
from ldaf_bench.report.figures.risks import plot_calibration, plot_comparison
from ldaf_bench.report.grouping import Held
from ldaf_bench.report.records import Records

SPREAD = "Mean and standard deviation over seeds."
"""A sentence of the captions below, which is not true of a single seed."""


def _nothing(_: Records) -> Held:
    return {}


class Plot(NamedTuple):
    """A figure of the report."""

    title: str
    caption: str
    plot: Callable[[Records], Figure | None]
    held: Callable[[Records], Held] = _nothing
    """What the comparison was held at, to be said below it."""


FIGURES: dict[str, Plot] = {
    "comparison": Plot(
        "Risks and certificates",
        "Test errors, risk certificates by bound, and the bounds that held-out data give for the mean classifier. "
        "Mean and standard deviation over seeds.",
        lambda r: plot_comparison(r.results),
        lambda r: comparison(r.results)[1],
    ),
    "calibration": Plot(
        "Certificate against test risk",
        "Every certificate at the first ε of its suite against the test risk of the classifier that it is about. A "
        "filled point below the diagonal, ringed in red, would be a certified value that the test part contradicts; "
        "such points are shown at every ε.",
        lambda r: plot_calibration(r.results),
    ),
    "convergence": Plot(
        "Convergence of the integrators",
        "Root mean square error of the Gibbs risk against points per datum, over the integrator's seeds and over the "
        "posteriors that were looked at, with bands. The reference is an estimate too: points near its error or below "
        "it say nothing about an integrator.",
        lambda r: plot_convergence(r.curves),
    ),
    "cost": Plot(
        "Accuracy against cost",
        "Root mean square error of the Gibbs risk against the seconds of one integration. Points near the error of the "
        "reference or below it say nothing about an integrator.",
        lambda r: plot_cost(r.curves),
    ),
    "covariance": Plot(
        "Where the covariance starts",
        "Certificate and test risk by covariance initialization and its scale. Mean and standard deviation over seeds.",
        lambda r: plot_covariance(r.results),
        lambda r: ablation(r.results, "covariance", "scale", "flow")[1],
    ),
    "flows": Plot(
        "Flows",
        "Test errors and certificate by flow; a small dot is a seed. Mean and standard deviation over seeds.",
        lambda r: plot_flows(r.results),
        lambda r: ablation(r.results, "flow", "method", "backbone")[1],
    ),
    "counts": Plot(
        "Number of points",
        "Certificate and test risk against the points per datum. Mean and standard deviation over seeds.",
        lambda r: plot_counts(r.results),
        lambda r: ablation(r.results, "fit_points", "num_points", "integrator")[1],
    ),
    "axes": Plot(
        "Everything else that was swept",
        "Certificate and test risk against each axis that has no figure of its own. Mean and standard deviation over "
        "seeds. A panel is about one axis and holds all others.",
        lambda r: plot_axes(r.results),
        lambda r: swept(r.results)[1],
    ),
    "alternations": Plot(
        "Fitting the posterior",
        "One line per posterior; a dot where the fit stopped. The bound here is the one that the fit minimizes, with "
        "the cross-entropy in place of the 0-1 loss, and is no certificate.",
        lambda r: plot_alternations(r.curves, r.results),
    ),
    "training": Plot(
        "Training the priors",
        "One line per prior, on training data while training (augmented, if the recipe says so).",
        lambda r: plot_training(r.curves, r.results),
    ),
    "time": Plot(
        "Where the time went",
        "Training and pushforward count once per prior, however many cells share them.",
        lambda r: plot_time(r.results),
    ),
}
"""In the order of the page."""
