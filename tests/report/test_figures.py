"""Every figure shows what it says, and none is made of nothing."""

import itertools
import random

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.collections import PathCollection

from ldaf_bench.report.figures import FIGURES
from ldaf_bench.report.figures.ablations import plot_counts, plot_covariance, plot_flows
from ldaf_bench.report.figures.axes import OTHERS, plot_axes, swept
from ldaf_bench.report.figures.integration import plot_convergence, plot_cost
from ldaf_bench.report.figures.progress import plot_alternations, plot_time, plot_training, spent
from ldaf_bench.report.figures.risks import plot_calibration, plot_comparison
from ldaf_bench.report.folder import _figures, render
from ldaf_bench.report.page import page
from ldaf_bench.report.records import read
from ldaf_bench.report.style import COLOURS, WIDTH
from ldaf_bench.report.tables import TABLES
from tests.report import synthetic


def records_of(folder, rows, lines=None):
    return read([synthetic.write(folder, rows, lines)])


def title(ax):
    return ax.get_title(loc="left")


def legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def points(figure):
    found = [c for ax in figure.axes for c in ax.collections if isinstance(c, PathCollection)]
    return np.concatenate([c.get_offsets() for c in found])


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_made_from_a_whole_sweep_and_has_labels_and_data(name, records):
    figure = FIGURES[name].plot(records)
    assert figure.get_figwidth() == WIDTH
    for ax in figure.axes:
        assert ax.has_data()
        assert ax.get_xlabel() or title(ax) or ax.get_ylabel()
    assert FIGURES[name].caption.endswith(".")
    assert legend_texts(figure)
    assert pyplot.get_fignums() == [], "a figure that pyplot knows is never freed"


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_without_its_data_is_left_out(name, tmp_path):
    empty = records_of(tmp_path / "empty", [])
    broken = records_of(tmp_path / "failed", [synthetic.failure(), synthetic.failure(error="other")])
    assert FIGURES[name].plot(empty) is None
    assert FIGURES[name].plot(broken) is None
    assert FIGURES[name].held(empty) == {}


def test_figures_of_an_axis_are_left_out_when_nothing_was_swept_along_it(tmp_path):
    one = records_of(tmp_path, synthetic.small(flows=("daf",), covariances=("code",), epsilons=(0.01,)), [])
    for plot in (plot_covariance, plot_flows, plot_counts, plot_axes):
        assert plot(one.results) is None
    for plot in (plot_convergence, plot_cost):
        assert plot(one.curves) is None
    for plot in (plot_alternations, plot_training):
        assert plot(one.curves, one.results) is None
    assert plot_comparison(one.results) is not None


def test_the_comparison_has_a_mark_for_every_flow_bound_and_level(records):
    figure = plot_comparison(records.results)
    (ax,) = figure.axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 3 + len(synthetic.BOUNDS) + 2
    assert names[-2:] == ["held-out: test_set", "held-out: chernoff"]
    marks = 2 * 3 + 2 * 2 * (len(synthetic.BOUNDS) + 2)
    assert len(ax.containers) == marks
    assert all(container.has_xerr for container in ax.containers)
    assert {"daf", "sflow", "ε = 0.01", "ε = 0.05"} <= set(legend_texts(figure))


def test_a_single_seed_has_no_error_bars(tmp_path):
    one = records_of(tmp_path, synthetic.small(seeds=(0,)))
    (ax,) = plot_comparison(one.results).axes
    assert not any(container.has_xerr for container in ax.containers)


def test_uncertified_values_are_hollow(tmp_path):
    estimates = records_of(tmp_path, synthetic.small(integrators=("qmc",)))
    figure = plot_comparison(estimates.results)
    faces = {str(line.get_markerfacecolor()) for c in figure.axes[0].containers[6:8] for line in c.lines[:1]}
    assert faces == {"white"}
    assert "not certified" in legend_texts(figure)


def test_every_certificate_is_a_point_against_the_test_risk(records):
    figure = plot_calibration(records.results)
    first = records.results[records.results["epsilon"].eq(synthetic.EPSILONS[0])]
    assert len(points(figure)) == first["value"].notna().sum()
    assert title(figure.axes[0]) == ""


