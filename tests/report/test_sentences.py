"""The first sentences of the page, and certificates that are never rounded down."""

import math

from ldaf_bench.report.comparison import headlines
from ldaf_bench.report.grouping import hold
from ldaf_bench.report.names import percent
from ldaf_bench.report.records import read
from ldaf_bench.report.tables import certificates
from tests.report import synthetic


def test_certificates_are_rounded_up_and_risks_to_the_nearest():
    assert percent(0.025947, up=True) == "2.60"
    assert percent(0.025901, up=True) == "2.60"
    assert percent(0.025947) == "2.59"
    assert percent(0.025947, 0.00126, up=True) == "2.60 ± 0.13"
    # A number that can be printed stays as it is, and the next one does not.
    for whole in range(0, 10_001, 7):
        assert percent(whole / 10_000, up=True) == f"{whole / 100:.2f}"
    assert percent(math.nextafter(0.1, 1), up=True) == "10.01"
    for value in (1e-9, 0.0123456, 0.3333333, 0.99999):
        assert 100 * value <= float(percent(value, up=True)) <= 100 * value + 0.01


def test_every_printed_certificate_is_at_least_its_value(records):
    table = certificates(records.results)
    place = table.header.index("certificate (%)")
    assert len(table.rows) > 100
    for row in table.rows:
        assert float(row[place].text.split(" ± ")[0]) >= 100 * row[place].key - 1e-9


def test_the_first_sentences_say_what_came_out(records):
    (sentence,) = headlines(records.results)
    results = records.results[records.results["flow"].eq("daf") & records.results["epsilon"].eq(0.01)]
    held = results[results["covariance"].eq("code") & results["scale"].eq(0.1) & results["fit_points"].eq(1024)]
    held = held[held["bound"].eq("kl_exact") & held["integrator"].eq("mc") & held["num_points"].eq(4096)]
    mean = results[results["bound"].eq("test_set")]
    chance = "may fail with probability 0.02; mean of 3 seeds' certificates that hold together"
    assert sentence == (
        f"digits: the fitted posterior of ldaf · daf has the certificate {percent(held['value'].mean(), up=True)} % "
        f"(`kl_exact`; {chance}); its test risk is {percent(held['test_risk'].mean())} %. "
        f"Its mean classifier has the certificate {percent(mean['value'].mean(), up=True)} % (`test_set`; {chance})."
    )


def test_the_first_sentences_are_at_the_first_level_of_the_suite_file(tmp_path):
    for number, (epsilons, total) in enumerate((((0.05, 0.01), "0.06"), ((0.01, 0.05), "0.02"))):
        results = read([synthetic.write(tmp_path / str(number), synthetic.small(epsilons=epsilons), [])]).results
        (sentence,) = headlines(results)
        assert sentence.count(f"may fail with probability {total};") == 2
        # The figures that hold a level hold the same.
        assert set(hold(results, ["flow"])[0]["epsilon"]) == {epsilons[0]}


def test_the_first_sentences_never_look_at_a_result(tmp_path):
    rows = synthetic.small()
    best = [row | ({"value": 0.001} if row["flow"] == "sflow" or row["bound"] == "quad" else {}) for row in rows]
    for name, some in (("as it is", rows), ("others are better", best)):
        (sentence,) = headlines(read([synthetic.write(tmp_path / name, some, [])]).results)
        assert sentence.startswith("digits: the fitted posterior of ldaf · daf has the certificate")
        assert "(`kl_exact`; " in sentence


def test_the_first_sentences_of_what_is_not_certified_not_fitted_or_not_random(tmp_path):
    def said(rows):
        return headlines(read([synthetic.write(tmp_path / str(len(rows)), rows, [])]).results)

    (estimate,) = said(synthetic.small(integrators=("qmc",), seeds=(0,)))
    assert "the fitted posterior of ldaf · daf has the estimate" in estimate
    assert "(`kl_exact`, ε = 0.01; 1 seed; not certified);" in estimate
    rows = synthetic.small()
    (unfitted,) = said([*synthetic.unfitted(rows), *(row for row in rows if row["classifier"] == "mean")])
    assert unfitted.startswith("digits: the unfitted prior of ldaf · daf has the certificate")
    (plain,) = said(synthetic.plain(rows))
    assert plain.startswith("digits: the mean classifier of deterministic has the certificate")
    assert plain.count("certificate ") == 1
    two = [row | {"suite": "b", "plan": "b"} for row in rows]
    assert [sentence.split(":")[0] for sentence in said(rows + two)] == ["digits, suite digits", "digits, suite b"]
