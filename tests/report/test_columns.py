"""What can be swept can be seen: every axis has a column, and whatever has a column is shown without being named."""

from dataclasses import replace
from typing import Annotated, Literal, get_origin

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ldaf_bench.methods import METHODS
from ldaf_bench.report.figures import FIGURES
from ldaf_bench.report.figures.ablations import ELSEWHERE, other_axes, plot_sweep
from ldaf_bench.report.folder import report
from ldaf_bench.report.grouping import axes, hold
from ldaf_bench.report.names import axis_title, heading
from ldaf_bench.report.records import ReportError, read
from ldaf_bench.report.style import looks_of
from ldaf_bench.report.tables import certificates, keys
from ldaf_bench.results.record import columns_by_name, record_columns
from ldaf_bench.sections import Shown, Spec
from ldaf_bench.suite import Suite
from tests.report import synthetic

ONE = {"flows": ("daf",), "covariances": ("code",), "bounds": ("kl",), "epsilons": (0.01,), "integrators": ("mc",)}
SWEPT = {
    "flow": {"flows": ("daf", "sflow")}, "covariance": {"covariances": ("code", "paper")},
    "scale": {"scales": (0.1, 0.3)}, "fit_points": {"fit_points": (64, 128)},
    "integrator": {"integrators": ("mc", "bonferroni")}, "num_points": {"num_points": (64, 128)},
    "bound": {"bounds": ("kl", "quad")}, "epsilon": {"epsilons": (0.01, 0.05)},
}  # fmt: skip
"""Axes that `synthetic` sweeps itself."""
FIGURE = {"method": "comparison", "flow": "comparison", "bound": "comparison", "scale": "scale", "num_points": "points"}
"""Axes that have no panel among the others."""


def rows_of(folder, rows, lines=()):
    return read([synthetic.write(folder, rows, lines)]).results


def values_of(column):
    """Two values that the column can have."""
    if column.names():
        return column.names()[:2]
    return {int: (2, 8), float: (0.25, 0.5), bool: (False, True), str: ("a", "b")}[column.kind]


def sweep(folder, column):
    """Rows that differ in one axis only."""
    if column.name in SWEPT:
        return rows_of(folder, synthetic.small(**(ONE | SWEPT[column.name])))
    # `variant` is no column: it only gives each value names of its own.
    swept = ((value, synthetic.small(**ONE, variant=str(value))) for value in values_of(column))
    return rows_of(folder, [row | {column.name: value} for value, rows in swept for row in rows])


def test_every_axis_of_a_suite_is_a_column_with_its_place():
    specs = {spec for method in METHODS.values() for spec in method.specs}
    places = {f"methods.*.{field}" for spec in specs for field in spec.model_fields}
    for name in ("data", "networks", "risks", "certificates"):
        fields = Suite.model_fields[name].annotation.model_fields
        places |= {f"{name}.{field}" for field, info in fields.items() if get_origin(info.annotation) is tuple}
    places -= {"networks.seed", "risks.num_draws"}  # seeds repeat, and are averaged over; draws and points are both q
    assert len(places) > 20
    assert {axis.axis for axis in axes()} == places
    assert {column.axis for column in record_columns() if column.axis} == places | {"methods"}


@pytest.mark.parametrize("axis", [column.name for column in record_columns() if column.axis])
def test_every_axis_is_a_key_is_held_and_has_a_figure(axis, tmp_path):
    column = columns_by_name()[axis]
    results = sweep(tmp_path, column)
    found = set(results[axis].dropna()) - {""}
    assert len(found) > 1
    assert axis in keys(results)
    assert heading(axis) in certificates(results).header
    if axis in FIGURE:
        assert axis in ELSEWHERE | {"method"}
        assert FIGURES[FIGURE[axis]].plot(read([tmp_path])) is not None
    else:
        assert [panel.get_xlabel() for panel in plot_sweep(results, other_axes()).axes] == [axis_title(axis)]
    kept, held = hold(results, [])
    if axis == "method":  # methods are compared, never held
        assert set(kept[axis]) == found
    else:
        assert axis in held
        assert set(held) <= {axis, "bound"}  # mean classifiers have two bounds
        stochastic = kept[kept["classifier"].ne("mean")]
        assert stochastic[axis].nunique() == 1


class Extra(Spec):
    """Axes that this package has never heard of."""

    rank: Annotated[int | None, Shown("rank r", "largest", "full")] = None
    """Rank of the covariance; null: full."""
    shape: Literal["flat", "round"] = "flat"
    std: bool = False
    """Called like a word that tables use."""


