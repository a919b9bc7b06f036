"""The tables at the top of a page of many suites say what the sentences of a page of few say, and no more."""

import html
import json
from decimal import ROUND_CEILING, Decimal

import pytest

from ldaf_bench.report.looks import FEW, looks_sentences
from ldaf_bench.report.overview import looks, suites
from ldaf_bench.report.page import page
from ldaf_bench.report.records import read
from tests.report import synthetic

NAMES = ("one", "two", "three", "four")


def records_of(folder, names, **changes):
    """Each suite has values and a certificate part of its own; rounding them to nearest would round down."""
    folders = []
    for number, name in enumerate(names):
        rows = synthetic.small(seeds=(0,), covariances=("code",), num_events=1, num_integrations=1, **changes)
        rows = [row | {"suite": name, "plan": name, "num_events": 1} for row in rows]
        rows = [row | {"value": round(row["value"], 4) + 0.00003 + number / 1000} for row in rows]
        folders.append(synthetic.write(folder / name, rows, []))
        counts = {"plans": 1, "looks": number + 1, "networks": 2, "priors": 3}
        seal = {"plan": name, "looks": {f"{number}" * 64: counts}}
        (folder / name / "seal.json").write_text(json.dumps(seal))
    return read(folders)


def up(value):
    return str((100 * Decimal(repr(float(value)))).quantize(Decimal("0.01"), ROUND_CEILING))


def test_few_suites_have_sentences_and_many_a_table(tmp_path):
    few = records_of(tmp_path / "few", NAMES[:FEW])
    assert (suites(few.results), looks(few)) == (None, None)
    assert len(looks_sentences(few)) == FEW
    many = records_of(tmp_path / "many", NAMES)
    tables = {"suites": suites(many.results), "looks": looks(many)}
    assert [len(table.rows) for table in tables.values()] == [4, 4]
    shown = html.unescape(page(many, [], tables))
    # Once each, above everything else, and not as sentences again.
    assert shown.count('id="table-suites"') == shown.count('id="table-looks"') == 1
    assert shown.index('id="table-looks"') < shown.index("What a certificate promises")
    assert "has the certificate" not in shown
    assert shown.count("Choosing between looks is not covered by any certificate.") == 2
    assert 'class="lead"' in html.unescape(page(few, [], {}))


@pytest.mark.parametrize("integrators", [("mc",), ("qmc",)])
def test_every_line_is_what_was_stored_rounded_up_with_its_total(tmp_path, integrators):
    records = records_of(tmp_path, NAMES, integrators=integrators)
    table = suites(records.results)
    assert len(set(table.header)) == len(table.header)
    for name, line in zip(NAMES, table.rows, strict=True):
        row = dict(zip(table.header, (cell.text for cell in line), strict=True))
        stored = records.results[records.results["suite"].eq(name) & records.results["epsilon"].eq(0.01)]
        fitted = stored[stored["classifier"].eq("posterior") & stored["flow"].eq("daf")]
        (value,) = fitted[fitted["bound"].eq(row["bound"])]["value"]
        assert (row["suite"], row["certificate (%)"]) == (name, up(value))
        assert row["may fail"] == ("0.02" if integrators == ("mc",) else "estimate")
        mean = stored[stored["classifier"].eq("mean") & stored["flow"].eq("daf")]
        (value,) = mean[mean["bound"].eq(row["mean: bound"])]["value"]
        assert row["mean: certificate (%)"] == up(value)
        assert row["mean: may fail"] == "0.02"


def test_the_table_of_parts_counts_plans_and_says_what_they_paid(tmp_path):
    lines = [[cell.text for cell in row] for row in looks(records_of(tmp_path, NAMES)).rows]
    paid = "no choice (K = 1, J = 1)"
    assert lines == [[f"{number}" * 12 + "…", "1", str(number + 1), "1", "2", "3", paid] for number in range(4)]


def test_names_of_suites_are_text(tmp_path):
    records = records_of(tmp_path, NAMES)
    results = records.results.assign(suite=records.results["suite"].replace("two", synthetic.NASTY[0]))
    table = suites(results)
    shown = page(records, [], {"suites": table})
    assert synthetic.NASTY[0] not in shown
    assert html.escape(table.rows[1][0].text) in shown
    assert table.rows[1][0].text == synthetic.NASTY[0]
