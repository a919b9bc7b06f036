"""Every figure shows what it says, and none is made of nothing."""

import itertools
import random
import warnings
from pathlib import Path

import numpy as np
import pytest
from matplotlib import pyplot, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection

from ldaf_bench.report.figures import FIGURES
from ldaf_bench.report.figures.integration import plot_convergence, plot_cost, plot_price
from ldaf_bench.report.figures.progress import plot_fit, plot_time, plot_training, spent
from ldaf_bench.report.figures.risks import compared, plot_calibration, plot_comparison
from ldaf_bench.report.folder import _figures, render
from ldaf_bench.report.page import SUMMARY, page
from ldaf_bench.report.records import read
from ldaf_bench.report.style import THEME, WIDTH, looks_of
from ldaf_bench.report.tables import TABLES
from tests.report import synthetic

PUBLISHED = Path(__file__).parents[2] / "results" / "published"


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


def test_the_comparison_has_a_mark_for_every_flow_bound_and_level(records):
    figure = plot_comparison(records.results)
    (ax,) = figure.axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(names) == 3 + len(synthetic.BOUNDS) + 2
    assert names[-2:] == ["mean classifier: test_set †", "mean classifier: chernoff †"]
    marks = 2 * 3 + 2 * 2 * (len(synthetic.BOUNDS) + 2)
    assert len(ax.containers) == marks
    assert all(container.has_xerr for container in ax.containers)
    assert {"ldaf · daf", "ldaf · sflow", "may fail 0.02", "may fail 0.06"} <= set(legend_texts(figure))


def test_a_long_comparison_shows_the_smallest_bound_of_each_inequality():
    """Errors of one draw and Gibbs risks have inequalities of their own; a mean of certificates stands apart."""
    published = read([PUBLISHED / "fashion_cpu"])
    (ax,) = plot_comparison(published.results).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    for who in ("fitted posterior", "unfitted prior"):
        shown = {name.split(": ")[1] for name in names if name.startswith(f"{who}: ")}
        assert shown & {"kl_exact", "kl", "quad", "lambda", "classic"} == {"kl_exact"}
        assert {"catoni", "catoni_grid", "split_kl *"} <= shown
    assert {f"unfitted prior: {bound}" for bound in ("chernoff", "betting", "test_set *")} <= set(names)
    assert {f"mean classifier: {bound}" for bound in ("chernoff", "betting", "test_set *")} <= set(names)
    left, right = ax.get_xlim()
    assert 0.05 < left < right < 0.07  # zero is far away


def test_every_suite_of_a_long_comparison_keeps_its_smallest_bounds(tmp_path):
    """A suite without the smallest bound of another one shows its own; the first ε is that of the suite file."""
    both = {"seeds": (0,), "epsilons": (0.05, 0.01)}
    rows = synthetic.small(suite="a", recipe="a", **both)
    rows += synthetic.small(suite="b", recipe="b", bounds=("kl", "quad"), **both)
    found = compared(records_of(tmp_path, rows, []).results)
    bounds = found[found["classifier"].eq("posterior")]
    shown = {suite: set(part["bound"]) for suite, part in bounds.groupby("suite")}
    assert "kl_exact" in shown["a"]
    assert "kl" not in shown["a"]
    assert shown["b"] == {"kl"}
    assert set(bounds["epsilon"]) == {0.05}


def test_bars_of_several_suites_have_names_of_their_own():
    folders = [
        Path(__file__).parents[2] / "results" / "published" / name for name in ("fashion_headline", "fashion_cpu")
    ]
    (ax,) = plot_time(read(folders).results).axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert len(set(names)) == len(names) == 11
    assert "fashion_headline · ldaf · daf · seed 0" in names


def test_arms_of_many_suites_are_told_apart_by_panels():
    """There are ten colours: beyond, each suite has a panel, in which each arm has a colour of its own."""
    folders = sorted(path.parent for path in PUBLISHED.glob("*/plan.json"))
    figure = plot_comparison(read(folders).results)
    titles = [title(ax) for ax in figure.axes]
    assert {text.split("·")[-1].strip() for text in titles} == {folder.name for folder in folders}
    (legend,) = figure.legends
    paints = [handle.get_color() for handle in legend.legend_handles]
    assert len(set(paints)) == len(paints) == 7  # six arms, and the grey of "may fail"
    two = plot_comparison(read([PUBLISHED / "fashion_headline", PUBLISHED / "cifar_wide"]).results)
    assert [title(ax) for ax in two.axes] == ["fashionmnist", "cifar10"]


def test_a_divergence_that_starts_at_rounding_keeps_the_numbers_of_its_axis():
    published = read([PUBLISHED / "cifar_headline"])
    figure = plot_fit(published.curves, published.results)
    FigureCanvasAgg(figure).draw()
    for ax in figure.axes:
        low, high = ax.get_ylim()
        assert sum(low <= tick <= high for tick in ax.get_yticks()) >= 2, title(ax)


