"""What the README shows runs, and what it names exists."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import yaml

from ldaf_bench.data.datasets import summarize
from ldaf_bench.methods import METHODS
from ldaf_bench.plan import make_plan
from ldaf_bench.suite import Suite
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.integrate import INTEGRATORS

TOP = Path(__file__).parents[1]
README = (TOP / "README.md").read_text(encoding="utf-8")
RESULTS = sorted(f"results/{path.name}" for path in (TOP / "results").glob("*.md"))
WORDS = (TOP / "suites" / "README.md").read_text(encoding="utf-8")
MAKEFILE = (TOP / "Makefile").read_text(encoding="utf-8")
CONTINUOUS = (TOP / ".ci" / "run").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

EXTENDED = {
    "suite": "extended",
    "data": {"dataset": "digits", "certificate": 0.5},
    "networks": {"backbone": "tinynet", "recipe": {"base": "tiny", "epochs": 3}},
    "methods": {"noise": {"noise": [0.5, 2.0], "objective": ["grid", "unfitted"]}, "deterministic": {}},
    "risks": {"integrator": ["forward_mc", "halves"], "num_points": 16},
    "certificates": {"bound": ["kl_exact", "chernoff", "hoeffding", "test_set"], "report": "best"},
}


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The README's method, bound and integrator in one module, run as a user would; the package is not touched."""
    folder = tmp_path_factory.mktemp("extended")
    (folder / "mine.py").write_text("\n".join(BLOCKS), encoding="utf-8")
    (folder / "suite.yaml").write_text(yaml.safe_dump(EXTENDED))
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    path = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment |= {"LDAF_BENCH_PLUGINS": "mine", "PYTHONPATH": path}

    def command(module, *arguments):
        line = [sys.executable, "-m", f"ldaf_bench.{module}", *arguments]
        return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)

    ran = command("run", "suite.yaml")
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return folder, command


def test_the_example_of_a_method_is_short():
    (method,) = (block for block in BLOCKS if 'METHODS["' in block)
    assert len(method.splitlines()) <= 60
    assert all(len(block.splitlines()) <= 20 for block in BLOCKS if block != method)


def test_the_examples_run_through_every_stage_and_are_verified(extended):
    folder, command = extended
    frame = pandas.read_parquet(folder / "results" / "extended" / "results.parquet")
    assert frame["error"].isna().all()
    noise = frame[frame["method"] == "noise"]
    assert set(noise["noise"]) == {0.5, 2.0}  # its own axis is a column
    assert set(noise[noise["objective"] == "grid"]["widest"]) == {1.0}
    assert set(noise["integrator"]) == {"forward_mc", "halves"}
    assert not noise[noise["integrator"] == "halves"]["certified"].any()
    assert noise[noise["integrator"] == "forward_mc"]["certified"].all()
    assert (noise["value"] > noise["test_risk"]).all()
    # One network serves both methods.
    assert frame["network"].nunique() == 1
    checked = command("verify", "results/extended")
    assert checked.returncode == 0, checked.stderr
    assert "No second computation is known here for: hoeffding." in checked.stdout
    page = (folder / "results" / "extended" / "report.html").read_text(encoding="utf-8")
    for word in ("noise", "hoeffding", "halves", "widest"):
        assert word in page


def test_a_new_event_is_paid_for(extended):
    folder, _ = extended
    frame = pandas.read_parquet(folder / "results" / "extended" / "results.parquet")
    stochastic = frame[frame["classifier"] != "mean"]
    # 2 priors × (the event of kl_exact, of chernoff and of hoeffding); 1 mean classifier × 2 events
    assert set(stochastic["num_events"]) == {6}
    assert set(frame[frame["classifier"] == "mean"]["num_events"]) == {2}
    # 4 posteriors with forward_mc; halves certifies nothing, and so costs nothing
    assert set(stochastic["num_integrations"]) == {4}


def test_a_forged_result_of_the_new_method_is_noticed(extended):
    folder, command = extended
    path = next((folder / "store" / "posteriors").glob("*/about.json"))
    content = path.read_text()
    path.write_text(content.replace('"kl_divergence": ', '"kl_divergence": 1', 1))
    checked = command("verify", "results/extended")
    path.write_text(content)
    assert checked.returncode == 1
    assert json.loads(content)["about"]["kl_divergence"] >= 0


def test_the_yaml_example_is_a_suite_that_plans():
    (suite,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    plan = make_plan(Suite.model_validate(yaml.safe_load(suite)), summarize("digits"))
    # 2 flows and a linear head, three seeds each; 2 covariances, fitted or not, on each of the 6 flow networks
    assert (len(plan.networks), len(plan.posteriors)) == (9, 24)


def test_every_method_bound_covariance_and_integrator_is_explained():
    for name in (*BOUNDS, *COVARIANCES, *INTEGRATORS):
        assert re.search(rf"^\|.*`{name}`.*\|", WORDS, re.MULTILINE), name
    for name in METHODS:
        assert re.search(rf"^\|.*`{name}`.*\|", README, re.MULTILINE), name


def test_the_readme_is_short():
    """Five minutes of a fast reader; code and tables are looked up, not read."""
    prose = re.sub(r"```.*?```|^\|[^\n]*$|<!--.*?-->", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split()) <= 1500


def test_commands_exist():
    targets = set(re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE))
    assert set(re.findall(r"make ([a-z]+)", README)) <= targets
    pages = (TOP / name for name in ("README.md", "CONTRIBUTING.md", "Makefile", *RESULTS))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for package, module in re.findall(r"python -m (ldaf_bench|tools|tests)\.([a-z]+)", text):
        place = TOP / package / module
        assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), f"{package}.{module}"
    assert "make test" in README
    assert "make test" in CONTINUOUS


def test_no_target_of_the_makefile_is_there_twice():
    targets = re.findall(r"^([a-z]+):", MAKEFILE, re.MULTILINE)
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "suites/README.md", *RESULTS])
def test_links_lead_somewhere(name):
    file = TOP / name
    prose = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target, place in re.findall(r"\]\(([^)#]*)(#[^)]+)?\)", prose):
        leads = file.parent / target if target else file
        assert leads.exists(), target
        if place:
            assert place[1:] in anchors(leads.read_text(encoding="utf-8")), target + place


def anchors(text):
    """Names that a heading of Markdown can be linked by."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_suite_is_in_the_table():
    for path in (TOP / "suites").glob("*.yaml"):
        assert re.search(rf"^\|.*`{path.stem}`.*\|", README, re.MULTILINE), path.stem
