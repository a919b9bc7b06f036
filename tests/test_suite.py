"""Suite files: good ones plan, all others end with one sentence and exit code 2, whatever is in them."""

import contextlib
import copy
import dataclasses
import io
import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import DATASETS, summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.plan import make_plan
from ldaf_bench.run import main
from ldaf_bench.suite import (
    MOST_INTEGRATIONS,
    Suite,
    SuiteError,
    check_sizes,
    num_integrations_at_most,
    read_suite,
)
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.flows import FLOWS
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.theory.posterior import OPTIMIZERS
from ldaf_bench.yaml_file import read_yaml

SUITES = sorted(Path("suites").glob("*.yaml"))
DIGITS = yaml.safe_load(Path("suites/digits.yaml").read_text())
DIGITS["methods"] = {"ldaf": DIGITS["methods"]["ldaf"]}  # what is wrong with one method is not said of another


def dry_run(path):
    return main([str(path), "--dry-run", "--store", "/nonexistent/store", "--root", "/nonexistent/data"])


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_suite_that_ships_plans_without_its_data(path, capsys):
    assert read_suite(path).suite == path.stem
    assert dry_run(path) == 0
    out = capsys.readouterr().out
    for word in ("networks", "posteriors", "integrations", "Methods", "Confidence", "found", "Resources"):
        assert word in out


def test_the_suites_that_are_promised_are_there():
    promised = "digits fashion cifar fashion_cpu cifar_cpu ablation_covariance ablation_qmc ablation_flow"
    assert {*promised.split(), "rivals", "integration", "speed", "search"} <= {path.stem for path in SUITES}


def changed(place, value):
    content = copy.deepcopy(DIGITS)
    inner = content
    for key in place[:-1]:
        inner = inner.setdefault(key, {})
    inner[place[-1]] = value
    return content


