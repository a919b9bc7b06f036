"""`--rehearse`: every method and every value of an axis, on points of the prior part, and no look at any other."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

from ldaf_bench.data.datasets import DATASETS, load, summarize
from ldaf_bench.plan import make_plan
from ldaf_bench.rehearsal import MOST_POINTS, rehearsed
from ldaf_bench.run import main
from ldaf_bench.sections import grids
from ldaf_bench.store.ledger import ledger_keys
from ldaf_bench.store.store import open_store
from ldaf_bench.suite import Suite, read_suite
from tests.places import SMALL, Place

SUITES = sorted(Path("suites").glob("*.yaml"))
KNOWN = [path for path in SUITES if DATASETS[yaml.safe_load(path.read_text())["data"]["dataset"]].sha256]
every_suite = pytest.mark.parametrize("path", KNOWN, ids=lambda path: path.stem)


@every_suite
def test_points_that_stand_in_come_from_the_prior_part(path):
    suite = read_suite(path)
    summary = summarize(suite.data.dataset)
    whole, short = make_plan(suite, summary), make_plan(rehearsed(suite, summary), summary)
    splits = whole.networks[0].splits
    prior = splits.prior
    if suite.data.validation is not None:  # its own parts come from the prior part already
        prior = np.concatenate([splits.prior, splits.certificate, splits.test])
    for network in short.networks:
        parts = network.splits
        assert np.isin(np.concatenate([parts.prior, parts.certificate, parts.test]), prior).all()
        if suite.data.validation is None:
            assert len(parts.certificate) <= MOST_POINTS
    assert not set(short.certificate_parts) & set(whole.certificate_parts) or suite.data.validation is not None
    assert not {one.identity for one in short.networks} & {one.identity for one in whole.networks}


@every_suite
def test_every_method_and_every_value_of_an_axis_comes_once(path):
    suite = read_suite(path)
    short = rehearsed(suite, summarize(suite.data.dataset))
    assert list(short.methods) == list(suite.methods)
    quick = {"fit_epochs", "max_alternations"}
    for name, section in suite.methods.items():
        for axis in set(type(section).model_fields) - {"also"} - quick:
            asked = {value for grid in grids(section) for value in getattr(grid, axis)}
            rehearsed_values = [value for grid in grids(short.methods[name]) for value in getattr(grid, axis)]
            assert set(rehearsed_values) == asked, (name, axis)
    longest = max(
        sum(max(len(value) for axis, value in grid if axis != "also") for grid in grids(section))
        for section in suite.methods.values()
        if type(section).model_fields
    )
    assert max(len(grids(section)) for section in short.methods.values()) <= longest
    assert len(short.networks.seed) == short.networks.recipe.epochs == 1
    assert short.risks.num_points == (min(suite.risks.num_points),)
    assert short.certificates == suite.certificates
    # It is a suite like any other: what plan.json has of it is the same again.
    assert Suite.model_validate(short.model_dump(mode="json")) == short


def test_it_runs_and_says_what_it_is_and_touches_no_certificate_part(cluster, tmp_path, capsys):
    place = Place(tmp_path)
    assert main([*place.arguments, "--rehearse"]) == 0
    assert "This was a rehearsal" in capsys.readouterr().out
    folder = place.results / "small-rehearsal"
    assert "<b>Rehearsal</b> (small-rehearsal)" in (folder / "report.html").read_text()
    rows = pq.read_table(folder / "results.parquet").to_pandas()
    assert rows["error"].isna().all()
    assert set(rows["method"]) == {"ldaf", "deterministic"}
    assert set(rows["covariance"].dropna()) == {"code", "scaled"}
    whole = make_plan(read_suite(place.file), load("digits").summary)
    (part,) = whole.certificate_parts
    assert part not in set(rows["certificate_hash"])
    assert ledger_keys(open_store(place.store), part) == []


def test_the_page_of_a_suite_is_no_rehearsal(finished):
    assert "Rehearsal" not in (finished.results / "small" / "report.html").read_text()


def test_a_long_name_has_room_for_the_ending():
    suite = Suite.model_validate({**SMALL, "suite": "a" * 64})
    assert rehearsed(suite, summarize("digits")).suite.endswith("-rehearsal")