def test_equal_bounds_are_drawn_once(tmp_path):
    rows = synthetic.small(bounds=("kl", "lambda", "quad"), epsilons=(0.05, 0.01))
    figure = plot_calibration(records_of(tmp_path / "equal", rows, []).results)
    assert legend_texts(figure)[:3] == ["kl", "lambda, quad", "test_set"]
    shown = [row for row in rows if row["epsilon"] == 0.05 and row["bound"] != "quad"]
    assert sorted(y for _, y in points(figure)) == pytest.approx(sorted(row["value"] for row in shown))
    other = [row | {"value": row["value"] + 0.01} if row["bound"] == "lambda" else row for row in rows]
    figure = plot_calibration(records_of(tmp_path / "other", other, []).results)
    assert {"lambda", "quad"} <= set(legend_texts(figure))


def test_arms_stand_side_by_side_and_the_dotted_line_is_explained(tmp_path):
    rows = [row for n in (10, 20) for row in synthetic.small(num_nodes=n, covariances=("code",), epsilons=(0.01,))]
    figure = plot_axes(records_of(tmp_path, rows, []).results)
    (ax,) = figure.axes
    assert ax.get_ylabel() == "risk"
    left, right = (ax.containers[i].lines[0].get_xdata() for i in (0, 2))
    assert all(a < b for a, b in zip(left, right, strict=True))
    lines = {handle.get_label(): handle.get_linestyle() for handle in figure.legends[0].legend_handles}
    assert (lines["certificate"], lines["Gibbs risk, test part"]) == ("-", ":")


def test_one_seed_has_no_deviation_in_any_caption(tmp_path):
    found = records_of(tmp_path, synthetic.small(seeds=(0,), bounds=("kl",)), [])
    captions = [picture.caption for picture in _figures(found, tmp_path / "figures")]
    assert any("One seed." in caption for caption in captions)
    assert not any("deviation" in caption for caption in captions)


def test_a_certified_value_below_the_test_risk_is_ringed_and_counted(tmp_path):
    rows = synthetic.small()
    for row in [row for row in rows if row["certified"] and row["bound"] == "kl"][:2]:
        row["value"] = row["test_risk"] / 2
    for row in [row for row in rows if not row["certified"]][:5]:
        row["value"] = row["test_risk"] / 2
    figure = plot_calibration(records_of(tmp_path, rows).results)
    assert title(figure.axes[0]) == "2 certified below the test risk"
    rings = [c for c in figure.axes[0].collections if c.get_label() == "below"]
    assert [len(ring.get_offsets()) for ring in rings] == [2]


def test_convergence_has_a_line_and_a_band_per_integrator_and_both_slopes(records):
    figure = plot_convergence(records.curves)
    (ax,) = figure.axes
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert len(ax.lines) == 4 + 2 + 1
    assert len(ax.collections) == 4
    slopes = [np.diff(np.log(line.get_ydata()))[0] / np.diff(np.log(line.get_xdata()))[0] for line in ax.lines[:2]]
    np.testing.assert_allclose(slopes, [-0.5, -1])
    assert legend_texts(figure)[-3:] == ["slope −1/2", "slope −1", "error of the reference"]


def test_the_reference_is_a_floor_and_no_curve(records):
    for plot in (plot_convergence, plot_cost):
        figure = plot(records.curves)
        (floor,) = [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]
        assert set(floor.get_ydata()) == {2e-5}
        low, high = figure.axes[0].get_ylim()
        assert low < 2e-5 < high
        assert figure.axes[0].get_xlim()[1] < 100_000
        older = plot(records.curves[records.curves["series"].ne("reference")])
        assert len(older.axes[0].lines) == len(figure.axes[0].lines) - 1
        assert "error of the reference" not in legend_texts(older)
        assert plot(records.curves[records.curves["series"].eq("reference")]) is None
    assert all("reference" in FIGURES[name].caption for name in ("convergence", "cost"))


def test_convergence_shows_the_recorded_numbers(records):
    recorded = records.curves[records.curves["kind"].eq("integration") & records.curves["series"].eq("qmc")]
    drawn = [line for line in plot_convergence(records.curves).axes[0].lines if line.get_marker() == "s"]
    np.testing.assert_allclose(drawn[0].get_ydata(), recorded.sort_values("x")["y"])


