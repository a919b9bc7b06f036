"""What the README shows runs, and what it names exists."""

import re
from pathlib import Path

import pytest
import yaml

from ldaf_bench.data.datasets import DATASETS, summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.plan import make_plan
from ldaf_bench.prior import PriorFile, read_file
from ldaf_bench.suite import Suite
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
MAKEFILE = Path(__file__).parents[1].joinpath("Makefile").read_text(encoding="utf-8")
CONTINUOUS = Path(__file__).parents[1].joinpath(".ci", "run").read_text(encoding="utf-8")


REGISTRIES = {
    "data.dataset": DATASETS,
    "priors.backbone": BACKBONES,
    "certificates.bound": BOUNDS,
    "priors.method": METHODS,
}
"""Where a suite names an entry."""


@pytest.fixture
def registries():
    """Examples add entries; nobody else should meet them."""
    before = {place: dict(registry) for place, registry in REGISTRIES.items()}
    yield before
    for place, registry in REGISTRIES.items():
        registry.clear()
        registry.update(before[place])


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.split("\n")[0])
def test_python_examples_run_and_are_short(block, capsys, registries):
    assert len(block.splitlines()) < 30
    exec(compile(block, "README.md", "exec"), {})
    assert "certify" not in block or "certified=True" in capsys.readouterr().out
    for place, registry in REGISTRIES.items():
        for name in registry.keys() - registries[place].keys():
            section, key = place.split(".")
            assert f"`{section}: {{{key}: {name}}}`" in README
            assert plan_with(section, key, name).cells


def plan_with(section, key, name):
    """The plan of a suite that names an entry."""
    content = {
        "suite": "readme",
        "data": {"dataset": "digits"},
        "priors": {"backbone": "tinynet", "recipe": "tiny", "num_nodes": 5},
        "certificates": {"bound": ["kl", "test_set"]},
    }
    content[section][key] = name
    suite = Suite.model_validate(content)
    return make_plan(suite, summarize(suite.data.dataset))


def test_there_is_an_example_for_everything_that_people_add():
    for registry in ("DATASETS", "BACKBONES", "BOUNDS", "METHODS"):
        assert any(f'{registry}["' in block for block in BLOCKS)


def test_the_yaml_examples_are_a_suite_that_plans_and_the_prior_that_ships():
    suite, prior = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(make_plan(Suite.model_validate(yaml.safe_load(suite)), summarize("digits")).priors) == 6
    shipped = read_file(Path(__file__).parents[1] / "suites" / "priors" / "cifar10_speednet.yaml")
    assert PriorFile.model_validate(yaml.safe_load(prior)).prior == shipped.prior


def test_every_bound_and_covariance_is_explained():
    for name in (*BOUNDS, *COVARIANCES):
        assert re.search(rf"^\|.*`{name}`.*\|", README, re.MULTILINE), name


def test_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets
    assert "make test" in README
    assert "make test" in CONTINUOUS


def test_no_target_of_the_makefile_is_there_twice():
    targets = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
    assert len(targets) == len(set(targets))


def test_links_lead_somewhere():
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#]+)\)", prose):
        assert Path(__file__).parents[1].joinpath(target).exists(), target


def test_every_suite_is_in_the_table():
    for path in Path(__file__).parents[1].joinpath("suites").glob("*.yaml"):
        assert re.search(rf"^\|.*`{path.stem}`.*\|", README, re.MULTILINE), path.stem
