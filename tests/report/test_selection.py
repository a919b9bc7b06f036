"""Nobody names a best certificate that was not paid for."""

import numpy as np
import pandas
import pytest

from ldaf_bench.report.grouping import hold, is_mean
from ldaf_bench.report.records import read
from ldaf_bench.report.selection import best_certificate, best_sentences
from tests.report import synthetic


def frame(folder, **changes):
    results = read([synthetic.write(folder, synthetic.small(**changes), [])]).results
    return results[results["epsilon"].eq(0.01) & ~is_mean(results)]


def test_a_best_that_was_paid_for_is_the_smallest_certified_value(tmp_path):
    rows = frame(tmp_path)
    best = best_certificate(rows)
    assert best["value"] == rows[rows["certified"].eq(True)]["value"].min()


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    rows = frame(tmp_path)
    rows = rows.assign(value=0.5)
    assert best_certificate(rows)["integration"] == best_certificate(rows.iloc[::-1])["integration"]


def test_more_events_than_were_paid_for_are_refused(tmp_path):
    starts = 2 * 3 * 3
    paid = frame(tmp_path / "a", bounds=("kl", "quad"), num_events=starts)
    assert best_certificate(paid)["bound"] == "kl"
    with pytest.raises(ValueError, match=r"best of 18 events .* divided by 17 only"):
        best_certificate(frame(tmp_path / "b", bounds=("kl", "quad"), num_events=starts - 1))


def test_a_bound_that_rests_on_another_event_counts_beside_the_others(tmp_path):
    with pytest.raises(ValueError, match="best of 36 events"):
        best_certificate(frame(tmp_path, bounds=("kl", "catoni"), num_events=18))


def test_posteriors_of_one_prior_share_its_event(tmp_path):
    asked = {"flows": ("daf",), "seeds": (0,), "covariances": ("code",), "bounds": ("kl",), "num_integrations": 8}
    rows = frame(tmp_path / "fit", fit_points=(64, 256), num_events=1, **asked)
    assert rows["posterior"].nunique() == 2
    assert best_certificate(rows)["bound"] == "kl"
    with pytest.raises(ValueError, match="best of 2 events"):
        best_certificate(frame(tmp_path / "start", scales=(0.1, 0.2), num_events=1, **asked))


def test_an_unfitted_prior_is_a_candidate_and_its_own_event_counts(tmp_path):
    asked = {"flows": ("daf",), "seeds": (0,), "covariances": ("code",), "bounds": ("kl",), "num_integrations": 2}
    for paid in (1, 2):
        rows = synthetic.small(num_events=paid, **asked)
        rows = read([synthetic.write(tmp_path / str(paid), rows + synthetic.unfitted(rows), [])]).results
        rows = rows[rows["epsilon"].eq(0.01) & ~is_mean(rows)]
        assert set(rows["classifier"]) == {"posterior", "prior"}
        if paid == 1:
            with pytest.raises(ValueError, match="best of 2 events"):
                best_certificate(rows)
        else:
            assert best_certificate(rows)["value"] == rows[rows["certified"].eq(True)]["value"].min()


def test_more_integrations_than_were_paid_for_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"best of 18 guarantees of integrations .* divided by 17 only"):
        best_certificate(frame(tmp_path, num_integrations=17))


def test_the_ends_of_a_risk_and_of_its_excess_are_two_guarantees_of_one_integration(tmp_path):
    """Rows without an upper end of the risk that spend δ′ rest on ends of the excess."""
    rows = frame(tmp_path, num_integrations=18)
    best_certificate(rows)
    excess = rows[rows["bound"].eq("kl")].assign(bound="split_kl", event="another", risk_upper=np.nan, num_events=100)
    both = pandas.concat([rows.assign(num_events=100), excess])
    with pytest.raises(ValueError, match=r"best of 36 guarantees of integrations .* divided by 18 only"):
        best_certificate(both)
    best_certificate(both.assign(num_integrations=36))


def test_integrations_without_chance_cost_nothing(tmp_path):
    rows = frame(tmp_path, integrators=("bonferroni",), num_integrations=1)
    assert rows["integration"].nunique() > 1
    assert best_certificate(rows)["integrator"] == "bonferroni"


def test_uncertified_rows_are_no_candidates_and_cost_nothing(tmp_path):
    rows = frame(tmp_path, integrators=("mc", "qmc"))
    estimate = rows["certified"].ne(True)
    rows.loc[estimate, "value"] = 0.0
    rows.loc[estimate, "num_events"] = 1
    assert best_certificate(rows)["integrator"] == "mc"
    with pytest.raises(ValueError, match="no best one to name"):
        best_certificate(rows[estimate])