def test_cost_says_how_many_points_each_line_spans(records):
    figure = plot_cost(records.curves)
    assert len(figure.axes[0].lines) == 4 + 1
    assert legend_texts(figure)[0] == "mc, 16–16k"


def test_covariances_have_a_panel_per_flow_and_a_place_per_scale(records):
    figure = plot_covariance(records.results)
    assert [title(ax) for ax in figure.axes] == ["digits · daf", "digits · sflow"]
    assert [t.get_text() for t in figure.axes[-1].get_xticklabels()] == ["0.1", "0.3"]
    assert all(len(ax.containers) == 3 * 2 for ax in figure.axes)


def test_covariances_of_one_scale_are_places_themselves(tmp_path):
    figure = plot_covariance(records_of(tmp_path, synthetic.small()).results)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["code", "constant", "isotropic"]
    assert len(ax.containers) == 2 * 2


def test_a_covariance_that_finds_its_own_scale_stands_beside_the_scales(tmp_path):
    rows = synthetic.small(flows=("daf",), covariances=("code", "scaled"), scales=(0.1, 0.3))
    rows = [row | {"scale": None} if row["covariance"] == "scaled" else row for row in rows]
    rows = [row for row in rows if row["covariance"] != "scaled" or row["setting"] != rows[-1]["setting"]]
    (ax,) = plot_covariance(records_of(tmp_path, rows, []).results).axes
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.1", "0.3", "its own"]
    assert [len(container.lines[0].get_xdata()) for container in ax.containers] == [2, 1, 2, 1]


def test_scales_stand_by_their_logarithms(tmp_path):
    rows = synthetic.small(flows=("daf",), covariances=("code",), scales=(0.01, 0.1, 0.2), bounds=("kl",))
    (ax,) = plot_covariance(records_of(tmp_path, rows, []).results).axes
    first, second, third = ax.get_xticks()
    assert (second - first) / (third - second) == pytest.approx(np.log(10) / np.log(2))
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.01", "0.1", "0.2"]


def test_flows_show_every_seed(records):
    figure = plot_flows(records.results)
    assert len(points(figure)) == 4 * 2 * 3
    assert [t.get_text() for t in figure.axes[0].get_xticklabels()] == ["daf", "sflow"]


def test_flows_of_suites_with_different_levels_say_both(tmp_path):
    levels = {"a": 0.05, "b": 0.01}
    rows = [row for s, e in levels.items() for row in synthetic.small(suite=s, recipe=s, epsilons=(e,))]
    figure = plot_flows(records_of(tmp_path, rows, []).results)
    assert legend_texts(figure)[-1] == "certificate: kl, ε = 0.01 or 0.05"


def test_counts_have_a_panel_for_training_and_one_for_evaluation(records):
    figure = plot_counts(records.results)
    assert [ax.get_xlabel() for ax in figure.axes] == [f"points per datum in {w}" for w in ("training", "evaluation")]
    assert [t.get_text() for t in figure.axes[1].get_xticklabels()] == ["256", "4k"]


VALUES = {
    "num_nodes": (10, 20, 50), "horizon": (0.5, 1.0), "tolerance": (None, 1e-3, 1e-6), "backbone": ("large", "tinynet"),
    "certificate_fraction": (0.02, 0.2, 0.5), "objective": ("lambda", "prior"), "optimizer": ("adam", "sgd"),
}  # fmt: skip


NUMERIC = ("num_nodes", "horizon", "certificate_fraction")


@pytest.mark.parametrize("axis", VALUES)
def test_every_other_axis_has_a_panel(axis, tmp_path):
    one = {"covariances": ("code",), "bounds": ("kl",), "epsilons": (0.01,)}
    rows = [row for value in VALUES[axis] for row in synthetic.small(**one, **{axis: value})]
    found = records_of(tmp_path, rows, [])
    figure = plot_axes(found.results)
    (ax,) = figure.axes
    assert ax.get_xlabel() == OTHERS[axis]
    assert title(ax) == "digits"
    own = ["precision's\nown", "1e-06", "0.001"]
    names = own if axis == "tolerance" else [f"{value:g}" if axis in NUMERIC else value for value in VALUES[axis]]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == names
    assert len(ax.containers) == 2 * 2
    assert ax.get_xscale() == ("log" if axis == "certificate_fraction" else "linear")
    for value in VALUES[axis]:
        some = found.results[found.results["flow"].eq("daf") & found.results["bound"].eq("kl")]
        some = some[some["integrator"].eq("mc") & (some[axis].isna() if value is None else some[axis].eq(value))]
        assert len(some) == 3
        assert some["value"].mean() in ax.containers[0].lines[0].get_ydata()


