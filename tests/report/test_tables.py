"""Tables hold the right numbers, say what was paid, and let no name out of its cell."""

import re

import pytest

from ldaf_bench.report.cells import Cell, Table
from ldaf_bench.report.grouping import hold, over_seeds
from ldaf_bench.report.markup import escape_latex, escape_markdown, to_latex, to_markdown
from ldaf_bench.report.names import percent, seconds
from ldaf_bench.report.records import read
from ldaf_bench.report.tables import (
    TABLES,
    certificates,
    comparison,
    failures,
    network_table,
    provenance,
    times,
)
from tests.report import synthetic


def dictionaries(table):
    return [dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows]


def test_certificates_are_mean_and_sd_over_seeds(records):
    table = certificates(records.results)
    results = records.results
    chosen = {"flow": "daf", "covariance": "code", "scale": 0.1, "fit_points": 256, "integrator": "mc",
              "num_points": 256, "bound": "quad", "epsilon": 0.05}  # fmt: skip
    rows = results
    for name, value in chosen.items():
        rows = rows[rows[name].eq(value)]
    assert len(rows) == 3
    (found,) = [
        row
        for row in dictionaries(table)
        if (row["flow"], row["covariance"], row["scale"], row["points in training"]) == ("daf", "code", "0.1", "256")
        and (row["integrator"], row["q"], row["bound"], row["ε"]) == ("mc", "256", "quad", "0.05")
    ]
    assert found["certificate (%)"] == percent(rows["value"].mean(), rows["value"].std(), up=True)
    assert found["risk, test part (%)"] == f"{100 * rows['test_risk'].mean():.2f} ± {100 * rows['test_risk'].std():.2f}"
    assert found["KL"] == f"{rows['kl_divergence'].mean():.2f}"
    assert found["certified"] == "yes"
    assert "seeds 3" in table.note
    assert found["K"] == str(rows["num_events"].iloc[0])


def test_every_configuration_is_one_row(records):
    done = records.results[records.results["value"].notna()]
    assert len(certificates(records.results).rows) == len(done) / 3


def test_certificates_say_what_was_paid_and_whether_they_are_certified(records):
    table = certificates(records.results)
    assert {"ε", "K", "J", "certified"} <= set(table.header)
    assert "δ′ 0.01" in table.note
    assert {row["certified"] for row in dictionaries(table) if row["integrator"] == "qmc"} == {"no"}
    assert "backbone tinynet" in table.note
    assert "backbone" not in table.header


def test_what_never_changes_is_said_once(tmp_path):
    rows = synthetic.small(seeds=(0,), flows=("daf",), covariances=("code",), epsilons=(0.01,), num_events=1)
    table = certificates(read([synthetic.write(tmp_path / "one", rows, [])]).results)
    assert table.header[:5] == ("classifier", "bound", "certificate (%)", "may fail", "certified")
    assert not {"data set", "flow", "covariance", "δ′", "K", "seeds"} & set(table.header)
    for said in ("data set digits", "flow daf", "covariance code", "ε 0.01", "δ′ 0.01", "K 1", " One seed. "):
        assert said in table.note
    assert "standard deviation" not in table.note
    assert "Percent. One seed." in comparison(read([tmp_path / "one"]).results).note
    some = synthetic.small(seeds=(0, 1, 2))
    some = [row for row in some if row["flow"] == "daf" or row["seed"] == 0]
    table = certificates(read([synthetic.write(tmp_path / "some", some, [])]).results)
    assert {(row["flow"], row["seeds"]) for row in dictionaries(table)} == {("daf", "3"), ("sflow", "1")}


def test_the_risk_of_a_row_is_that_of_its_classifier(records):
    found = dictionaries(certificates(records.results))
    errors = records.results[records.results["flow"].eq("daf")].drop_duplicates("network")["mean_error"]
    (shown,) = {r["risk, certificate part (%)"] for r in found if r["bound"] == "test_set" and r["flow"] == "daf"}
    assert shown == percent(errors.mean(), errors.std())