def test_the_price_of_integrations_is_what_their_guarantees_add():
    """Each random integration once, whatever the number of its certificates; estimates and `bonferroni` have none."""
    published = read([PUBLISHED / "fashion_headline"]).results
    (ax,) = plot_price(published).axes
    drawn = {(x, round(y, 9)) for line in ax.lines for x, y in zip(*line.get_data(), strict=True)}
    rows = published[published["integrator"].eq("mc") & published["risk_upper"].notna()]
    added = 100 * (rows["risk_upper"] - rows["risk"])
    assert drawn == set(zip(rows["integrate_seconds"], added.round(9), strict=True))
    assert len(drawn) == rows["integration"].nunique() == 20


def test_a_single_seed_has_no_error_bars(tmp_path):
    one = records_of(tmp_path, synthetic.small(seeds=(0,)))
    (ax,) = plot_comparison(one.results).axes
    assert not any(container.has_xerr for container in ax.containers)


def test_uncertified_values_are_hollow(tmp_path):
    estimates = records_of(tmp_path, synthetic.small(integrators=("qmc",)))
    figure = plot_comparison(estimates.results)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert [name for name in names if "posterior: kl" in name] == [f"fitted posterior: {b}" for b in ("kl_exact", "kl")]
    faces = [str(line.get_markerfacecolor()) for c in figure.axes[0].containers for line in c.lines[:1]]
    assert faces.count("white") == 2 * 2 * len(synthetic.BOUNDS)
    assert {"estimate, ε = 0.01", "estimate, ε = 0.05", "may fail 0.02"} <= set(legend_texts(figure))


def test_every_certificate_is_a_point_against_the_test_risk(records):
    figure = plot_calibration(records.results)
    first = records.results[records.results["epsilon"].eq(synthetic.EPSILONS[0])]
    assert len(points(figure)) == first["value"].notna().sum()
    assert title(figure.axes[0]) == ""


def test_equal_bounds_are_drawn_once_whatever_they_are_called(tmp_path):
    rows = synthetic.small(bounds=("kl", "lambda", "quad", "mine"), epsilons=(0.05, 0.01))
    figure = plot_calibration(records_of(tmp_path / "equal", rows, []).results)
    assert legend_texts(figure)[:4] == ["kl", "quad, lambda, mine", "test_set", "chernoff"]
    shown = [row for row in rows if row["epsilon"] == 0.05 and row["bound"] not in ("lambda", "mine")]
    assert sorted(y for _, y in points(figure)) == pytest.approx(sorted(row["value"] for row in shown))
    other = [row for row in rows if row["bound"] != "mine"]
    one = next(row for row in other if row["bound"] == "lambda" and row["epsilon"] == 0.05)
    one["value"] += 0.001
    figure = plot_calibration(records_of(tmp_path / "other", other, []).results)
    assert {"lambda", "quad"} <= set(legend_texts(figure))
    # Bounds that agree where both are, but are not about the same rows, are two.
    fewer = [row for row in rows if row["bound"] != "lambda" or row["flow"] == "daf"]
    figure = plot_calibration(records_of(tmp_path / "fewer", fewer, []).results)
    assert {"lambda", "quad, mine"} <= set(legend_texts(figure))


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
    _, marker = looks_of("integrator", ["qmc"])["qmc"]
    drawn = [line for line in plot_convergence(records.curves).axes[0].lines if line.get_marker() == marker]
    np.testing.assert_allclose(drawn[0].get_ydata(), recorded.sort_values("x")["y"])


def test_cost_says_how_many_points_each_line_spans(records):
    figure = plot_cost(records.curves)
    assert len(figure.axes[0].lines) == 4 + 1
    assert legend_texts(figure)[0] == "mc, 16–16k"


def test_every_series_of_fit_and_training_has_a_panel_and_every_posterior_a_line(records):
    figure = plot_fit(records.curves, records.results)
    assert [title(ax) for ax in figure.axes] == ["bound", "cross entropy", "divergence", "λ"]
    lines = [c for c in figure.axes[0].collections if hasattr(c, "get_segments")]
    assert sum(len(c.get_segments()) for c in lines) == 2 * 3 * 6 * 2
    assert legend_texts(figure) == ["code", "constant", "isotropic"]
    figure = plot_training(records.curves, records.results)
    assert [title(ax) for ax in figure.axes][:3] == ["loss", "accuracy", "images per second"]
    lines = [c for c in figure.axes[1].collections if hasattr(c, "get_segments")]
    assert sum(len(c.get_segments()) for c in lines) == 2 * 3
    assert legend_texts(figure) == ["ldaf · daf", "ldaf · sflow"]


