"""Suite files: good ones plan, all others end with one sentence and exit code 2, whatever is in them."""

import copy
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ldaf_bench.run import main
from ldaf_bench.suite import Suite, SuiteError, read_suite

SUITES = sorted(Path("suites").glob("*.yaml"))
DIGITS = yaml.safe_load(Path("suites/digits.yaml").read_text())


def dry_run(path):
    return main([str(path), "--dry-run", "--store", "/nonexistent/store", "--root", "/nonexistent/data"])


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_suite_that_ships_plans_without_its_data(path, capsys):
    assert read_suite(path).suite == path.stem
    assert dry_run(path) == 0
    out = capsys.readouterr().out
    for word in ("priors", "posteriors", "cells", "Confidence", "there already", "Resources"):
        assert word in out


def test_the_suites_that_are_promised_are_there():
    promised = "digits fashion cifar fashion_cpu cifar_cpu ablation_covariance ablation_qmc ablation_flow integration"
    assert set(promised.split()) <= {path.stem for path in SUITES}


def changed(place, value):
    content = copy.deepcopy(DIGITS)
    inner = content
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = value
    return content


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (["prior"], {}, "prior: there is no such key; did you mean priors?"),
        (["priors", "flows"], "daf", "priors.flows: there is no such key; did you mean flow?"),
        (["certificates", "espilon"], 0.1, "did you mean epsilon?"),
        (["resources", "train", "worker"], 1, "did you mean workers?"),
        (["priors", "flow"], ["daf", "dafs"], "priors.flow"),
        (["certificates", "epsilon"], 0, "certificates.epsilon"),
        (["certificates", "epsilon"], [0.01, 0.995], "add up to 1 or more"),
        (["posteriors", "num_points"], 1000, "1000 is none"),
        (["risks", "num_points"], [256, 300], "300 is none"),
        (["priors", "seed"], [0, 0], "lists a value twice"),
        (["priors", "seed"], [], "priors.seed"),
        (["priors", "num_nodes"], 0, "priors.num_nodes"),
        (["priors", "num_nodes"], 5000, "use sflow"),
        (["priors", "backbone"], "speednet", "use tinynet"),
        (["priors", "recipe"], {"base": "tiny", "batch_size": 5000}, "lower batch_size"),
        (["data", "certificate"], 0.9999, "empty"),
        (["suite"], "../evil", "suite"),
        (["data", "dataset"], "cifar", "digits"),
        (["resources", "train"], {"gpus_per_worker": 1.5}, "whole number"),
        (["priors"], None, "priors"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence_with_its_place(tmp_path, capsys, place, value, says):
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(changed(place, value)))
    assert dry_run(path) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert "Traceback" not in error


@pytest.mark.parametrize(
    "text",
    ["", "- a", "suite: [", "a: &a [*a]", "!!python/object/apply:os.system [ls]", "\x00", "suite: x\nsuite: y", "{"],
)
def test_what_is_no_suite_at_all_is_refused_too(tmp_path, capsys, text):
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    assert dry_run(path) == 2
    assert capsys.readouterr().err.count("\n") == 1


def places(content, prefix=()):
    for key, value in content.items():
        yield (*prefix, key)
        if isinstance(value, dict):
            yield from places(value, (*prefix, key))


PLACES = list(places(DIGITS))
strange = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=20),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from(["daf", "mc", "kl", 0, 1, 0.5, 64, [], {}, [[]], [None], {"base": "tiny"}, [64, 64], ["kl", 3]]),
    st.lists(st.one_of(st.integers(-3, 2**70), st.text(max_size=3), st.floats()), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
mutation = st.tuples(
    st.sampled_from(PLACES), st.sampled_from(["replace", "delete", "rename", "add"]), strange, st.text(max_size=8)
)


def mutate(content, mutations):
    for place, how, value, name in mutations:
        inner = content
        for key in place[:-1]:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if not isinstance(inner, dict):
            continue
        if how == "replace":
            inner[place[-1]] = value
        elif how == "add":
            inner[name] = value
        elif place[-1] in inner:
            taken = inner.pop(place[-1])
            if how == "rename":
                inner[name] = taken
    return content


@settings(max_examples=200)
@given(mutations=st.lists(mutation, min_size=1, max_size=3))
def test_mutated_suites_are_planned_or_refused_and_never_a_traceback(tmp_path_factory, mutations):
    path = tmp_path_factory.mktemp("suite") / "suite.yaml"
    path.write_text(yaml.safe_dump(mutate(copy.deepcopy(DIGITS), mutations), allow_unicode=True), encoding="utf-8")
    assert dry_run(path) in (0, 2)


def test_axes_may_be_single_values_or_lists():
    one = Suite.model_validate(changed(["priors", "flow"], "daf"))
    many = Suite.model_validate(changed(["priors", "flow"], ["daf"]))
    assert one == many


def test_the_schema_for_editors_is_the_one_of_the_code():
    stored = json.loads(Path("suites/schema.json").read_text())
    assert stored == Suite.model_json_schema(), "Run `make schema`."


def test_reading_a_suite_gives_a_frozen_value(tmp_path):
    suite = read_suite(Path("suites/digits.yaml"))
    with pytest.raises(Exception, match="frozen"):
        suite.about = "x"
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suite(tmp_path / "none.yaml")
