"""Every axis that was swept has a panel, and a panel shows one axis and holds all others."""

import itertools

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from ldaf_bench.report.figures import FIGURES
from ldaf_bench.report.figures.ablations import other_axes, plot_sweep, sweep
from ldaf_bench.report.figures.risks import plot_comparison
from ldaf_bench.report.names import column
from ldaf_bench.report.records import read
from tests.report import synthetic
from tests.report.test_figures import PUBLISHED, legend_texts, records_of, title

GAP = 6
"""Pixels between two words of one line."""


def plot_axis(results, *names):
    return plot_sweep(results, [column(name) for name in names])


def ticks(ax):
    return [tick.get_text() for tick in ax.get_xticklabels()]


def test_figures_of_an_axis_are_left_out_when_nothing_was_swept_along_it(tmp_path):
    asked = {"flows": ("daf",), "covariances": ("code",), "epsilons": (0.01,), "integrators": ("mc",)}
    one = records_of(tmp_path, synthetic.small(**asked), [])
    for name in ("scale", "points", "axes", "convergence", "cost", "fit", "training"):
        assert FIGURES[name].plot(one) is None
        assert FIGURES[name].held(one) == {}
    assert plot_comparison(one.results) is not None


def test_arms_stand_side_by_side_and_the_dotted_line_is_explained(tmp_path):
    rows = [row for n in (10, 20) for row in synthetic.small(num_nodes=n, covariances=("code",), epsilons=(0.01,))]
    figure = plot_axis(records_of(tmp_path, rows, []).results, "num_nodes")
    (ax,) = figure.axes
    assert ax.get_ylabel() == "risk"
    left, right = (ax.containers[i].lines[0].get_xdata() for i in (0, 2))
    assert all(a < b for a, b in zip(left, right, strict=True))
    lines = {handle.get_label(): handle.get_linestyle() for handle in figure.legends[0].legend_handles}
    assert (lines["certificate"], lines["Gibbs risk, test part"]) == ("-", ":")


def test_scales_have_a_panel_per_arm_and_a_line_per_covariance(records):
    figure = plot_axis(records.results, "scale")
    assert [title(ax) for ax in figure.axes] == ["ldaf · daf", "ldaf · sflow"]
    assert all(ticks(ax) == ["0.1", "0.3"] for ax in figure.axes)
    assert all(len(ax.containers) == 3 * 2 for ax in figure.axes)
    assert legend_texts(figure)[:3] == ["code", "constant", "isotropic"]


def test_a_covariance_that_finds_its_own_scale_stands_apart(tmp_path):
    rows = synthetic.small(flows=("daf",), covariances=("code", "scaled"), scales=(0.1, 0.3))
    own = rows[-1]["setting"]
    rows = [row for row in rows if row.get("covariance") != "scaled" or row["setting"] == own]
    rows = [row | {"scale": None} if row.get("covariance") == "scaled" else row for row in rows]
    (ax,) = plot_axis(records_of(tmp_path, rows, []).results, "scale").axes
    assert ticks(ax) == ["0.1", "0.3", "none"]
    assert [len(container.lines[0].get_xdata()) for container in ax.containers] == [2, 2, 1, 1]


def test_numbers_over_a_wide_range_stand_by_their_logarithms(tmp_path):
    rows = synthetic.small(flows=("daf",), covariances=("code",), scales=(0.01, 0.1, 0.2), bounds=("kl",))
    (ax,) = plot_axis(records_of(tmp_path, rows, []).results, "scale").axes
    first, second, third = ax.get_xticks()
    assert (second - first) / (third - second) == pytest.approx(np.log(10) / np.log(2))
    assert ticks(ax) == ["0.01", "0.1", "0.2"]


def test_points_have_a_line_per_integrator_and_those_without_points_stand_apart(records):
    figure = plot_axis(records.results, "num_points")
    assert [title(ax) for ax in figure.axes] == ["ldaf · daf", "ldaf · sflow"]
    assert all(ticks(ax) == ["256", "4k", "none"] for ax in figure.axes)
    assert legend_texts(figure)[:3] == ["mc", "bonferroni", "qmc"]
    assert figure.axes[-1].get_xlabel() == "q: points per datum"


