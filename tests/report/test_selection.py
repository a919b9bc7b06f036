"""Nobody names a best certificate that was not paid for."""

import ast
import re
from pathlib import Path

import pytest

import ldaf_bench
from ldaf_bench.report.grouping import FIXED_CLASSIFIER, hold
from ldaf_bench.report.records import read
from ldaf_bench.report.selection import DETERMINISTIC, best_certificate, best_sentences
from tests.report import synthetic


def frame(folder, **changes):
    results = read([synthetic.write(folder, synthetic.small(**changes), [])]).results
    return results[results["epsilon"].eq(0.01) & ~results["bound"].isin(FIXED_CLASSIFIER)]


def test_a_best_that_was_paid_for_is_the_smallest_certified_value(tmp_path):
    rows = frame(tmp_path)
    best = best_certificate(rows)
    assert best["value"] == rows[rows["certified"].eq(True)]["value"].min()


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    rows = frame(tmp_path)
    rows = rows.assign(value=0.5)
    assert best_certificate(rows)["cell"] == best_certificate(rows.iloc[::-1])["cell"]


def test_more_priors_than_were_paid_for_are_refused(tmp_path):
    starts = 2 * 3 * 3
    paid = frame(tmp_path / "a", bounds=("kl", "quad"), num_priors=starts)
    assert best_certificate(paid)["bound"] == "kl"
    with pytest.raises(ValueError, match=r"best of 18 priors .* divided for 17 only"):
        best_certificate(frame(tmp_path / "b", bounds=("kl", "quad"), num_priors=starts - 1))


def test_catoni_counts_beside_the_others(tmp_path):
    with pytest.raises(ValueError, match="best of 36 priors"):
        best_certificate(frame(tmp_path, bounds=("kl", "catoni"), num_priors=18))


def test_more_integrations_than_were_paid_for_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"best of 18 integrations .* divided for 17 only"):
        best_certificate(frame(tmp_path, num_integrations=17))


def test_integrations_without_chance_cost_nothing(tmp_path):
    rows = frame(tmp_path, integrators=("bonferroni",), num_integrations=1)
    assert best_certificate(rows)["integrator"] in DETERMINISTIC


def test_uncertified_rows_are_no_candidates_and_cost_nothing(tmp_path):
    rows = frame(tmp_path, integrators=("mc", "qmc"))
    estimate = rows["certified"].ne(True)
    rows.loc[estimate, "value"] = 0.0
    rows.loc[estimate, "num_priors"] = 1
    assert best_certificate(rows)["integrator"] == "mc"
    with pytest.raises(ValueError, match="no best one to name"):
        best_certificate(rows[estimate])


def test_failed_cells_are_no_candidates(tmp_path):
    rows = read([synthetic.write(tmp_path, [synthetic.failure()], [])]).results
    with pytest.raises(ValueError, match="no best one to name"):
        best_certificate(rows)


def test_levels_data_sets_and_kinds_of_classifiers_are_not_mixed(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.small(), [])]).results
    with pytest.raises(ValueError, match="several levels ε"):
        best_certificate(results)
    with pytest.raises(ValueError, match="mean and of stochastic"):
        best_certificate(results[results["epsilon"].eq(0.01)])
    other = results[results["epsilon"].eq(0.01)]
    other = other.assign(dataset=other["flow"])
    with pytest.raises(ValueError, match="several data sets"):
        best_certificate(other)
    fixed = results[results["epsilon"].eq(0.01) & results["bound"].eq("test_set")]
    assert best_certificate(fixed)["value"] == fixed["value"].min()


def test_suites_put_together_did_not_pay_for_a_choice_among_all(tmp_path):
    folders = [synthetic.write(tmp_path / name, synthetic.small(suite=name), []) for name in ("a", "b")]
    results = read(folders).results
    sentences = best_sentences(results)
    assert len(sentences) == 2
    assert all("cannot be named" in sentence for sentence in sentences)
    assert all("the best certificate is" in sentence for sentence in best_sentences(read(folders[:1]).results))


def test_what_is_held_fixed_does_not_depend_on_any_outcome(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.results(), [])]).results
    kept, held = hold(results, ["flow", "bound", "epsilon"])
    shuffled = results.assign(value=results["value"].to_numpy()[::-1], test_risk=0.5, risk=0.1)
    again, same = hold(shuffled, ["flow", "bound", "epsilon"])
    assert held == same == {
        "covariance": ["code"], "scale": [0.1], "fit_points": [1024], "integrator": ["mc"], "num_points": [4096],
    }  # fmt: skip
    assert kept.index.equals(again.index)
    assert {"test_set", "kl"} <= set(kept["bound"])


def test_the_report_knows_the_same_fixed_classifiers_as_the_theory():
    # Read rather than imported, because torch takes longer to start than all of these tests.
    source = (Path(ldaf_bench.__file__).parent / "theory" / "bounds.py").read_text()
    (names,) = re.findall(r"^FIXED_CLASSIFIER = frozenset\((.*)\)$", source, re.MULTILINE)
    assert ast.literal_eval(names) == FIXED_CLASSIFIER