def test_axes_without_a_figure_share_one_and_say_what_was_held(records, tmp_path):
    assert [axis for axis, *_ in swept(records.results)[0]] == ["epsilon"]
    assert "epsilon" not in FIGURES["axes"].held(records)
    assert FIGURES["axes"].held(records)["covariance"] == {"digits": ["code"]}
    rows = [row for n in (10, 20) for t in (1.0, 2.0) for row in synthetic.small(num_nodes=n, horizon=t)]
    found = records_of(tmp_path, rows, [])
    assert [ax.get_xlabel() for ax in plot_axes(found.results).axes] == ["nodes n", "horizon T", "ε"]
    held = FIGURES["axes"].held(found)
    assert [held[axis]["digits"] for axis in ("num_nodes", "horizon", "epsilon")] == [[10], [1.0], [0.01]]


def test_an_axis_that_differs_between_suites_only_was_not_swept(tmp_path):
    one = {"epsilons": (0.01,), "covariances": ("code",)}
    rows = [row for n in (10, 20) for row in synthetic.small(suite=f"n{n}", recipe=f"r{n}", num_nodes=n, **one)]
    assert plot_axes(records_of(tmp_path, rows, []).results) is None


def test_no_ablation_calls_an_estimate_a_certificate(tmp_path):
    rows = synthetic.small(integrators=("qmc",), num_points=(256, 4096), fit_points=(64, 256))
    estimates = records_of(tmp_path, rows, []).results
    for plot in (plot_covariance, plot_flows, plot_axes):
        assert not any(text.startswith("certificate") for text in legend_texts(plot(estimates)))
    figure = plot_counts(estimates)
    assert "not certified" in legend_texts(figure)
    assert {c.lines[0].get_markerfacecolor() for ax in figure.axes for c in ax.containers} == {"white"}


def test_alternations_and_training_have_a_line_per_posterior_and_prior(records):
    figure = plot_alternations(records.curves, records.results)
    assert [title(ax) for ax in figure.axes] == [
        "surrogate λ-bound (cross-entropy)", "λ", "KL", "cross-entropy",
    ]  # fmt: skip
    lines = [c for c in figure.axes[0].collections if hasattr(c, "get_segments")]
    assert sum(len(c.get_segments()) for c in lines) == 2 * 3 * 6 * 2 * 2
    figure = plot_training(records.curves, records.results)
    lines = [c for c in figure.axes[1].collections if hasattr(c, "get_segments")]
    assert sum(len(c.get_segments()) for c in lines) == 2 * 3


def test_time_counts_training_and_pushforward_once_per_prior(records):
    frame = spent(records.results)
    rows = records.results[records.results["error"].isna()]
    first = rows.drop_duplicates("prior").set_index("prior")
    assert len(frame) == 6
    np.testing.assert_allclose(frame["train"], first.loc[frame.index, "train_seconds"])
    np.testing.assert_allclose(frame["push"], first.loc[frame.index, "push_seconds"])
    fits = rows[rows["kl"].notna()].drop_duplicates(["prior", "covariance", "scale", "fit_points"])
    np.testing.assert_allclose(frame["fit"].sum(), fits["fit_seconds"].sum())
    cells = rows.drop_duplicates("cell")
    np.testing.assert_allclose(frame["integrate"].sum(), cells["integrate_seconds"].sum())
    assert len(plot_time(records.results).axes[0].patches) == 6 * 4


def test_many_priors_share_a_bar_per_flow(tmp_path):
    many = records_of(tmp_path, synthetic.small(seeds=tuple(range(10)), bounds=("kl",)), [])
    (ax,) = plot_time(many.results).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["daf (10 priors)", "sflow (10 priors)"]