VALUES = {
    "num_nodes": (10, 20, 50), "tolerance": (None, 1e-3, 1e-6), "backbone": ("tinynet", "xlarge"),
    "certificate_fraction": (0.02, 0.2, 0.5), "optimizer": ("adam", "sgd"), "learning_rate": (None, 0.1),
}  # fmt: skip
SHOWN = {
    "num_nodes": ["10", "20", "50"], "tolerance": ["10⁻⁶", "10⁻³", "the\nprecision's\nown"],
    "learning_rate": ["0.1", "the\noptimizer's\nown"], "certificate_fraction": ["0.02", "0.2", "0.5"],
}  # fmt: skip


@pytest.mark.parametrize("axis", VALUES)
def test_a_panel_shows_the_mean_over_seeds_at_each_value(axis, tmp_path):
    one = {"covariances": ("code",), "bounds": ("kl",), "epsilons": (0.01,), "integrators": ("mc",)}
    rows = [
        row | {"value": row["value"] + place / 100, "test_risk": row.get("test_risk", 0) + place / 100}
        for place, value in enumerate(VALUES[axis])
        for row in synthetic.small(**one, **{axis: value})
    ]
    found = records_of(tmp_path, rows, [])
    figure = plot_sweep(found.results, other_axes())
    (ax,) = figure.axes
    assert title(ax) == "digits"
    assert ticks(ax) == SHOWN.get(axis, list(VALUES[axis]))
    drawn = {round(y, 12) for container in ax.containers for y in container.lines[0].get_ydata()}
    assert len(drawn) == 2 * 2 * len(VALUES[axis])
    for value in VALUES[axis]:
        some = found.results[found.results["flow"].eq("daf") & found.results["bound"].eq("kl")]
        some = some[some[axis].isna() if value is None else some[axis].eq(value)]
        assert len(some) == 3
        assert {round(some["value"].mean(), 12), round(some["test_risk"].mean(), 12)} <= drawn


def test_an_axis_that_applies_to_one_value_of_another_is_shown_at_that(tmp_path):
    rows = synthetic.small(covariances=("code",), bounds=("kl",))
    for rise in (0.01, 0.02):
        more = synthetic.small(covariances=("scaled",), bounds=("kl",), rise=rise)
        rows += [row | {"scale": None} for row in more if row["classifier"] == "posterior"]
    results = records_of(tmp_path, rows, []).results
    panels, held = sweep(results, [column("rise")])
    assert [panel.title for panel in panels] == ["digits"]
    assert set(panels[0].rows["covariance"]) == {"scaled"}
    assert "covariance" not in held
    # And everything else is held at the value that the registry lists first.
    panels, held = sweep(results, [column("epsilon")])
    assert set(panels[0].rows["covariance"]) == {"code"}
    assert held["covariance"] == {("digits", "ldaf"): ["code"]}


def test_axes_without_a_figure_share_one_and_say_what_was_held(records, tmp_path):
    names = ["covariance", "points in training", "integrator", "ε: how often the\nbounds may fail"]
    assert [ax.get_xlabel() for ax in FIGURES["axes"].plot(records).axes] == names
    rows = [row for n in (10, 20) for t in (1.0, 2.0) for row in synthetic.small(num_nodes=n, horizon=t)]
    found = records_of(tmp_path, rows, [])
    names = [panel.axis.name for panel in sweep(found.results, other_axes())[0]]
    assert names == ["num_nodes", "horizon", "covariance", "integrator", "epsilon"]
    held = FIGURES["axes"].held(found)
    assert [held[axis]["digits", "ldaf"] for axis in ("num_nodes", "horizon", "epsilon")] == [[10], [1.0], [0.01]]


def test_an_unfitted_prior_is_a_value_of_the_objective_and_no_part_of_other_panels(tmp_path):
    rows = synthetic.small(bounds=("kl",))
    rows += synthetic.unfitted(rows)
    panels, _ = sweep(records_of(tmp_path, rows, []).results, other_axes())
    kinds = {panel.axis.name: set(panel.rows["classifier"]) for panel in panels}
    assert kinds.pop("objective") == {"posterior", "prior"}
    assert set(map(frozenset, kinds.values())) == {frozenset({"posterior"})}


def test_an_axis_that_differs_between_suites_or_methods_only_was_not_swept(tmp_path):
    one = {"epsilons": (0.01,), "covariances": ("code",), "integrators": ("mc",)}
    rows = [row for n in (10, 20) for row in synthetic.small(suite=f"n{n}", recipe=f"r{n}", num_nodes=n, **one)]
    assert plot_sweep(records_of(tmp_path / "suites", rows, []).results, other_axes()) is None
    rows = [row | {"method": row["suite"], "suite": "a", "plan": "a"} for row in rows]
    assert plot_sweep(records_of(tmp_path / "methods", rows, []).results, other_axes()) is None