def test_a_method_that_somebody_adds_brings_its_columns(tmp_path, monkeypatch):
    own = replace(METHODS["ldaf"], name="mine", head=METHODS["deterministic"].head, prior_axes=Extra)
    monkeypatch.setitem(METHODS, "mine", own)
    rows = [
        row | {"method": "mine", "rank": rank, "shape": shape, "std": std, "covariance": None, "scale": None,
               "flow": None, "setting": f"{row['setting']}{rank}{shape}{std}",
               "posterior": f"{row['posterior']}{rank}{shape}{std}",
               "integration": f"{row['integration']}{rank}{shape}{std}"}
        for rank in (None, 4, 16) for shape in ("flat", "round") for std in (False, True)
        for row in synthetic.small(**ONE) if row["classifier"] == "posterior"
    ]  # fmt: skip
    folder = synthetic.write(tmp_path, synthetic.small(**ONE) + rows)
    results = read([folder]).results
    header = certificates(results).header
    assert {"rank r", "shape", "std"} <= set(header)
    place = header.index("rank r")
    assert {row[place].text for row in certificates(results).rows} == {"–", "full", "4", "16"}
    figure = plot_sweep(results, other_axes())
    assert [ax.get_xlabel() for ax in figure.axes] == ["rank r", "shape", "std"]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["4", "16", "full"]
    assert figure.legends[0].get_texts()[0].get_text() == "mine"
    _, held = hold(results, [])
    assert {name: held[name]["digits", "mine"] for name in ("rank", "shape", "std")} == {
        "rank": [16], "shape": ["flat"], "std": [False],
    }  # fmt: skip
    page = report([folder], tmp_path).read_text()
    assert "rank r" in page
    assert "digits: the fitted posterior of ldaf · daf has the certificate" in page


def with_column(folder, name, values):
    table = pq.read_table(folder / "results.parquet")
    values = pa.array([values[index % len(values)] for index in range(len(table))])
    pq.write_table(table.append_column(name, values), folder / "results.parquet")


def test_columns_of_methods_that_are_unknown_now_are_kept(tmp_path):
    rows = [row | {"setting": f"{row['setting']}{row['integration']}"} for row in synthetic.small(seeds=(0,))]
    folder = synthetic.write(tmp_path / "a", rows)
    numbers = {setting: index % 2 for index, setting in enumerate(dict.fromkeys(row["setting"] for row in rows))}
    with_column(folder, "odd_axis", [f"<{numbers[row['setting']]}>" for row in rows])
    with_column(folder, "std", [float(numbers[row["setting"]]) for row in rows])
    with_column(folder, "an_outcome", list(range(len(rows))))
    results = read([folder]).results
    table = certificates(results)
    assert {"odd axis", "std"} <= set(table.header)
    assert "an outcome" not in table.header
    place = table.header.index("odd axis")
    assert {row[place].text for row in table.rows} == {"<0>", "<1>"}
    assert "&lt;1&gt;" in report([folder], tmp_path / "out").read_text()
    # Beside a folder without the column, it is missing there.
    both = read([folder, synthetic.write(tmp_path / "b", synthetic.small(suite="b", recipe="b"), [])]).results
    assert set(both[both["suite"].eq("b")]["odd_axis"]) == {""}
    assert both[both["suite"].eq("b")]["std"].isna().all()


def test_columns_of_methods_that_were_unknown_then_are_filled(tmp_path):
    folder = synthetic.write(tmp_path, synthetic.small())
    table = pq.read_table(folder / "results.parquet")
    gone = ["tolerance", "fit_epochs", "optimizer", "converged", "covariance", "scale", "flow"]
    pq.write_table(table.drop_columns(gone), folder / "results.parquet")
    results = read([folder]).results
    assert results["tolerance"].isna().all()
    assert results["fit_epochs"].dtype == "Int64"
    assert set(results["optimizer"]) == {""}
    assert set(results["_arm"]) == {"ldaf"}
    assert report([folder], tmp_path).is_file()


def test_a_column_of_two_types_is_refused_in_one_sentence(tmp_path):
    folders = [synthetic.write(tmp_path / name, synthetic.small(suite=name, recipe=name), []) for name in "ab"]
    with_column(folders[0], "odd", [1])
    with_column(folders[1], "odd", ["one"])
    with pytest.raises(ReportError, match=r"one name and several types.*\.$"):
        read(folders)


def test_the_same_name_looks_the_same_wherever_it_appears_and_unlike_its_neighbours():
    for kind in ("flow", "integrator", "bound", "covariance"):
        names = columns_by_name()[kind].names()
        together = looks_of(kind, names)
        assert list(together) == list(names)
        assert len(set(together.values())) == len(names)
        assert all(looks_of(kind, [name]) == {name: together[name]} for name in names)
    assert looks_of("bound", ["mine"]).items() <= looks_of("bound", ["kl", "mine"]).items()