def note_of(folder, plan=None, **changes):
    return TABLES["certificates"](read([synthetic.write(folder, synthetic.small(**changes), [], plan)])).note


def test_the_note_says_whether_a_best_may_be_picked(tmp_path):
    # The mean classifiers of `small` pay for a choice among six.
    unpaid = [row | {"num_events": 1, "num_integrations": 1} for row in synthetic.small()]
    results = read([synthetic.write(tmp_path / "all", unpaid, [])]).results
    assert (
        "All results are reported and none is selected: each certificate uses the full ε and δ′."
        in certificates(results).note
    )
    assert "may be picked" not in certificates(results).note
    paid = note_of(tmp_path / "best")
    assert "The best one of a suite at one ε may be picked" in paid
    assert "at ε/K and each integration at δ′/J" in paid
    assert "none" not in paid
    mixed = note_of(tmp_path / "some", num_events=1, num_integrations=1)
    assert "Where K or J is above 1: The best" in mixed
    assert "All other rows are reported and none of them is selected" in mixed


def test_the_note_says_that_a_search_chose_the_rows(tmp_path):
    plan = {"suite": {"suite": "found", "search": {"searcher": "optuna", "samples": 4}}}
    note = note_of(tmp_path / "a", plan)
    assert "A search chose which posteriors were run (found). The budget covers the whole grid." in note
    for index, other in enumerate(({"suite": {"suite": "x", "search": None}}, [1], "suite", {"suite": 3}, None)):
        assert "search" not in note_of(tmp_path / str(index), other)


def two_recipes(folder, first, second, seeds):
    """Two suites that differ in what is no column, with certificates of 30 % and 10 %."""
    folders = []
    for suite, recipe, value, some in ((first, "long", 0.3, (0, 1, 2)), (second, "short", 0.1, seeds)):
        rows = [row | {"value": value} for row in synthetic.small(suite=suite, recipe=recipe, seeds=some)]
        folders.append(synthetic.write(folder / recipe, rows, []))
    return read(folders).results


LONG = "ablation_covariance_of_the_very_same_beginning_"


@pytest.mark.parametrize("seeds", [(0, 1, 2), (3, 4, 5)])
@pytest.mark.parametrize("names", [("a", "b"), ("a", "a"), (f"{LONG}1", f"{LONG}2")])
def test_other_classifiers_are_never_averaged(tmp_path, names, seeds):
    results = two_recipes(tmp_path, *names, seeds)
    rows = dictionaries(certificates(results))
    assert {row["certificate (%)"] for row in rows} == {"30.00 ± 0.00", "10.00 ± 0.00"}
    assert "seeds 3" in certificates(results).note
    assert len({row["suite"] for row in rows}) == 2
    table = comparison(results)
    assert len(set(table.header)) == 2 + 2 * 2
    for row in dictionaries(table):
        if "certificate" in row[""]:
            values = {value for name, value in row.items() if name not in ("", "may fail")}
            assert values == {"10.00 ± 0.00 †", "30.00 ± 0.00 †"}
    for axis in ("flow", "covariance", "fit_points"):
        found = over_seeds(results, [axis], "value")
        assert set(found["_mean"].round(6)) == {0.1, 0.3}


def test_one_plan_with_two_settings_is_not_averaged_either(tmp_path):
    one = {"flows": ("daf",), "covariances": ("code",), "bounds": ("kl",)}
    rows = [row | {"value": 0.3} for row in synthetic.small(**one, seeds=(0, 1))]
    rows += [row | {"value": 0.1, "setting": f"{row['setting']} rises"} for row in synthetic.small(**one, seeds=(2, 3))]
    results = read([synthetic.write(tmp_path, rows, [])]).results
    assert {row["certificate (%)"] for row in dictionaries(certificates(results))} == {"30.00 ± 0.00", "10.00 ± 0.00"}
    for row in dictionaries(comparison(results)):
        assert "20.00" not in row["digits, ldaf · daf"]


