"""A search tries some posteriors, pays for all, and ends up with certificates that hold up like any other."""

import itertools

import pytest

from ldaf_bench.data.datasets import summarize
from ldaf_bench.plan import make_plan
from ldaf_bench.stages.posteriors import posterior_at, space_of
from ldaf_bench.store.posteriors import load_search
from ldaf_bench.suite import Suite
from tests.places import SMALL, Place, steady

SEARCH = {
    **SMALL,
    "methods": {
        "ldaf": {
            "flow": "sflow",
            "num_nodes": 4,
            "covariance": ["code", "constant", "isotropic"],
            "scale": [0.03, 0.1, 1.0],
            "objective": ["cross_entropy", "unfitted"],
            "fit_points": 64,
            "max_alternations": 4,
        }
    },
    "risks": {"integrator": "mc", "num_points": 16},
    "certificates": {"bound": ["kl", "test_set"], "report": "best"},
    "convergence": None,
    "search": {"searcher": "optuna", "scheduler": "asha", "samples": 8},
}


@pytest.fixture(scope="module")
def searched(cluster, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("searched"), SEARCH)
    assert place.run() == 0
    return place


def test_a_search_tries_some_posteriors_and_pays_for_all(searched):
    frame = searched.table().to_pandas()
    assert frame["error"].isna().all()
    tried = frame[frame["integrator"].notna()]
    # 3 covariances × 3 scales × 2 objectives could have been tried, from 9 starts
    assert 2 <= len(tried) <= 8
    assert set(tried["num_events"]) == {9}
    assert set(tried["num_integrations"]) == {18}
    assert len(frame) == len(tried) + 1
    assert searched.verify() == 0


def test_posteriors_of_a_network_that_failed_are_not_asked_for():
    suite = Suite.model_validate({**SEARCH, "networks": {**SEARCH["networks"], "seed": [0, 1]}})
    plan = make_plan(suite, summarize("digits"))
    left = plan.networks[1].identity
    axes = space_of([one for one in plan.posteriors if one.digest.network == left])
    assert axes["ldaf.network"].categories == [left]
    assert None not in axes["ldaf.fit_points"].categories  # what has no effect beside others is no value of its own


def test_every_point_that_a_searcher_can_ask_for_is_a_posterior_and_every_posterior_can_be_asked_for():
    plan = make_plan(Suite.model_validate(SEARCH), summarize("digits"))
    axes = {name: domain.categories for name, domain in space_of(plan.posteriors).items()}
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    seeds = {one.identity: one.config.seed for one in plan.networks}
    assert {posterior_at(point, seeds).identity for point in points} == {one.identity for one in plan.posteriors}


def test_a_search_that_is_over_is_not_begun_again(searched, monkeypatch):
    before, table = searched.files(), searched.table()
    monkeypatch.setattr("ldaf_bench.run.ray_session", None)
    monkeypatch.setattr("ldaf_bench.run.ray_is_there", lambda: False)
    assert searched.run() == 0
    assert searched.files() == before
    assert steady(searched.table()).equals(steady(table))


def test_what_a_search_found_and_lost_is_made_again_and_nothing_else(searched):
    before, table = searched.files(), searched.table()
    (record,) = searched.store.glob("searches/*")
    lost = searched.store / "posteriors" / min(load_search(record)) / "about.json"
    lost.unlink()
    assert searched.verify() == 1
    assert searched.run() == 0
    made = {name.split("/")[0] for name, when in searched.files().items() if before.get(name) != when}
    assert made == {"posteriors"}
    assert steady(searched.table()).equals(steady(table))


def test_a_search_that_lost_its_record_counts_what_is_there(searched):
    (record,) = searched.store.glob("searches/*")
    tried = load_search(record)
    (record / "about.json").write_text("{}")
    before = searched.files()
    assert searched.run() == 0
    assert load_search(record) >= tried
    kept = [name for name in before if name.split("/")[0] in ("posteriors", "integrations")]
    assert {name: searched.files()[name] for name in kept} == {name: before[name] for name in kept}
