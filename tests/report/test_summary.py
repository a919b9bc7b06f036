"""The summary on the terminal: means over seeds of one setting, and a sentence that says of which."""

import pandas as pd
import pyarrow as pa
import pytest

from ldaf_bench.report.comparison import MEAN_CLASSIFIER, summary
from ldaf_bench.report.records import read
from ldaf_bench.results.record import RECORD, schema
from tests.report import synthetic


def raw(rows):
    """As a run has them, without going through a file."""
    return pa.Table.from_pylist(rows, schema(RECORD)).to_pandas()


@pytest.mark.parametrize("source", ["read", "run"])
def test_every_number_is_the_mean_of_one_setting_over_seeds(records, source):
    frame = records.results if source == "read" else raw([*synthetic.results(), synthetic.failure()])
    lines, sentence = summary(frame)
    fixed = ["test_set", "chernoff"]
    assert list(lines.columns) == [
        "classifier",
        "covariance",
        "scale",
        "test",
        "kl_exact",
        "kl",
        "quad",
        "catoni",
        *fixed,
    ]
    assert len(lines) == 2 * (3 * 2 + 1)
    rows = frame[frame["flow"].eq("sflow") & frame["integrator"].eq("mc") & frame["num_points"].eq(4096)]
    rows = rows[rows["covariance"].eq("isotropic") & rows["scale"].eq(0.3) & rows["fit_points"].eq(1024)]
    rows = rows[rows["epsilon"].eq(0.01)]
    (line,) = [
        row
        for row in lines.to_dict("records")
        if (row["classifier"], row["covariance"], row["scale"]) == ("sflow", "isotropic", 0.3)
    ]
    for bound in synthetic.BOUNDS:
        some = rows[rows["bound"].eq(bound)]["value"]
        assert len(some) == 3
        assert line[bound] == pytest.approx(some.mean(), abs=1e-12)
    assert line["test"] == pytest.approx(rows["test_risk"].mean(), abs=1e-12)
    assert lines[lines["covariance"].eq("isotropic")][fixed].isna().all(axis=None)
    for said in ("Certificates at ε = 0.01", "mean over 3 seeds", "integrator mc", "q 4096", "points in training 1024"):
        assert said in sentence


def test_the_mean_classifier_has_a_line_of_its_own(records):
    lines, _ = summary(records.results)
    own = lines[lines["covariance"].eq(MEAN_CLASSIFIER)]
    assert list(own["classifier"]) == ["daf", "sflow"]
    errors = records.results[records.results["flow"].eq("daf")].drop_duplicates("prior")["mean_test_error"]
    assert own["test"].iloc[0] == pytest.approx(errors.mean(), abs=1e-12)
    assert own["kl"].isna().all()
    assert own["test_set"].notna().all()


def test_suites_of_another_recipe_are_two_lines():
    rows = [
        row | {"value": value}
        for suite, value in (("a", 0.3), ("b", 0.1))
        for row in synthetic.small(suite=suite, recipe=suite, covariances=("code",), flows=("daf",))
    ]
    lines, _ = summary(raw(rows))
    assert sorted(lines["suite"]) == ["a", "a", "b", "b"]
    assert set(lines[lines["suite"].eq("a")]["kl"].dropna()) == {0.3}
    assert set(lines[lines["suite"].eq("b")]["kl"].dropna().round(9)) == {0.1}


def test_the_first_level_is_the_suites_first():
    _, sentence = summary(raw(synthetic.small(epsilons=(0.05, 0.01))))
    assert "at ε = 0.05 and" in sentence


def test_estimates_are_shown_only_where_nothing_is_certified():
    rows = [row for row in synthetic.small(integrators=("qmc",), seeds=(0,)) if not row["certified"]]
    lines, sentence = summary(raw(rows))
    assert len(lines) == 2 * 3
    assert "none of them certified" in sentence
    assert "mean over 1 seed." in sentence
    both, sentence = summary(raw(synthetic.small(integrators=("qmc", "bonferroni"))))
    assert "Certificates" in sentence
    assert both["kl"].notna().sum() == 2 * 3


def test_seeds_that_failed_are_not_hidden():
    rows = [row for row in synthetic.small() if row["seed"] < 2 or row["flow"] == "daf"]
    assert "mean over 2 to 3 seeds" in summary(raw(rows))[1]


def test_what_was_not_tested_is_missing():
    rows = [row | {"test_risk": None, "mean_test_error": None} for row in synthetic.small()]
    lines, sentence = summary(raw(rows))
    assert lines["test"].isna().all()
    assert "mean over 3 seeds" in sentence


def test_nothing_gives_nothing(tmp_path):
    for frame in (raw([]), raw([synthetic.failure()]), read([synthetic.write(tmp_path, [], [])]).results):
        lines, sentence = summary(frame)
        assert isinstance(lines, pd.DataFrame)
        assert lines.empty
        assert sentence == ""