def deterministic(**sections):
    """A suite without a distribution, as a person would make it of the digits suite."""
    content = copy.deepcopy(DIGITS)
    del content["convergence"]
    return {**content, "methods": {"deterministic": {}}, "certificates": {"bound": "test_set"}, **sections}


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("network", {}, ": there is no such key; did you mean networks?"),
        ("methods.ldap", {}, ": there is no such method; did you mean ldaf?"),
        ("methods.vote", {}, ": there is no such method; the methods are ldaf, last_layer, pbb, deterministic."),
        ("methods.5", {}, ": there is no such method"),
        ("methods.ldaf.flows", "daf", ": there is no such key; did you mean flow?"),
        ("methods.deterministic", {"flow": "daf"}, "methods.deterministic.flow: there is no such key; leave it out"),
        ("networks.flow", "daf", ": there is no such key; the keys there are backbone, recipe, seed."),
        ("methods", {}, ": list at least one method with its axes, like ldaf: {}."),
        ("methods", None, ": list at least one method"),
        ("methods", "ldaf", ": list at least one method"),
        ("methods", ["ldaf"], ": list at least one method"),
        ("methods.ldaf", "daf", ": write keys and values here; the keys are flow, "),
        ("methods.ldaf", [], ": write keys and values here"),
        ("certificates.espilon", 0.1, "did you mean epsilon?"),
        ("resources.train.worker", 1, "did you mean workers?"),
        ("resources.posteriors", {"gpu": 1}, "resources.posteriors.gpu: there is no such key; did you mean gpus?"),
        ("resources.cells", {}, ": there is no such key; the keys there are train, digest, posteriors."),
        # one value or a list: the place is the axis, and the sentence names the value
        ("methods.ldaf.flow", "dafs", ": flow must be one of daf, linear, sflow (did you mean daf?), but is 'dafs'."),
        ("methods.ldaf.flow", ["daf", "dafs"], ": flow must be one of daf, linear, sflow (did you mean daf?), but is"),
        ("methods.ldaf.covariance", ["code", "papper"], ": covariance must be one of"),
        ("methods.ldaf.covariance", ["code", "code"], "methods.ldaf: covariance lists a value twice."),
        ("methods.ldaf.covariance", [], ": "),
        ("methods.ldaf.covariance", {"a": 1}, ": input should be a valid string."),
        ("methods.ldaf.objective", "lambda", ": input should be 'cross_entropy', 'zero_one' or 'unfitted'; got 'lamb"),
        ("methods.ldaf.zero_one_points", 10, "methods.ldaf: zero_one_points must be a power of 2, at most 2^30"),
        ("methods.ldaf.mean", "fixed", ": input should be 'zero' or 'fitted'; got 'fixed'."),
        ("methods.last_layer", {"mean": "zero"}, "methods.last_layer.mean: input should be 'fixed' or 'fitted'; got"),
        ("methods.last_layer", {"scales": "two"}, "methods.last_layer.scales: input should be 'each' or 'one'; got"),
        ("methods.last_layer", {"covariance": "dense"}, "covariance must be one of isotropic, scaled, but is 'dense'."),
        ("methods.last_layer", {"flow": "daf"}, "methods.last_layer.flow: there is no such key; "),
        ("methods.last_layer", {"fit_points": 100}, "methods.last_layer: fit_points must be a power of 2"),
        ("methods.ldaf.optimizer", "lbfgs", ": optimizer must be one of adam, sgd"),
        ("methods.ldaf.tolerance", [None, 2.0], ": input should be less than 1; got 2.0."),
        ("methods.ldaf.scale", [0.1, -1], ": input should be greater than 0; got -1."),
        ("methods.ldaf.scale", float("nan"), ": input should be a finite number; got nan."),
        ("methods.ldaf.learning_rate", "0.1", ": input should be a valid number; got '0.1'."),
        ("certificates.epsilon", 0, ": "),
        ("certificates.epsilon", [0.01, 0.99995], "add up to 1 or more"),
        ("methods.ldaf.fit_points", 1000, "methods.ldaf: fit_points must be a power of 2, at most 2^30"),
        ("methods.ldaf.fit_points", [64, 1000], "got 1000."),
        ("risks.num_points", [256, 300], "num_points must be powers of 2, at most 2^30 (Sobol points of qmc)"),
        ("networks.seed", [0, 0], "networks: seed lists a value twice"),
        ("networks.seed", [], ": "),
        ("methods.ldaf.num_nodes", 0, ": input should be greater than or equal to 1; got 0."),
        ("methods.ldaf.num_nodes", 5000, "use sflow"),
        ("networks.backbone", "speednet", "use tinynet"),
        ("networks.recipe", {"base": "tiny", "batch_size": 5000}, "lower batch_size"),
        ("networks.recipe", {"base": ["tiny"]}, ": a recipe's base must be a name"),
        ("data.certificate", 0.9999, "empty"),
        ("suite", "../evil", ": "),
        ("data.dataset", "cifar", "digits"),
        ("resources.train", {"gpus_per_worker": 1.5}, "whole number"),
        ("networks", None, ": write keys and values here; the keys are backbone, recipe, seed."),
        ("resources.train", {"workers": True}, "resources.train.workers"),
        ("resources.train", {"workers": "2"}, "resources.train.workers"),
        ("resources.digest", {"checkpoint_seconds": "60"}, "resources.digest.checkpoint_seconds"),
        ("certificates.epsilon", "0.01", ": "),
        ("certificates.delta", True, ": "),
        ("methods.ldaf.horizon", [True], ": "),
        ("networks.recipe", {"base": "tiny", "epochs": "3"}, "networks.recipe.epochs"),
        ("networks.recipe", {"base": "tiny", "momentum": False}, "networks.recipe.momentum"),
        ("networks.recipe", {"base": "tiny", "nesterov": 1}, "networks.recipe.nesterov"),
        ("convergence.repeats", "8", ": "),
        ("risks", {"integrator": "rqmc", "num_points": 4}, ": num_points must be at least 8"),
        ("convergence", {"num_points": [4, 8]}, ": num_points must be at least 8"),
        ("convergence", {"integrator": "bonferroni"}, "bonferroni uses no points, so it does not converge;"),
        ("risks", {"integrator": "qmc", "num_points": 2**31}, "at most 2^30"),
        ("methods.ldaf.fit_points", 2**31, "at most 2^30"),
        ("convergence", {"num_points": 2**31}, "at most 2^30"),
        ("x" * 10**5, 1, "there is no such key"),
        ("data.dataset", "x" * 10**5, ": "),
        ("search", {"samples": 3}, "set certificates.report: best"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence_with_its_place(tmp_path, capsys, place, value, says):
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(changed([int(key) if key.isdigit() else key for key in place.split(".")], value)))
    says_in_one_sentence(path, f"suite.yaml, {place}{says}" if says.startswith(": ") else says, capsys)


def says_in_one_sentence(path, says, capsys):
    assert dry_run(path) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert error.endswith((".\n", "?\n"))
    assert "Traceback" not in error
    assert "got None" not in error


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (deterministic(certificates={"bound": "kl"}), "certificates.bound: kl is about a posterior or prior"),
        (deterministic(certificates={}), "certificates.bound: "),
        (deterministic(certificates={"bound": ["test_set", "catoni"]}), "certificates.bound: catoni is about"),
        (
            deterministic(certificates={"bound": "test_set", "report": "best"}, search={"samples": 3}),
            "there are no posteriors to search: add a method that has some",
        ),
    ],
)
def test_a_bound_that_fits_no_method_is_refused(tmp_path, capsys, content, says):
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(content))
    says_in_one_sentence(path, says, capsys)


