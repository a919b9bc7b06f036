"""Nobody names a best certificate that was not paid for."""

import ast
import re
from pathlib import Path

import pytest

import ldaf_bench
from ldaf_bench.report.grouping import FIXED_CLASSIFIER, hold
from ldaf_bench.report.records import read
from ldaf_bench.report.selection import DETERMINISTIC, START, best_certificate, best_sentences
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


def searched(folder, suite, **changes):
    """A search that came by 4 of the 10 priors that its plan paid for."""
    asked = {"flows": ("daf",), "seeds": (0, 1), "covariances": ("code", "constant"), "bounds": ("kl",)}
    rows = synthetic.small(suite=suite, num_priors=10, num_integrations=10, **(asked | changes))
    return synthetic.write(folder / suite, rows, [])


def test_two_searches_did_not_pay_for_a_choice_among_both(tmp_path):
    folders = [searched(tmp_path, "a", recipe="long"), searched(tmp_path, "b", recipe="short")]
    results = read(folders).results
    rows = results[results["epsilon"].eq(0.01) & results["bound"].eq("kl")]
    # Four and four are fewer than ten, but twenty could have been picked.
    with pytest.raises(ValueError, match="several plans"):
        best_certificate(rows)
    for suite in ("a", "b"):
        assert best_certificate(rows[rows["suite"].eq(suite)])["suite"] == suite
    *sentences, warning = best_sentences(results)
    assert len(sentences) == 2 * 2
    for suite in ("a", "b"):
        assert sum(f"suite {suite}, ε" in s and "the best certificate is" in s for s in sentences) == 2
    assert "not paid for" in warning
    assert all("suite" not in sentence for sentence in best_sentences(read(folders[:1]).results))


def test_suites_of_another_rise_do_not_start_from_one_prior(tmp_path):
    # The rise is no column: the network, the covariance `scaled` and its scale are the same in both.
    one = {"flows": ("daf",), "seeds": (0,), "covariances": ("scaled",), "bounds": ("kl",), "num_priors": 1}
    rows = [synthetic.small(suite=suite, num_integrations=2, **one) for suite in ("low", "high")]
    rows[1] = [row | {"setting": f"{row['setting']} rises more"} for row in rows[1]]
    results = read([synthetic.write(tmp_path, rows[0] + rows[1], [])]).results
    rows = results[results["epsilon"].eq(0.01) & results["bound"].eq("kl")]
    assert len(rows[START].drop_duplicates()) == 1
    with pytest.raises(ValueError, match="several plans"):
        best_certificate(rows)


def test_rows_that_were_paid_for_differently_are_not_compared(tmp_path):
    rows = frame(tmp_path)
    rows["num_priors"] = rows["num_priors"].where(rows["flow"].eq("daf"), 1000)
    with pytest.raises(ValueError, match="different K or J"):
        best_certificate(rows)


def test_failed_priors_could_have_been_picked_too(tmp_path):
    one = {"flows": ("daf",), "seeds": (0,), "covariances": ("code",), "bounds": ("kl",), "num_integrations": 2}
    for paid in (1, 2):
        rows = [*synthetic.small(**one, num_priors=paid), synthetic.failure()]
        sentences = best_sentences(read([synthetic.write(tmp_path / str(paid), rows, [])]).results)
        assert all(("best of 2 priors cannot be named" in s) == (paid == 1) for s in sentences)


def test_a_best_is_named_with_all_that_was_paid(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.small(num_integrations=77), [])]).results
    sentences = best_sentences(results)
    assert len(sentences) == 2
    for sentence, epsilon in zip(sentences, ("0.01", "0.05"), strict=True):
        for said in (f"ε = {epsilon}", "K = 36", "δ′ = 0.01", "J = 77"):
            assert said in sentence


def test_a_best_without_chance_was_chosen_among_others_with(tmp_path):
    rows = synthetic.small(integrators=("mc", "bonferroni"))
    rows = [row | ({"delta": 0.0, "value": 0.01} if row.get("integrator") == "bonferroni" else {}) for row in rows]
    sentences = best_sentences(read([synthetic.write(tmp_path, rows, [])]).results)
    assert all("bonferroni" in sentence and "δ′ = 0.01" in sentence for sentence in sentences)


def test_what_is_held_fixed_does_not_depend_on_any_outcome(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.results(), [])]).results
    kept, held = hold(results, ["flow", "bound", "epsilon"])
    shuffled = results.assign(value=results["value"].to_numpy()[::-1], test_risk=0.5, risk=0.1)
    again, same = hold(shuffled, ["flow", "bound", "epsilon"])
    assert held == same
    assert {axis: suites["digits"] for axis, suites in held.items()} == {
        "covariance": ["code"], "scale": [0.1], "fit_points": [1024], "integrator": ["mc"], "num_points": [4096],
    }  # fmt: skip
    assert kept.index.equals(again.index)
    assert {"test_set", "kl"} <= set(kept["bound"])


@pytest.mark.parametrize(
    ("file", "name", "ours"),
    [("theory/bounds.py", "FIXED_CLASSIFIER", FIXED_CLASSIFIER), ("plan.py", "DETERMINISTIC", DETERMINISTIC)],
)
def test_the_report_knows_the_same_bounds_and_integrators_as_the_others(file, name, ours):
    # Read rather than imported, because torch takes longer to start than all of these tests.
    source = (Path(ldaf_bench.__file__).parent / file).read_text()
    (names,) = re.findall(rf"^{name} = frozenset\((.*)\)$", source, re.MULTILINE)
    assert ast.literal_eval(names) == ours