def test_different_outcomes_of_one_seed_are_never_averaged(tmp_path):
    rows = [row for row in synthetic.small(seeds=(0,), flows=("daf",), covariances=("code",)) if row["bound"] == "kl"]
    twice = [
        row | {"value": value, "integration": f"{row['integration']}{value}"} for row in rows for value in (0.3, 0.1)
    ]
    results = read([synthetic.write(tmp_path, twice, [])]).results
    assert sorted(over_seeds(results, [], "value")["_mean"]) == [0.1, 0.3]
    assert {row["certificate (%)"] for row in dictionaries(certificates(results))} == {"10.00", "30.00"}


def test_a_suite_by_itself_is_not_named_in_every_line(records):
    assert "suite" not in certificates(records.results).header
    assert "suite digits" in certificates(records.results).note


def test_the_precisions_own_tolerance_is_a_setting_like_any_other(tmp_path):
    rows = [row for tolerance in (None, 1e-3) for row in synthetic.small(tolerance=tolerance)]
    results = read([synthetic.write(tmp_path, rows, [])]).results
    shown = {row["Krylov tolerance"] for row in dictionaries(certificates(results))}
    assert shown == {"the precision's own", "0.001"}
    assert "Krylov tolerance the precision's own" in comparison(results).note
    kept, held = hold(results, ["flow"])
    assert held["tolerance"] == {("digits", "ldaf"): [None]}
    assert kept["tolerance"].isna().all()


def test_the_comparison_is_the_papers_table(records):
    table = comparison(records.results)
    assert table.header == ("", "may fail", "digits, ldaf · daf", "digits, ldaf · sflow")
    rows = {(row[""], row["may fail"]): row["digits, ldaf · sflow"] for row in dictionaries(table)}
    results = records.results[records.results["flow"].eq("sflow")]
    errors = results.drop_duplicates("network")["mean_test_error"]
    assert rows["mean classifier, test error", "–"] == percent(errors.mean(), errors.std())
    held = results[results["covariance"].eq("code") & results["scale"].eq(0.1) & results["fit_points"].eq(1024)]
    held = held[held["integrator"].eq("mc") & held["num_points"].eq(4096)]
    for bound in synthetic.BOUNDS:
        some = held[held["bound"].eq(bound) & held["epsilon"].eq(0.01)]["value"]
        shown = f"{percent(some.mean(), some.std(), up=True)} †"
        assert rows[f"certificate, fitted posterior: {bound}", "0.02"] == shown
    some = results[results["bound"].eq("test_set") & results["epsilon"].eq(0.05)]["value"]
    assert rows["certificate, mean classifier: test_set", "0.06"] == f"{percent(some.mean(), some.std(), up=True)} †"
    # Equal totals stand side by side.
    assert [fails for _, fails in rows] == [
        *["–"] * 3, *["0.02"] * (len(synthetic.BOUNDS) + 2), *["0.06"] * (len(synthetic.BOUNDS) + 2),
    ]  # fmt: skip
    for said in ("Held fixed: covariance code", "K = 72, δ′ = 0.01", "mean classifiers: K = 6."):
        assert said in table.note