def test_a_fit_may_have_series_that_nobody_knows_and_no_row(tmp_path):
    rows = synthetic.small(covariances=("code",))
    lines = [line | {"series": "free_energy"} for line in synthetic.curves(rows) if line["series"] == "bound"]
    found = records_of(tmp_path, rows, [*lines, lines[0] | {"posterior": "lost"}])
    figure = plot_fit(found.curves, found.results)
    assert [title(ax) for ax in figure.axes] == ["free energy"]
    assert legend_texts(figure) == ["ldaf · daf", "ldaf · sflow", "unknown"]


def test_time_counts_everything_once(records):
    frame = spent(records.results)
    rows = records.results[records.results["error"].isna()]
    first = rows.drop_duplicates("network").set_index("network")
    assert len(frame) == 6
    for stage in ("train_seconds", "digest_seconds"):
        np.testing.assert_allclose(frame[stage], first.loc[frame.index, stage])
    fits = rows[rows["lam"].notna()].drop_duplicates(["network", "covariance", "scale", "fit_points"])
    np.testing.assert_allclose(frame["fit_seconds"].sum(), fits["fit_seconds"].sum())
    once = rows.drop_duplicates("integration")
    np.testing.assert_allclose(frame["integrate_seconds"].sum(), once["integrate_seconds"].sum())
    assert len(plot_time(records.results).axes[0].patches) == 6 * 4


def test_each_digest_of_a_network_counts(tmp_path):
    rows = synthetic.small(covariances=("code",), seeds=(0,), flows=("daf",))
    again = [row | {"tolerance": 0.1, "digest_seconds": 7.5, "integration": row["integration"] + "x"} for row in rows]
    frame = spent(records_of(tmp_path, rows + again, []).results)
    assert frame["digest_seconds"].tolist() == [pytest.approx(rows[0]["digest_seconds"] + 7.5)]
    assert frame["train_seconds"].tolist() == [pytest.approx(rows[0]["train_seconds"])]


def test_many_networks_share_a_bar_per_arm(tmp_path):
    many = records_of(tmp_path, synthetic.small(seeds=tuple(range(10)), bounds=("kl",)), [])
    (ax,) = plot_time(many.results).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"ldaf · {flow} (10 networks)" for flow in ("daf", "sflow")]


def test_the_plain_network_is_compared_too(tmp_path):
    rows = synthetic.small()
    figure = plot_comparison(records_of(tmp_path, rows + synthetic.plain(rows), []).results)
    assert legend_texts(figure)[:3] == ["ldaf · daf", "ldaf · sflow", "deterministic"]
    assert len(figure.axes[0].containers) == 2 * 3 + 1 + 2 * 2 * (len(synthetic.BOUNDS) + 2) + 2 * 2


def test_records_with_gaps_are_drawn_as_far_as_they_go(tmp_path):
    chance = random.Random(0)
    gaps = (None, None, 0.0, float("nan"), float("inf"))

    def spoil(row):
        return {k: chance.choice(gaps) if isinstance(v, float) and chance.random() < 0.2 else v for k, v in row.items()}

    def forget(row):
        return {k: None if k not in ("integration", "seed") and chance.random() < 0.1 else v for k, v in row.items()}

    rows = synthetic.small(seeds=(0, 1), bounds=("kl", "catoni"))
    found = records_of(tmp_path, [forget(spoil(row)) for row in rows], [spoil(row) for row in synthetic.curves(rows)])
    assert all(entry.plot(found) is not None for name, entry in FIGURES.items() if name not in ("scale", "points"))
    tables = {name: make(found) for name, make in TABLES.items() if name not in (*SUMMARY, "failures", "reference")}
    assert all(tables.values())
    assert "–" in page(found, [], tables)


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("source", ["sweep", "nasty"])
def test_nothing_is_cut_off_and_nothing_covers_another(name, source, sweep, nasty):
    figure = FIGURES[name].plot(read([{"sweep": sweep, "nasty": nasty}[source]]))
    if figure is None:
        assert source == "nasty"
        assert name in ("scale", "points")  # they were not swept
        return
    canvas = FigureCanvasAgg(figure)
    with rc_context(THEME), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas.draw()
        renderer = canvas.get_renderer()
        panels = [ax.get_tightbbox(renderer) for ax in figure.axes]
        legend = figure.legends[0].get_window_extent(renderer)
    page = figure.bbox.padded(1)
    assert panels
    for box in (*panels, legend):
        assert page.contains(*box.p0), box
        assert page.contains(*box.p1), box
    assert not any(one.overlaps(other) for one, other in itertools.combinations([*panels, legend], 2))


def test_names_that_look_like_formulas_or_scripts_are_drawn_as_they_are(nasty):
    figure = plot_comparison(read([nasty]).results)
    assert "ldaf · a_b%$&#{x}^~\\|*`[l](u)" in legend_texts(figure)
    assert render(figure, "png")[:4] == b"\x89PNG"
    assert all(len(text) <= 40 for text in legend_texts(figure))
