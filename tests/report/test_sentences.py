"""The first sentences of the page, and certificates that are never rounded down."""

from ldaf_bench.report.comparison import comparison, headlines
from ldaf_bench.report.names import percent
from ldaf_bench.report.records import read
from ldaf_bench.report.tables import certificates
from tests.report import synthetic


def test_certificates_are_rounded_up_and_risks_to_the_nearest():
    assert percent(0.025947, up=True) == "2.60"
    assert percent(0.025901, up=True) == "2.60"
    assert percent(0.025947) == "2.59"
    assert percent(0.025947, 0.00126, up=True) == "2.60 ± 0.13"
    # A number that can be printed stays as it is, also if floating point has moved it.
    for whole in range(0, 10_001, 7):
        shown = f"{whole / 100:.2f}"
        assert percent(whole / 10_000, up=True) == percent(sum([whole / 30_000] * 3), up=True) == shown
    for value in (1e-9, 0.0123456, 0.3333333, 0.99999):
        assert 100 * value <= float(percent(value, up=True)) <= 100 * value + 0.01


def test_every_printed_certificate_is_at_least_its_value(records):
    table = certificates(records.results)
    place = table.header.index("certificate (%)")
    assert len(table.rows) > 100
    for row in table.rows:
        assert float(row[place].text.split(" ± ")[0]) >= 100 * row[place].key - 1e-9


def test_the_first_sentences_say_what_came_out(records):
    (sentence,) = headlines(comparison(records.results)[0])
    results = records.results[records.results["flow"].eq("daf") & records.results["epsilon"].eq(0.01)]
    held = results[results["covariance"].eq("code") & results["scale"].eq(0.1) & results["fit_points"].eq(1024)]
    held = held[held["bound"].eq("kl_exact") & held["integrator"].eq("mc") & held["num_points"].eq(4096)]
    mean = results[results["bound"].eq("test_set")]
    assert sentence == (
        f"digits: ldaf · daf with `kl_exact` certifies a risk of at most {percent(held['value'].mean(), up=True)} % at "
        f"ε = 0.01 (δ′ = 0.01), mean over 3 seeds; its test risk is {percent(held['test_risk'].mean())} %. "
        f"The held-out bound on its mean classifier is {percent(mean['value'].mean(), up=True)} %."
    )


def test_the_first_sentences_never_look_at_a_result(tmp_path):
    rows = synthetic.small()
    best = [row | ({"value": 0.001} if row["flow"] == "sflow" or row["bound"] == "quad" else {}) for row in rows]
    for name, some in (("as it is", rows), ("others are better", best)):
        (sentence,) = headlines(comparison(read([synthetic.write(tmp_path / name, some, [])]).results)[0])
        assert sentence.startswith("digits: ldaf · daf with `kl_exact` certifies")


def test_the_first_sentences_of_what_is_not_certified_not_fitted_or_not_random(tmp_path):
    def said(rows):
        return headlines(comparison(read([synthetic.write(tmp_path / str(len(rows)), rows, [])]).results)[0])

    (estimate,) = said(synthetic.small(integrators=("qmc",), seeds=(0,)))
    assert "with `kl_exact` gives a bound of" in estimate
    assert "at ε = 0.01, one seed, not certified;" in estimate
    rows = synthetic.small()
    (unfitted,) = said([*synthetic.unfitted(rows), *(row for row in rows if row["classifier"] == "mean")])
    assert unfitted.startswith("digits: ldaf · daf, unfitted, with `kl_exact` certifies")
    (plain,) = said(synthetic.plain(rows))
    assert plain.startswith("digits: deterministic, the mean classifier, with `test_set` certifies a risk of at most")
    assert "held-out" not in plain
    two = [row | {"suite": "b", "plan": "b"} for row in rows]
    assert [sentence.split(":")[0] for sentence in said(rows + two)] == ["digits, suite digits", "digits, suite b"]