@pytest.mark.parametrize("section", ["risks", "convergence"])
def test_an_integrator_that_fits_no_method_is_refused(tmp_path, capsys, monkeypatch, section):
    path = tmp_path / "suite.yaml"
    content = changed([section, "integrator"], ["mc", "qmc"])
    path.write_text(yaml.safe_dump(content))
    assert dry_run(path) == 0
    # A method without a closed form, which `mc` cannot integrate.
    monkeypatch.setitem(METHODS, "ldaf", dataclasses.replace(METHODS["ldaf"], offers=frozenset({"draws"})))
    first = "risks" if section == "convergence" else section
    says_in_one_sentence(path, f"{first}.integrator: mc needs gaussian, and no method here offers that.", capsys)
    path.write_text(yaml.safe_dump(content | {"risks": {"integrator": "forward_mc"}}))
    says_in_one_sentence(path, "convergence.integrator: ", capsys)


def test_bounds_and_integrators_need_to_fit_one_of_the_methods_only(tmp_path):
    path = tmp_path / "suite.yaml"
    both = {"bound": ["kl", "test_set", "chernoff"]}
    path.write_text(yaml.safe_dump(deterministic(methods={"ldaf": None, "deterministic": None}, certificates=both)))
    assert dry_run(path) == 0


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
        (GOOD + "certificates: {bound: kl}\n", "the key certificates is also in line"),
        (GOOD.replace("seed: [0, 1, 2]", "seed: 0, seed: 1"), "the key seed is also in line"),
        (GOOD + BOMB, "more than 100000 values"),
        (GOOD + BOMB.replace("[", "{a: ").replace(", ", ", b: ").replace("]", "}"), "more than 100000 values"),
        (GOOD + "#" * 10**6, "larger than 1000000 bytes"),
        (GOOD + f"search: {'9' * 5000}\n", "too long"),
        (GOOD + f"search: {'[' * 5000}\n", "nested too deeply"),
        (GOOD + "search: &it [*it]\n", "contains itself"),
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
        GOOD.replace("covariance: [", "scale: [1e-3, 2E1], covariance: [") + "resources: {train: &r {}, digest: *r}"
    )
    assert read_suite(path).methods["ldaf"].scale == (0.001, 20.0)


def suite_with(ldaf=None, **sections):
    content = copy.deepcopy(DIGITS)
    for name, section in sections.items():
        content[name] = {**content.get(name, {}), **section}
    content["methods"]["ldaf"].update(ldaf or {})
    return Suite.model_validate(content)


@pytest.mark.parametrize(
    ("sections", "num_classes", "says"),
    [
        ({"ldaf": {"covariance": "dense", "num_nodes": [5, 600]}}, 10, "methods.ldaf.covariance: dense"),
        ({}, 30_000, "methods.ldaf.objective: Sobol points"),
        ({"ldaf": {"objective": "unfitted", "covariance": "scaled"}}, 30_000, "methods.ldaf.covariance: Sobol"),
        ({"ldaf": {"objective": "unfitted", "covariance": "code"}}, 30_000, "risks.integrator: Sobol points"),
        (
            {"ldaf": {"objective": "unfitted", "covariance": "code"}, "risks": {"integrator": "mc"}},
            30_000,
            "convergence.integrator: Sobol points",
        ),
    ],
)
def test_what_is_too_large_for_the_data_is_refused(sections, num_classes, says):
    with pytest.raises(SuiteError, match=says):
        check_sizes(suite_with(**sections), num_classes)


def test_what_fits_the_data_is_not_refused():
    check_sizes(suite_with(ldaf={"covariance": "dense"}), 10)
    plain = {"integrator": "mc"}
    check_sizes(Suite.model_validate(deterministic(risks=plain)), 30_000)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_integrations_are_counted_from_above_without_planning_them(path):
    suite = read_suite(path)
    most = num_integrations_at_most(suite)
    assert 0 < len(make_plan(suite, summarize(suite.data.dataset)).integrations) <= most <= MOST_INTEGRATIONS


