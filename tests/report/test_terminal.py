"""The summary at the end of a run: it fits the terminal, and every number is that of the comparison."""

import io
import re

import pytest
from rich.console import Console

from ldaf_bench.report.comparison import comparison
from ldaf_bench.report.names import percent
from ldaf_bench.report.records import read
from ldaf_bench.report.terminal import show_results
from ldaf_bench.theory.bounds import BOUNDS
from tests.report import synthetic


def shown(rows, width=80):
    console = Console(file=io.StringIO(), width=width)
    show_results(synthetic.results_table(rows), console)
    return console.file.getvalue()


def every_bound(**more):
    rows = synthetic.small(bounds=tuple(name for name, bound in BOUNDS.items() if "posterior" in bound.about), **more)
    return [*rows, *synthetic.unfitted(rows), *synthetic.plain(rows)]


@pytest.mark.parametrize("width", [80, 60])
@pytest.mark.parametrize("flows", [("daf", "sflow"), ("daf", "sflow", "linear", "one_more_flow")])
def test_it_fits_and_no_name_is_broken(width, flows):
    rows = every_bound(flows=flows)
    said = shown(rows, width)
    assert max(map(len, said.splitlines())) <= width
    for name in (name for name in BOUNDS if name != "betting"):  # which the made-up rows do not have
        assert f"fitted posterior: {name} " in said or f"mean classifier: {name} " in said
    for name in ("ldaf · daf", "ldaf · sflow", "deterministic", "unfitted prior: chernoff"):
        assert name in said
    assert "…" not in said


@pytest.mark.parametrize("width", [80, 60])
def test_nasty_names_fit_too(width):
    said = shown(synthetic.nasty(), width)
    assert said
    assert max(map(len, said.splitlines())) <= width
    assert "\x1b" not in said
    assert "\u202e" not in said


def test_every_number_is_that_of_the_comparison_at_the_first_level(tmp_path):
    rows = every_bound(epsilons=(0.05, 0.01))
    said = shown(rows, 100)
    frame, _ = comparison(read([synthetic.write(tmp_path, rows, [])]).results)
    cells = (re.split(r" {2,}", line.replace(" †", "†").strip()) for line in said.splitlines())
    lines = {name: values for name, *values in cells}
    arms = frame["_arm"].unique().tolist()
    assert len(arms) == 3
    for what, group in frame.groupby("_what"):
        own = group[group["epsilon"].isna() | group["epsilon"].eq(0.05)].set_index("_arm")
        bound = bool(own["bound"].iloc[0])
        values = [percent(own["_mean"][arm], up=bound) if arm in own.index else "–" for arm in arms]
        if bound:
            values = ["0.06", *(value if value == "–" else f"{value}†" for value in values)]
        assert lines[what] == values
    for sentence in (
        "Percent, 3 seeds.",
        "† Mean of certificates that hold together.",
        "Held fixed: covariance code, integrator mc.",
    ):
        assert sentence in " ".join(said.split())


def test_estimates_are_marked():
    said = shown(synthetic.small(integrators=("qmc",), seeds=(0,)))
    assert "An estimate is not certified." in said
    assert len(re.findall(r"fitted posterior: \w+ +estimate ", said)) == len(synthetic.BOUNDS)
    assert "Percent, 1 seed." in said
    assert "stimate" not in shown(synthetic.small(seeds=(0,)))


def test_seeds_that_failed_are_not_hidden():
    rows = [row for row in synthetic.small() if row["seed"] < 2 or row["flow"] == "daf"]
    assert "Percent, 2 to 3 seeds." in shown(rows)


def test_data_sets_have_a_table_each():
    rows = synthetic.small() + synthetic.small(dataset="other", suite="o", recipe="o")
    said = shown(rows)
    assert said.count("fitted posterior: kl_exact") == 2
    assert "\nother" in said


def test_nothing_gives_nothing():
    assert shown([]) == shown([synthetic.failure()]) == ""


def test_a_best_certificate_is_named_where_it_was_paid_for_and_nowhere_else():
    paid = every_bound()
    for row in paid:
        row["num_events"] = row["num_integrations"] = 10**6
    candidates = [row for row in paid if row["certified"] and row["classifier"] != "mean" and row["epsilon"] == 0.01]
    best = percent(min(row["value"] for row in candidates), up=True)
    assert f"the best certificate is {best} % and may fail" in " ".join(shown(paid, 100).split())
    unpaid = every_bound()
    for row in unpaid:
        row["num_events"] = row["num_integrations"] = 1
    assert "best" not in shown(unpaid, 100)
