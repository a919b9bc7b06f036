"""Suite files: good ones plan, all others end with one sentence and exit code 2, whatever is in them."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ldaf_bench.data.datasets import DATASETS, summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.yaml_file import read_yaml
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.plan import make_plan
from ldaf_bench.run import main
from ldaf_bench.suite import MOST_CELLS, Suite, SuiteError, check_num_cells, check_sizes, num_cells_at_most, read_suite
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.flows import FLOWS
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.theory.posterior import OPTIMIZERS

SUITES = sorted(Path("suites").glob("*.yaml"))
DIGITS = yaml.safe_load(Path("suites/digits.yaml").read_text())


def dry_run(path):
    return main([str(path), "--dry-run", "--store", "/nonexistent/store", "--root", "/nonexistent/data"])


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_suite_that_ships_plans_without_its_data(path, capsys):
    assert read_suite(path).suite == path.stem
    assert dry_run(path) == 0
    out = capsys.readouterr().out
    for word in ("priors", "posteriors", "cells", "Confidence", "found", "Resources"):
        assert word in out


def test_the_suites_that_are_promised_are_there():
    promised = "digits fashion cifar fashion_cpu cifar_cpu ablation_covariance ablation_qmc ablation_flow"
    assert {*promised.split(), "integration", "speed", "search"} <= {path.stem for path in SUITES}


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
        (["resources", "cells"], {"gpus": 1}, "resources.cells.gpus: there is no such key; did you mean cpus?"),
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
        (["resources", "train"], {"workers": True}, "resources.train.workers"),
        (["resources", "train"], {"workers": "2"}, "resources.train.workers"),
        (["resources", "push"], {"checkpoint_seconds": "60"}, "resources.push.checkpoint_seconds"),
        (["certificates", "epsilon"], "0.01", "certificates.epsilon"),
        (["certificates", "delta"], True, "certificates.delta"),
        (["priors", "horizon"], [True], "priors.horizon"),
        (["priors", "recipe"], {"base": "tiny", "epochs": "3"}, "priors.recipe.epochs"),
        (["priors", "recipe"], {"base": "tiny", "momentum": False}, "priors.recipe.momentum"),
        (["priors", "recipe"], {"base": "tiny", "nesterov": 1}, "priors.recipe.nesterov"),
        (["convergence", "repeats"], "8", "convergence.repeats"),
        (["risks"], {"integrator": "rqmc", "num_points": 4}, "risks: num_points must be at least 8"),
        (["convergence"], {"num_points": [4, 8]}, "convergence: num_points must be at least 8"),
        (["convergence"], {"integrator": ["mc", "forward_mc"]}, "leave it out"),
        (["convergence"], {"integrator": "bonferroni"}, "leave it out"),
        (["risks"], {"integrator": "qmc", "num_points": 2**31}, "at most 2^30"),
        (["posteriors", "num_points"], 2**31, "at most 2^30"),
        (["convergence"], {"num_points": 2**31}, "at most 2^30"),
        (["x" * 10**5], 1, "there is no such key"),
        (["data", "dataset"], "x" * 10**5, "data.dataset"),
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


GOOD = Path("suites/digits.yaml").read_text()
BOMB = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD + "certificates: {bound: kl}\n", "the key certificates is in line"),
        (GOOD.replace("seed: [0, 1, 2]", "seed: 0\n  seed: 1"), "the key seed is in line"),
        (GOOD + BOMB, "more than 100000 values"),
        (GOOD + BOMB.replace("[", "{a: ").replace(", ", ", b: ").replace("]", "}"), "more than 100000 values"),
        (GOOD + "#" * 10**6, "larger than 1000000 bytes"),
        (GOOD + f"search: {'9' * 5000}\n", "too long"),
        (GOOD + f"search: {'[' * 5000}\n", "nested too deeply"),
        (GOOD + "search: &it [*it]\n", "holds itself"),
        (GOOD + "search: 2026-13-13\n", "month"),
    ],
)
def test_files_that_would_be_misread_or_blow_up_are_refused(tmp_path, capsys, text, says):
    path = tmp_path / "suite.yaml"
    path.write_text(text)
    assert dry_run(path) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error) < 1000


def test_numbers_may_be_written_with_an_exponent_and_sections_by_an_alias(tmp_path):
    path = tmp_path / "suite.yaml"
    path.write_text(
        GOOD.replace("covariance: [", "scale: [1e-3, 2E1]\n  covariance: [") + "resources: {train: &r {}, push: *r}"
    )
    assert read_suite(path).posteriors.scale == (0.001, 20.0)


def suite_with(**sections):
    content = copy.deepcopy(DIGITS)
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    return Suite.model_validate(content)


@pytest.mark.parametrize(
    ("sections", "num_classes", "says"),
    [
        (
            {"posteriors": {"covariance": "dense"}, "priors": {"num_nodes": [5, 600]}},
            10,
            "posteriors.covariance: dense",
        ),
        ({}, 30_000, "posteriors.objective: Sobol points"),
        ({"posteriors": {"objective": "prior", "covariance": "scaled"}}, 30_000, "posteriors.covariance: Sobol"),
        ({"posteriors": {"objective": "prior", "covariance": "code"}}, 30_000, "risks.integrator: Sobol points"),
        (
            {"posteriors": {"objective": "prior", "covariance": "code"}, "risks": {"integrator": "mc"}},
            30_000,
            "convergence.integrator: Sobol points",
        ),
    ],
)
def test_what_is_too_large_for_the_data_is_refused(sections, num_classes, says):
    with pytest.raises(SuiteError, match=says):
        check_sizes(suite_with(**sections), num_classes)


def test_what_fits_the_data_is_not_refused():
    check_sizes(suite_with(posteriors={"covariance": "dense"}), 10)
    check_sizes(suite_with(priors={"method": "deterministic", "num_nodes": 5000}), 30_000)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_cells_are_counted_from_above_without_planning_them(path):
    suite = read_suite(path)
    check_num_cells(suite)
    assert len(make_plan(suite, summarize(suite.data.dataset)).cells) <= num_cells_at_most(suite) <= MOST_CELLS


def test_a_grid_that_is_too_large_is_refused_before_it_is_planned():
    many = suite_with(priors={"seed": list(range(10_000))}, posteriors={"scale": [i + 1.0 for i in range(9000)]})
    with pytest.raises(SuiteError, match=r"priors.seed: .* shorten its axes"):
        check_num_cells(many)


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


SCHEMA = jsonschema.Draft202012Validator(json.loads(Path("suites/schema.json").read_text()))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_schema_accepts_every_suite_that_ships(path):
    SCHEMA.validate(read_yaml(path))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["prior"], {}),
        (["priors", "flow"], "dafs"),
        (["priors", "flow"], ["daf", "dafs"]),
        (["priors", "flow"], []),
        (["priors", "seed"], [0, 0]),
        (["priors", "method"], "pbb"),
        (["priors", "recipe"], "tinny"),
        (["priors", "recipe"], {"epochs": 3}),
        (["priors", "recipe"], {"base": "tiny", "epoch": 3}),
        (["data", "dataset"], "cifar"),
        (["posteriors", "optimizer"], "lbfgs"),
        (["certificates", "epsilon"], "0.01"),
        (["certificates", "bound"], ["kl", "best"]),
        (["resources", "cells"], {"cpus": 0}),
    ],
)
def test_the_schema_rejects_what_the_code_rejects(place, value):
    content = changed(place, value)
    assert not SCHEMA.is_valid(content)
    with pytest.raises(ValueError, match="validation error"):
        Suite.model_validate(content)


@pytest.mark.parametrize(
    ("place", "registry"),
    [
        ("data.dataset", DATASETS),
        ("priors.method", METHODS),
        ("priors.backbone", BACKBONES),
        ("priors.flow", FLOWS),
        ("posteriors.covariance", COVARIANCES),
        ("posteriors.optimizer", OPTIMIZERS),
        ("risks.integrator", INTEGRATORS),
        ("certificates.bound", BOUNDS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_are_those_of_the_dictionaries_as_they_are_now(monkeypatch, place, registry):
    content = changed(place.split("."), "mine")
    with pytest.raises(ValueError, match="mine"):
        Suite.model_validate(content)
    monkeypatch.setitem(registry, "mine", next(iter(registry.values())))
    Suite.model_validate(content)
    assert jsonschema.Draft202012Validator(Suite.model_json_schema()).is_valid(content)


def test_reading_a_suite_gives_a_frozen_value(tmp_path):
    suite = read_suite(Path("suites/digits.yaml"))
    with pytest.raises(Exception, match="frozen"):
        suite.about = "x"
    with pytest.raises(SuiteError, match="cannot be read"):
        read_suite(tmp_path / "none.yaml")


@pytest.mark.parametrize(("gpus", "refused"), [(0, True), (1, False)])
def test_gpus_that_are_not_there_are_refused_before_anything_starts(monkeypatch, tmp_path, capsys, gpus, refused):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("ldaf_bench.run.ray_is_there", lambda: False)
    place = ["--root", str(tmp_path), "--store", str(tmp_path / "store"), "--results", str(tmp_path / "results")]
    says = f"cifar.yaml, resources.train.gpus_per_worker: 1 GPUs are asked for and this machine has {gpus}"
    assert main(["suites/cifar.yaml", "--dry-run", *place]) == 0
    assert (says in capsys.readouterr().out.replace("\n", " ")) == refused
    assert main(["suites/cifar.yaml", *place]) == 2  # with a GPU, because the data are not there
    assert (says in capsys.readouterr().err) == refused
    assert not (tmp_path / "store").exists()
    # A cluster may have them.
    assert main(["suites/cifar.yaml", "--dry-run", "--address", "auto", *place]) == 0
    assert says not in capsys.readouterr().out