def test_several_data_sets_are_never_averaged(tmp_path):
    rows = synthetic.small(fit_points=(256, 1024)) + synthetic.small(dataset="other", suite="o", fit_points=(64, 128))
    found = records_of(tmp_path, rows)
    assert len(plot_comparison(found.results).axes) == 2
    assert len(plot_flows(found.results).axes) == 2
    assert len(plot_counts(found.results).axes) == 2
    assert FIGURES["comparison"].held(found)["fit_points"] == {"digits": [1024], "o": [128]}


def test_suites_and_backbones_are_never_averaged(tmp_path):
    rows = [
        row | {"value": value}
        for suite, backbone, value in (("a", "tinynet", 0.3), ("b", "tinynet", 0.1), ("b", "large", 0.2))
        for row in synthetic.small(
            suite=suite, recipe=suite, backbone=backbone, scales=(0.1, 0.3), fit_points=(64, 256)
        )
    ]
    found = records_of(tmp_path, rows)
    figure = plot_comparison(found.results)
    arms = [f"{suite} · tinynet · {flow}" for suite in "ab" for flow in ("daf", "sflow")]
    assert {*arms, "b · large · daf", "b · large · sflow"} <= set(legend_texts(figure))
    colours = [handle.get_color() for handle in figure.legends[0].legend_handles[:6]]
    assert len(set(colours)) == 6
    assert [title(ax) for ax in plot_flows(found.results).axes] == [
        "digits · a · tinynet", "digits · b · tinynet", "digits · b · large",
    ]  # fmt: skip
    assert len(plot_covariance(found.results).axes) == 2 * 2
    counts = plot_counts(found.results)
    assert [title(ax) for ax in counts.axes] == ["digits · a", "digits · b"]
    heights = [{round(y, 6) for y in c.lines[0].get_ydata()} for ax in counts.axes for c in ax.containers]
    assert {0.3} in heights
    assert {0.1} in heights or {0.2} in heights


def test_the_plain_network_is_compared_too(tmp_path):
    rows = synthetic.small()
    plain = [
        row | {"method": "deterministic", "flow": "", "prior": f"plain{row['seed']}", "cell": f"plain{row['seed']}"}
        for row in rows
        if row["flow"] == "daf" and row["bound"] in ("test_set", "chernoff")
    ]
    figure = plot_comparison(records_of(tmp_path, rows + plain).results)
    assert legend_texts(figure)[:3] == ["daf", "sflow", "deterministic"]
    assert len(figure.axes[0].containers) == 2 * 3 + 1 + 2 * 2 * (len(synthetic.BOUNDS) + 2) + 2 * 2


def test_records_with_gaps_are_drawn_as_far_as_they_go(tmp_path):
    chance = random.Random(0)
    gaps = (None, None, 0.0, float("nan"), float("inf"))

    def spoil(row):
        return {k: chance.choice(gaps) if isinstance(v, float) and chance.random() < 0.2 else v for k, v in row.items()}

    def forget(row):
        return {k: None if k not in ("cell", "seed") and chance.random() < 0.1 else v for k, v in row.items()}

    rows = synthetic.small(seeds=(0, 1), bounds=("kl", "catoni"))
    found = records_of(tmp_path, [forget(spoil(row)) for row in rows], [spoil(row) for row in synthetic.curves(rows)])
    assert all(entry.plot(found) is not None for name, entry in FIGURES.items() if name != "counts")
    tables = {name: make(found) for name, make in TABLES.items() if name != "failures"}
    assert all(tables.values())
    assert "–" in page(found, [], tables)


def test_colours_tell_the_entries_of_a_kind_apart():
    for kind, colours in COLOURS.items():
        for (a, x), (b, y) in itertools.combinations(colours.items(), 2):
            assert x != y, (kind, a, b)


def test_names_that_look_like_formulas_or_scripts_are_drawn_as_they_are(nasty):
    figure = plot_comparison(read([nasty]).results)
    assert "a_b%$&#{x}^~\\|*`[l](u)" in legend_texts(figure)
    assert render(figure, "png")[:4] == b"\x89PNG"
    assert all(len(text) <= 40 for text in legend_texts(figure))