def test_a_grid_that_is_too_large_is_refused_before_it_is_planned():
    many = suite_with(networks={"seed": list(range(10_000))}, ldaf={"scale": [i + 1.0 for i in range(9000)]})
    with pytest.raises(SuiteError, match=r"networks.seed: .* shorten its axes"):
        check_sizes(many, 10)


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
    st.sampled_from(
        [
            "daf",
            "mc",
            "kl",
            0,
            1,
            0.5,
            64,
            [],
            {},
            [[]],
            [None],
            {"base": "tiny"},
            [64, 64],
            ["kl", 3],
            {"ldaf": {}},
            {"deterministic": {}},
            {"deterministic": {"flow": "daf"}},
            {"ldaf": None},
            "unfitted",
            {"flow": "sflow"},
        ]
    ),
    st.lists(st.one_of(st.integers(-3, 2**70), st.text(max_size=3), st.floats()), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
)
names = st.one_of(st.text(max_size=8), st.sampled_from(["deterministic", "flow", "ldap", "search", "objective"]))
mutation = st.tuples(st.sampled_from(PLACES), st.sampled_from(["replace", "delete", "rename", "add"]), strange, names)


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
    error = io.StringIO()
    with contextlib.redirect_stderr(error):
        code = dry_run(path)
    assert code in (0, 2)
    assert error.getvalue().count("\n") == (1 if code else 0)
    assert len(error.getvalue()) < 2000


def test_axes_may_be_single_values_or_lists():
    one = Suite.model_validate(changed(["methods", "ldaf", "flow"], "daf"))
    many = Suite.model_validate(changed(["methods", "ldaf", "flow"], ["daf"]))
    assert one == many


def test_a_method_without_axes_is_a_key_with_or_without_an_empty_section():
    assert Suite.model_validate(deterministic()) == Suite.model_validate(deterministic(methods={"deterministic": None}))


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
        (["priors"], {}),
        (["methods", "ldaf", "flow"], "dafs"),
        (["methods", "ldaf", "flow"], ["daf", "dafs"]),
        (["methods", "ldaf", "flow"], []),
        (["methods", "ldaf", "flows"], "daf"),
        (["methods", "ldaf", "objective"], "lambda"),
        (["methods", "ldaf"], "daf"),
        (["methods", "deterministic"], {"flow": "daf"}),
        (["methods", "vote"], {}),
        (["methods"], {}),
        (["methods"], ["ldaf"]),
        (["networks", "seed"], [0, 0]),
        (["networks", "recipe"], "tinny"),
        (["networks", "recipe"], {"epochs": 3}),
        (["networks", "recipe"], {"base": "tiny", "epoch": 3}),
        (["data", "dataset"], "cifar"),
        (["methods", "ldaf", "optimizer"], "lbfgs"),
        (["certificates", "epsilon"], "0.01"),
        (["certificates", "bound"], ["kl", "best"]),
        (["resources", "posteriors"], {"cpus": 0}),
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
        ("networks.backbone", BACKBONES),
        ("methods.ldaf.flow", FLOWS),
        ("methods.ldaf.covariance", COVARIANCES),
        ("methods.ldaf.optimizer", OPTIMIZERS),
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


def test_methods_are_those_of_the_dictionary_as_it_is_now(monkeypatch):
    content = changed(["methods", "mine"], {})
    with pytest.raises(ValueError, match="mine"):
        Suite.model_validate(content)
    monkeypatch.setitem(METHODS, "mine", dataclasses.replace(METHODS["deterministic"], name="mine"))
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
    says = f"asks.yaml, resources.train.gpus_per_worker: the suite asks for 1 GPUs and this machine has {gpus}"
    asking = yaml.safe_load(Path("suites/cifar.yaml").read_text())
    asking["resources"]["train"] = {"workers": 1, "gpus_per_worker": 1}
    path = tmp_path / "asks.yaml"
    path.write_text(yaml.safe_dump(asking))

    def unreachable(*_, **__):
        raise DataError("The data are not to be had.")

    monkeypatch.setattr("ldaf_bench.run.fetch", unreachable)
    assert main([str(path), "--dry-run", *place]) == 0
    assert (says in capsys.readouterr().out.replace("\n", " ")) == refused
    assert main([str(path), *place]) == 2  # with a GPU, because the data are not there
    assert (says in capsys.readouterr().err) == refused
    assert not (tmp_path / "store").exists()
    # A cluster may have them.
    assert main([str(path), "--dry-run", "--address", "auto", *place]) == 0
    assert says not in capsys.readouterr().out


def test_a_method_that_no_integrator_fits_is_named_in_the_plan(tmp_path, capsys):
    path = tmp_path / "suite.yaml"
    content = changed(["risks", "integrator"], "mc")
    path.write_text(yaml.safe_dump(content | {"methods": {"ldaf": {}, "pbb": {}}}))
    assert dry_run(path) == 0
    assert "No integrator of the suite fits pbb: its posteriors get no certificate." in capsys.readouterr().out
    path.write_text(yaml.safe_dump(content))
    assert dry_run(path) == 0
    assert "get no certificate" not in capsys.readouterr().out