def test_failures_are_no_candidates(tmp_path):
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
    """A search that came by 4 of the 10 events that its plan paid for."""
    asked = {"flows": ("daf",), "seeds": (0, 1), "covariances": ("code", "constant"), "bounds": ("kl",)}
    rows = synthetic.small(suite=suite, num_events=10, num_integrations=10, **(asked | changes))
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
    assert "No suite pays" in warning
    assert all("suite" not in sentence for sentence in best_sentences(read(folders[:1]).results))


def test_rows_that_were_paid_for_differently_are_not_compared(tmp_path):
    rows = frame(tmp_path)
    rows["num_events"] = rows["num_events"].where(rows["flow"].eq("daf"), 1000)
    with pytest.raises(ValueError, match="different K or J"):
        best_certificate(rows)


def test_failed_priors_could_have_been_picked_too(tmp_path):
    one = {"flows": ("daf",), "seeds": (0,), "covariances": ("code",), "bounds": ("kl",), "num_integrations": 2}
    for paid in (1, 2):
        rows = [*synthetic.small(**one, num_events=paid), synthetic.failure()]
        sentences = best_sentences(read([synthetic.write(tmp_path / str(paid), rows, [])]).results)
        assert len(sentences) == 2
        assert all(("best of 2 events cannot be named" in s) == (paid == 1) for s in sentences)


def test_a_best_is_named_with_all_that_was_paid(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.small(num_integrations=77), [])]).results
    sentences = best_sentences(results)
    assert len(sentences) == 2
    for sentence, epsilon in zip(sentences, ("0.01", "0.05"), strict=True):
        for said in (
            f"ε = {epsilon}",
            "K = 36 events",
            "δ′ = 0.01 by J = 77",
            "ldaf · daf with kl_exact, covariance code",
        ):
            assert said in sentence


def test_a_best_without_chance_was_chosen_among_others_with(tmp_path):
    rows = synthetic.small(integrators=("mc", "bonferroni"))
    rows = [row | ({"value": 0.01} if row.get("integrator") == "bonferroni" else {}) for row in rows]
    sentences = best_sentences(read([synthetic.write(tmp_path, rows, [])]).results)
    assert all("bonferroni" in sentence and "δ′ = 0.01" in sentence for sentence in sentences)


def test_suites_that_report_all_say_so_once(tmp_path):
    rows = synthetic.small(num_events=1, num_integrations=1)
    begin = "All results are reported and none is selected"
    end = ". To report the best one, set `certificates.report: best`."
    one = synthetic.write(tmp_path / "one", rows, [])
    assert best_sentences(read([one]).results) == [f"{begin}{end}"]
    other = synthetic.write(tmp_path / "two", [row | {"suite": "other", "plan": "other"} for row in rows], [])
    said = best_sentences(read([one, other]).results)
    assert said[0] == f"{begin} (digits, other){end}"
    assert len(said) == 2


def test_what_is_held_fixed_does_not_depend_on_any_outcome(tmp_path):
    results = read([synthetic.write(tmp_path, synthetic.results(), [])]).results
    kept, held = hold(results, ["flow", "bound", "epsilon"])
    shuffled = results.assign(value=results["value"].to_numpy()[::-1], test_risk=0.5, risk=0.1)
    again, same = hold(shuffled, ["flow", "bound", "epsilon"])
    assert held == same
    assert {axis: where["digits", "ldaf"] for axis, where in held.items()} == {
        "covariance": ["code"], "scale": [0.1], "fit_points": [1024], "integrator": ["mc"], "num_points": [4096],
    }  # fmt: skip
    assert kept.index.equals(again.index)
    assert {"test_set", "kl"} <= set(kept["bound"])


def test_each_method_is_held_at_its_own_values(tmp_path):
    # A method without the axis has nulls in it; they are no value that the other could be held at.
    rows = [row for tolerance in (None, 1e-3) for row in synthetic.small(tolerance=tolerance, bounds=("kl",))]
    other = [row | {"method": "other", "tolerance": None, "scale": 0.7} for row in synthetic.small(bounds=("kl",))]
    other = [
        row | {key: f"o{row[key]}" for key in ("setting", "integration", "posterior") if key in row} for row in other
    ]
    results = read([synthetic.write(tmp_path, rows + other, [])]).results
    kept, held = hold(results, ["flow"])
    assert held["tolerance"] == {("digits", "ldaf"): [None]}
    assert set(kept["method"]) == {"ldaf", "other"}
    assert set(kept[kept["method"].eq("ldaf") & ~is_mean(kept)]["scale"]) == {0.1}