def test_priors_have_lines_of_their_own_in_the_comparison(tmp_path):
    rows = synthetic.small(bounds=("kl",))
    rows += synthetic.unfitted(rows)
    results = read([synthetic.write(tmp_path, rows, [])]).results
    rows = dictionaries(comparison(results))
    found = {row[""]: row["digits, ldaf · daf"] for row in rows if row["may fail"] in ("–", "0.02")}
    names = [f"certificate, {who}: {b}" for who, b in (
        ("fitted posterior", "kl"), ("unfitted prior", "kl"), ("unfitted prior", "chernoff"),
        ("mean classifier", "test_set"), ("mean classifier", "chernoff"),
    )]  # fmt: skip
    assert [name for name in found if "certificate" in name] == names
    for classifier, name in (("posterior", names[0]), ("prior", names[2]), ("mean", names[4])):
        some = results[results["classifier"].eq(classifier) & results["epsilon"].eq(0.01) & results["flow"].eq("daf")]
        some = some[some["bound"].eq(name.split(": ")[1]) & some["integrator"].isin(["mc", ""])]
        some = some[some["covariance"].isin(["code", ""])]["value"]
        assert len(some) == 3
        assert found[name] == f"{percent(some.mean(), some.std(), up=True)} †"
    # A quantity that stands in the rows of both is shown once.
    assert all(";" not in value for value in found.values())


def test_a_bound_that_needs_another_integrator_is_compared_too(tmp_path):
    rows = synthetic.small(bounds=("kl",))
    priors = [row for row in synthetic.unfitted(rows) if row["integrator"] == "mc"]
    drawn = {"bound": "test_set", "event": synthetic.event("test_set"), "integrator": "one_draw", "num_points": None}
    counted = [
        row | drawn | {"delta": 0.0, "value": 0.0712, "integration": f"{row['integration']} one"}
        for row in priors
        if row["bound"] == "chernoff"
    ]
    table = comparison(read([synthetic.write(tmp_path, [*rows, *priors, *counted], [])]).results)
    names = [row[""] for row in dictionaries(table) if row["may fail"] == "0.02" and "prior" in row[""]]
    assert names == [f"certificate, unfitted prior: {bound}" for bound in ("kl", "test_set", "chernoff")]
    (shown,) = {row["digits, ldaf · daf"] for row in dictionaries(table) if row[""] == names[1]}
    assert shown == "7.12 ± 0.00 †"
    assert "integrator mc or one_draw" in table.note
    assert all(";" not in cell.text for row in table.rows for cell in row)


def test_what_differs_between_suites_was_not_held(tmp_path):
    rows = [
        row
        for suite, nodes, points in (("a", 6, (64, 256)), ("b", 10, (256,)))
        for row in synthetic.small(suite=suite, recipe=suite, num_nodes=nodes, fit_points=points, num_events=9)
    ]
    table = comparison(read([synthetic.write(tmp_path / "one", rows, [])]).results)
    assert table.header == (
        "",
        "may fail",
        *(f"digits, {suite} · ldaf · {flow}" for suite in "ab" for flow in ("daf", "sflow")),
    )
    held, differs = table.note.split("Differs between suites: ")
    assert differs.startswith("n (6 in a, 10 in b)")
    assert "So no single axis explains how their results differ." in differs
    assert "points in training 256" in held
    assert " or " not in held
    many = [row | {"suite": f"a{n}", "plan": f"a{n}", "num_nodes": n} for n in range(5) for row in rows[:40]]
    note = comparison(read([synthetic.write(tmp_path / "many", many, [])]).results).note
    assert "Differs between suites: n. So no single axis" in note
    other = [row | {"suite": "c", "plan": "c", "dataset": "other"} for row in rows if row["suite"] == "b"]
    rows = [row for row in rows if row["suite"] == "a"] + other
    table = comparison(read([synthetic.write(tmp_path / "two", rows, [])]).results)
    assert {"digits, a · ldaf · daf", "other, c · ldaf · daf"} <= set(table.header)


def test_estimates_are_marked_in_the_comparison(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.small(integrators=("qmc",)), [])]).results
    table = comparison(results)
    estimates = {row[""] for row in dictionaries(table) if row["may fail"] == "estimate"}
    levels = [f"{bound}, ε = {epsilon}" for bound in synthetic.BOUNDS for epsilon in ("0.01", "0.05")]
    assert estimates == {f"estimate, fitted posterior: {level}" for level in levels}
    assert "not certified" in table.note
    rows = dictionaries(certificates(results))
    told = {(row["classifier"], row["certified"], row["may fail"]) for row in rows}
    assert told == {("fitted posterior", "no", "estimate"), *(("mean classifier", "yes", t) for t in ("0.02", "0.06"))}