def test_no_ablation_calls_an_estimate_a_certificate(tmp_path):
    rows = synthetic.small(integrators=("qmc",), num_points=(256, 4096), scales=(0.1, 0.3))
    estimates = records_of(tmp_path, rows, [])
    for name in ("scale", "points", "axes"):
        figure = FIGURES[name].plot(estimates)
        assert "estimate, not certified" in legend_texts(figure)
        assert "certificate" not in legend_texts(figure)
        fills = {container.lines[0].get_fillstyle() for ax in figure.axes for container in ax.containers}
        assert fills == {"bottom", "full"}
        full = [c.lines[0] for ax in figure.axes for c in ax.containers if c.lines[0].get_fillstyle() == "full"]
        assert {line.get_markerfacecolor() for line in full} == {"white"}


def test_several_data_sets_are_never_averaged(tmp_path):
    rows = synthetic.small(fit_points=(256, 1024)) + synthetic.small(dataset="other", suite="o", fit_points=(64, 128))
    found = records_of(tmp_path, rows, [])
    assert len(plot_comparison(found.results).axes) == 2
    assert len(plot_axis(found.results, "fit_points").axes) == 2
    held = FIGURES["comparison"].held(found)["fit_points"]
    assert held == {("digits", "ldaf"): [1024], ("o", "ldaf"): [128]}


def test_suites_and_backbones_are_never_averaged(tmp_path):
    rows = [
        row | {"value": value}
        for suite, backbone, value in (("a", "tinynet", 0.3), ("b", "tinynet", 0.1), ("b", "xlarge", 0.2))
        for row in synthetic.small(
            suite=suite, recipe=suite, backbone=backbone, scales=(0.1, 0.3), fit_points=(64, 256)
        )
    ]
    found = records_of(tmp_path, rows, [])
    figure = plot_comparison(found.results)
    arms = [f"{suite} · tinynet · ldaf · {flow}" for suite in "ab" for flow in ("daf", "sflow")]
    assert {*arms, *(f"b · xlarge · ldaf · {flow}" for flow in ("daf", "sflow"))} <= set(legend_texts(figure))
    colours = [handle.get_color() for handle in figure.legends[0].legend_handles[:6]]
    assert len(set(colours)) == 6
    assert len(plot_axis(found.results, "scale").axes) == 2 * 2
    figure = plot_axis(found.results, "fit_points")
    assert [title(ax) for ax in figure.axes] == ["a", "b"]
    heights = [{round(y, 6) for c in ax.containers for y in c.lines[0].get_ydata()} for ax in figure.axes]
    assert 0.3 in heights[0]
    assert 0.1 in heights[1]
    assert not {0.15, 0.2, 0.25} & (heights[0] | heights[1])


def test_titles_of_panels_are_wrapped_and_not_cut(tmp_path):
    rows = [
        row
        for suite in ("a_suite_with_a_long_name", "another_suite_with_a_long_name")
        for row in synthetic.small(suite=suite, recipe=suite, scales=(0.1, 0.3))
    ]
    figure = plot_axis(records_of(tmp_path, rows, []).results, "scale")
    titles = [" ".join(title(ax).split()) for ax in figure.axes]
    assert len(set(titles)) == len(titles) == 4
    assert all(one.endswith((" · ldaf · daf", " · ldaf · sflow")) for one in titles)


def test_no_label_touches_another_or_leaves_the_picture():
    suites = ("ablation_split", "ablation_horizon", "cifar_rivals", "fashion_rivals")
    figure = FIGURES["axes"].plot(read([PUBLISHED / suite for suite in suites]))
    FigureCanvasAgg(figure).draw()
    for ax in figure.axes:
        labels = ax.get_xticklabels()
        boxes = [label.get_window_extent() for label in labels if not label.get_rotation()]
        assert all(one.x1 + GAP < two.x0 for one, two in itertools.pairwise(boxes)), ticks(ax)
        for text in (ax.xaxis.label, ax.title, *labels):
            box = text.get_window_extent()
            assert box.x0 >= 0, text.get_text()
            assert box.x1 <= figure.bbox.x1, text.get_text()
