"""What the README shows runs, and what it names exists."""

import re
from pathlib import Path

import pytest
import yaml

from ldaf_bench.prior import PriorFile, read_file

README = Path(__file__).parents[1].joinpath("README.md").read_text(encoding="utf-8")
MAKEFILE = Path(__file__).parents[1].joinpath("Makefile").read_text(encoding="utf-8")
CONTINUOUS = Path(__file__).parents[1].joinpath(".ci", "run").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_python_examples_run_and_print_a_certificate(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    assert "certified=True" in capsys.readouterr().out


def test_the_yaml_example_is_the_prior_that_ships():
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    shipped = read_file(Path(__file__).parents[1] / "suites" / "priors" / "cifar10_speednet.yaml")
    assert PriorFile.model_validate(yaml.safe_load(block)).prior == shipped.prior


def test_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets
    assert "make test" in README
    assert "make test" in CONTINUOUS


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert Path(__file__).parents[1].joinpath(target).exists(), target