def test_networks_are_listed_once(records):
    table = network_table(records.results)
    assert len(table.rows) == 6
    assert table.header == ("network", "flow", "seed", "mean classifier, test (%)", "train", "digest")


def test_failures_are_listed_with_what_they_are_and_their_error(records):
    table = failures(records.results)
    assert [row["error"] for row in dictionaries(table)] == ["OutOfMemoryError: nothing left"]
    assert "covariance dense" in table.note


def test_times_add_up_from_raw_data_to_a_certificate(records):
    rows = dictionaries(times(records.results))
    (found,) = [
        row
        for row in rows
        if (row["flow"], row["classifier"], row["integrator"], row["q"]) == ("daf", "fitted posterior", "mc", "256")
    ]
    own = records.results
    for name, value in {"flow": "daf", "classifier": "posterior", "integrator": "mc", "num_points": 256}.items():
        own = own[own[name].eq(value)]
    own = own[own["value"].notna()].drop_duplicates("integration")
    stages = ("train", "digest", "fit", "integrate")
    means = [float(own[f"{stage}_seconds"].mean()) for stage in stages]
    assert [found[stage] for stage in stages] == [seconds(value) for value in means]
    assert found["all of it"] == seconds(sum(means))
    assert found["train, share (%)"] == f"{100 * means[0] / sum(means):.1f}"
    mean = [row for row in rows if row["classifier"] == "mean classifier"]
    assert {row["integrate"] for row in mean} == {row["integration adds (%)"] for row in mean} == {"–"}


def test_tables_without_rows_are_left_out(tmp_path):
    nothing = read([synthetic.write(tmp_path, [], [])])
    assert all(make(nothing) is None for make in TABLES.values())
    assert provenance(nothing.results) is None


def test_provenance_says_versions_commits_and_times(records):
    rows = dictionaries(provenance(records.results))
    assert rows[0]["commit"] == "0123abc"
    assert rows[0]["first"] == "2026-01-02 03:04 UTC"


def test_large_seeds_survive(tmp_path):
    seed = 2**62 - 1
    rows = [*synthetic.small(seeds=(seed, 1)), synthetic.failure()]
    table = network_table(read([synthetic.write(tmp_path, rows, [])]).results)
    assert str(seed) in {row["seed"] for row in dictionaries(table)}


@pytest.mark.parametrize("text", [*synthetic.NASTY, synthetic.UNICODE, "\\", "a|b", "50% $x$", "[*]"])
def test_no_name_leaves_its_cell(text):
    table = Table(text, ("a", text), ((Cell(text, text), Cell("1", 1.0)),), text)
    lines = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    for line in lines:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line
        assert "<script" not in line.replace("\\<", "")
    for line in to_latex(table).splitlines():
        if line.startswith("{}") or line.endswith("\\\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == 1, line
            assert not re.search(r"(?<!\\)[%#]", line), line


def test_latex_is_escaped():
    assert escape_latex("a_b%$&#{x}^~\\") == (r"a\_b\%\$\&\#\{x\}\textasciicircum{}\textasciitilde{}\textbackslash{}")
    assert escape_latex("6.36 ± 0.12") == r"6.36 $\pm$ 0.12"


def test_markdown_is_escaped():
    assert escape_markdown("a_b|c<d>`e`*f*[g](h)") == r"a\_b\|c\<d\>\`e\`\*f\*\[g\](h)"


def test_latex_tables_are_balanced_and_long_ones_break(records):
    short, long = to_latex(comparison(records.results)), to_latex(certificates(records.results))
    assert r"\begin{tabular}{lrrr}" in short
    assert r"\end{tabular}" in short
    assert r"\begin{longtable}" in long
    assert r"\endhead" in long
