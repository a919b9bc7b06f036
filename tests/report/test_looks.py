"""The page says how often the certificate part has been looked at, and believes nothing that a seal says."""

import html
import json

import pytest

from ldaf_bench.report.looks import MOST_PARTS, looks_sentences, retry_sentences
from ldaf_bench.report.overview import looks
from ldaf_bench.report.page import page
from ldaf_bench.report.records import MOST_JSON_BYTES, read
from tests.report import synthetic

PART = "0123456789abcdef" * 4
COUNTS = {"plans": 2, "looks": 3, "networks": 1, "priors": 18}
RETRIED = {"networks": 1, "posteriors": 0, "store": 2}
NOT_KNOWN = "It is not known how often the certificate part has been looked at: "


def records_of(folder, seal, **paid):
    rows = synthetic.small(seeds=(0,), bounds=("kl",), covariances=("code",), flows=("daf",), **paid)
    rows = [row | ({"num_events": 1} if row["classifier"] == "mean" else {}) for row in rows]
    synthetic.write(folder, rows, [])
    if callable(seal):
        seal = seal(rows[0]["plan"])
    if seal is not None:
        (folder / "seal.json").write_bytes(seal if isinstance(seal, bytes) else json.dumps(seal).encode())
    return read([folder])


def test_looks_stand_beside_what_the_plan_paid_for(tmp_path):
    def seal(plan):
        return {"plan": plan, "files": {}, "looks": {PART: COUNTS}}

    unpaid = records_of(tmp_path / "all", seal, num_events=1, num_integrations=1)
    (sentence,) = looks_sentences(unpaid)
    assert sentence == (
        "Certificate part 0123456789ab… had been looked at 3 times when this was written (2 plans, 1 trained network, "
        "18 priors); this plan paid for one look and for no choice (K = 1, J = 1). Choosing between looks is not "
        "covered by any certificate."
    )
    shown = html.unescape(page(unpaid, [], {}))
    assert shown.index(sentence) < shown.index("What a certificate promises")
    (paid,) = looks_sentences(records_of(tmp_path / "best", seal, num_events=7, num_integrations=5))
    assert "for one look and for a choice among K = 7 events and J = 5 guarantees of integrations" in paid
    (other,) = looks_sentences(records_of(tmp_path / "other", {"plan": "other", "looks": {PART: COUNTS}}))
    assert "this plan paid for what is not in these records." in other


def test_plans_that_share_a_certificate_part_are_said_together(tmp_path):
    folders = []
    for number, (name, events) in enumerate({"one": 1, "two": 1, "best": 7}.items()):
        rows = synthetic.small(seeds=(0,), bounds=("kl",), covariances=("code",), flows=("daf",), num_events=events)
        rows = [row | {"suite": name, "plan": name, "num_integrations": events} for row in rows]
        folders.append(synthetic.write(tmp_path / name, rows, []))
        seal = {"plan": name, "looks": {PART: COUNTS | {"looks": 3 + number}}, "retries": RETRIED}
        (tmp_path / name / "seal.json").write_text(json.dumps(seal))
    (sentence,) = looks_sentences(read(folders))
    assert sentence == (
        "Certificate part 0123456789ab… is that of 3 plans of this page. By the largest count of their stores it had "
        "been looked at 5 times when this was written (2 plans, 1 trained network, 18 priors). Each plan paid for one "
        "look and for no choice (K = 1, J = 1), or for one look and for a choice among K = 7 events and J = 7 "
        "guarantees of integrations. Choosing between looks is not covered by any certificate."
    )
    (again,) = retry_sentences(read(folders))
    assert "was away: 3 trainings, 6 calls to the store. No number" in again


@pytest.mark.parametrize(
    "seal",
    [
        None, b"", b"{", b"\xff\xfe", b"[" * 200_000, b"null", b"[1]", b'"looks"', b" " * (MOST_JSON_BYTES + 1),
        b'{"looks": {"a": ' + b'{"looks": ' * 50_000 + b"1" + b"}" * 50_002,
        {"looks": None}, {"looks": {}}, {"looks": [PART]}, {"looks": {PART: None}}, {"looks": {PART: [1, 2, 3, 4]}},
        {"looks": {PART: COUNTS, "b": {}}}, {"looks": {PART: COUNTS | {"looks": True}}},
        {"looks": {PART: COUNTS | {"looks": -1}}}, {"looks": {PART: COUNTS | {"looks": 1.5}}},
        {"looks": {PART: COUNTS | {"looks": "<b>1"}}}, {"looks": {PART: COUNTS | {"looks": 10**4000}}},
        b'{"looks": {"a": {"looks": NaN, "plans": Infinity, "networks": 1, "priors": 1}}}',
    ],
)  # fmt: skip
def test_whatever_is_no_seal_is_one_sentence(tmp_path, seal):
    (sentence,) = looks_sentences(records_of(tmp_path, seal))
    assert sentence.startswith(NOT_KNOWN)
    assert "seal.json" in sentence
    assert len(sentence) <= 400


def test_nothing_that_a_seal_says_becomes_markup_or_fills_the_page(tmp_path):
    seal = {"plan": {synthetic.NASTY[0]: 1}, "looks": {f"{text}": COUNTS for text in (*synthetic.NASTY, "x" * 10**6)}}
    seal["looks"] |= {f"{number}": COUNTS for number in range(1000)}
    records = records_of(tmp_path / "<b>a&b", seal)
    first, more = looks_sentences(records)
    assert first.startswith(f"These suites use {MOST_PARTS} certificate parts, listed below. Choosing between looks is")
    assert more == f"The seal has {1000 + len(synthetic.NASTY) + 1 - MOST_PARTS} more certificate parts."
    table = looks(records)
    assert len(table.rows) == MOST_PARTS
    assert max(len(cell.text) for row in table.rows for cell in row) < 200
    shown = page(records, [], {"looks": table})
    assert 'id="table-looks"' in shown
    assert "</script><script>" not in shown
    assert "<img src=x" not in shown
    assert max(map(len, looks_sentences(records))) < 400


def test_a_folder_without_results_says_nothing_of_looks(tmp_path):
    assert looks_sentences(read([synthetic.write(tmp_path, [], [])])) == []


@pytest.mark.parametrize(
    ("retries", "words"),
    [
        ({"networks": 0, "posteriors": 0, "store": 0}, None),
        ({"networks": 1, "posteriors": 0, "store": 2}, "1 training, 2 calls to the store"),
        ({"networks": 2, "posteriors": 31, "store": 1}, "2 trainings, 31 posteriors, 1 call to the store"),
        ({"networks": 2}, None),
        ({"networks": "<b>", "posteriors": 1, "store": 1}, None),
        (None, None),
    ],
)
def test_what_was_begun_again_is_said_and_only_counts_are_believed(tmp_path, retries, words):
    records = records_of(tmp_path / "retries", {"plan": "other", "looks": {PART: COUNTS}, "retries": retries})
    expected = (
        [f"Begun again because a process, a machine or the store was away: {words}. No number depends on it."]
        if words
        else []
    )
    assert retry_sentences(records) == expected
    assert all(sentence in html.unescape(page(records, [], {})) for sentence in expected)
