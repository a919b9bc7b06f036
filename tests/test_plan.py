"""The plan is the suite's grid without repetitions, and the budget counts all that could be picked."""

import json
from pathlib import Path

import pytest
import yaml

from ldaf_bench.data.datasets import DATASETS, load, summarize
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.plan import make_plan
from ldaf_bench.suite import Suite

BASE = {
    "suite": "base",
    "data": {"dataset": "digits"},
    "priors": {"backbone": "tinynet", "recipe": "tiny", "num_nodes": 5},
}


def plan(**sections):
    content = {key: {**value} if isinstance(value, dict) else value for key, value in BASE.items()}
    for key, value in sections.items():
        content[key] = {**content.get(key, {}), **value}
    return make_plan(Suite.model_validate(content), summarize("digits"))


def test_the_grid_has_every_combination_once():
    made = plan(
        priors={"flow": ["daf", "sflow"], "seed": [0, 1, 2]},
        posteriors={"covariance": ["code", "constant"], "num_points": [64, 128]},
        risks={"integrator": ["mc", "bonferroni"], "num_points": [256, 512]},
        certificates={"bound": ["kl", "test_set"]},
    )
    assert len(made.priors) == 6
    assert len(made.posteriors) == 6 * 4
    # bonferroni has no points; every prior has one cell for its mean classifier
    assert len(made.cells) == 24 * 3 + 6
    assert len({cell.identity for cell in made.cells}) == len(made.cells)
    assert len({posterior.identity for posterior in made.posteriors}) == len(made.posteriors)


def test_what_an_axis_does_not_concern_is_planned_once():
    made = plan(
        priors={"method": ["ldaf", "deterministic"], "flow": ["daf", "sflow"]},
        posteriors={"objective": ["lambda", "prior"], "num_points": [64, 128]},
        certificates={"bound": ["kl", "test_set"]},
    )
    assert [prior.config.method for prior in made.priors].count("deterministic") == 1
    # fitted with either number of points, or not fitted at all
    assert len(made.posteriors) == 2 * 3
    assert not [cell for cell in made.cells if cell.posterior is not None and "test_set" in cell.bounds]
    assert not [cell for cell in made.cells if cell.posterior is None and "kl" in cell.bounds]


def test_nothing_is_paid_where_nothing_is_picked():
    made = plan(priors={"seed": [0, 1, 2]}, certificates={"report": "all"})
    assert {(cell.num_priors, cell.num_integrations) for cell in made.cells} == {(1, 1)}


@pytest.mark.parametrize(
    ("bounds", "families"), [(["kl"], 1), (["kl", "quad", "classic", "kl_exact", "lambda"], 1), (["kl", "catoni"], 2)]
)
def test_the_best_pays_for_every_prior_and_every_integration_that_could_be_picked(bounds, families):
    made = plan(
        priors={"flow": ["daf", "sflow"], "seed": [0, 1, 2]},
        posteriors={"covariance": ["code", "constant"], "scale": [0.1, 0.2], "num_points": [64, 128]},
        risks={"integrator": ["mc", "bonferroni", "qmc"], "num_points": [256, 512]},
        certificates={"bound": bounds, "report": "best"},
    )
    stochastic = {(cell.num_priors, cell.num_integrations) for cell in made.cells if cell.posterior is not None}
    # 6 networks with 4 covariances each; numbers of points of the fit are free to the bound, but integrated separately
    assert stochastic == {(24 * families, 48 * 2)}


def test_the_best_mean_classifier_pays_for_every_network():
    made = plan(priors={"seed": [0, 1, 2, 3]}, certificates={"bound": ["test_set", "chernoff"], "report": "best"})
    assert {cell.num_priors for cell in made.cells} == {4}


def test_widening_a_suite_keeps_the_names_of_what_was_there():
    small = plan(priors={"seed": [0]})
    large = plan(priors={"seed": [0, 1]}, posteriors={"covariance": ["code", "paper"]})
    assert {cell.identity for cell in small.cells} < {cell.identity for cell in large.cells}


def test_paying_for_a_choice_changes_the_name_of_a_cell():
    free, paid = plan(priors={"seed": [0, 1]}), plan(priors={"seed": [0, 1]}, certificates={"report": "best"})
    assert not {cell.identity for cell in free.cells} & {cell.identity for cell in paid.cells}


def test_a_plan_made_without_the_data_names_the_same_priors():
    dataset = load("digits")
    for prior in plan(data={"certificate": [0.2, 0.4]}).priors:
        assert prior.splits.hash("prior") == prior.config.splits(dataset).hash("prior")
    assert dataset.summary == summarize("digits")


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.shape])
def test_summaries_of_known_data_fit_their_splits(name):
    summary = summarize(name)
    splits = PriorConfig(dataset=name, split={"certificate": 0.2}, backbone="tinynet", recipe="tiny").splits(summary)
    assert sum(len(getattr(splits, part)) for part in ("prior", "certificate", "test")) == len(summary)


def test_a_plan_is_described_by_json_that_makes_it_again():
    made = plan()
    described = made.describe()
    assert json.loads(json.dumps(described)) == described
    assert make_plan(Suite.model_validate(described["suite"]), summarize("digits")).describe() == described


def test_every_shipped_suite_plans():
    for path in Path("suites").glob("*.yaml"):
        suite = Suite.model_validate(yaml.safe_load(path.read_text()))
        assert make_plan(suite, summarize(suite.data.dataset)).cells
