"""cluster.yaml and its siblings in cluster/ are accepted where they go, complete, and closed to strangers."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TOP = Path(__file__).parents[1]
FILES = [TOP / "cluster.yaml", TOP / "cluster" / "aws.yaml"]
SCRIPTS = [TOP / "cluster" / "slurm.sh", TOP / "tests" / "cluster" / "boot.sh"]
EVERY = [*FILES, TOP / "cluster" / "kuberay.yaml", TOP / "cluster" / "slurm.sh"]
each_file = pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)


def content(file):
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@each_file
def test_ray_accepts_the_cluster_file(file):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(content(file)))


@each_file
def test_the_dashboard_is_local_and_tokens_are_on(file):
    found = content(file)
    (head,) = [line for line in found["head_start_ray_commands"] if "start --head" in line]
    assert "--dashboard-host=127.0.0.1" in head
    for role in ("head", "worker"):
        stop, start = found[f"{role}_start_ray_commands"]
        assert stop == "ray stop"
        assert "ulimit -n 65536 || ulimit -n hard" in start
        assert "RAY_AUTH_MODE=token" in start
    assert any("chmod 600 ~/.ray/auth_token" in line for line in found["setup_commands"])
    assert found["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"


@each_file
def test_machines_install_what_is_pinned_and_later_shells_find_it(file):
    commands = content(file)["setup_commands"]
    assert "cd ~/ldaf_bench && make install" in commands
    (exported,) = [line for line in commands if ".bashrc" in line]
    assert "RAY_AUTH_MODE=token" in exported
    assert "PATH=$HOME/ldaf_bench/.venv/bin:$PATH" in exported


def shipped(file, folder, top=TOP):
    """What Ray would send to a machine, made here by rsync itself with the same options."""
    found = content(file)
    excludes = [option for pattern in found["rsync_exclude"] for option in ("--exclude", pattern)]
    for remote, local in found["file_mounts"].items():
        if local.startswith("~"):
            continue
        source, target = top / local, folder / remote.removeprefix("~/")
        target.parent.mkdir(parents=True, exist_ok=True)
        slash = "/" if source.is_dir() else ""  # as Ray does
        subprocess.run(["rsync", "-az", *excludes, f"{source}{slash}", f"{target}{slash}"], check=True)
    return {str(path.relative_to(folder / "ldaf_bench")) for path in (folder / "ldaf_bench").rglob("*")}


@each_file
@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_no_file_that_a_machine_needs_is_excluded(file, tmp_path):
    arrived = shipped(file, tmp_path)
    tracked = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    needed = {name for name in tracked if name.startswith(("ldaf_bench/", "suites/"))}
    assert len(needed) > 100
    assert needed <= arrived
    # What `make install` reads.
    assert {"Makefile", "pyproject.toml", "requirements.lock", "README.md", "LICENSE"} <= arrived
    # What may hold passwords, or is large, or is made by a run.
    assert not {name for name in arrived if name.startswith((".venv", "store", "data", "results"))}
    assert ".git/config" not in arrived
    assert not any("__pycache__" in name for name in arrived)


@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_the_commit_travels_along(tmp_path):
    """Results name it although most of the repository stays at home; a changed file is noticed."""
    clone, machine = tmp_path / "clone", tmp_path / "machine"
    subprocess.run(["git", "-c", "safe.directory=*", "clone", "-q", TOP, clone], check=True)
    head = ["git", "rev-parse", "--short=12", "HEAD"]
    commit = subprocess.run(head, cwd=clone, capture_output=True, text=True, check=True).stdout.strip()
    shutil.copy(TOP / "ldaf_bench" / "provenance.py", clone / "ldaf_bench" / "provenance.py")
    changed = subprocess.run(["git", "diff", "--quiet"], cwd=clone).returncode
    shipped(TOP / "cluster.yaml", machine, clone)

    def there():
        ask = "from ldaf_bench.provenance import commit; print(commit())"
        command = [sys.executable, "-c", ask]
        return subprocess.run(command, cwd=machine / "ldaf_bench", capture_output=True, text=True, check=True).stdout

    assert there() == commit + ("+\n" if changed else "\n")
    (machine / "ldaf_bench" / "ldaf_bench" / "plan.py").write_text("# changed")
    assert there() == f"{commit}+\n"


def test_the_ssh_key_reaches_the_head():
    """Ray copies the key that is named here to the head, which cannot reach the workers otherwise."""
    assert content(TOP / "cluster.yaml")["auth"]["ssh_private_key"]


def test_the_readme_and_the_files_say_the_same():
    from tests.cluster.story import ACTIVATE, DOWN, FETCH, SUBMIT, TOKEN, UP

    text = (TOP / "cluster.yaml").read_text(encoding="utf-8")
    for command in (ACTIVATE, TOKEN, UP, SUBMIT, FETCH, DOWN):
        assert re.search(rf"^#   {re.escape(command)}( |$)", text, re.MULTILINE), command


def test_the_local_cluster_uses_the_autoscaler_that_starts_all_workers_and_ends_with_its_head():
    found = content(TOP / "cluster.yaml")
    for role in ("head", "worker"):
        assert "RAY_enable_autoscaler_v2=0" in found[f"{role}_start_ray_commands"][1]
    assert "--block" in found["worker_start_ray_commands"][1]


def test_aws_has_an_on_demand_head_and_spot_workers_that_are_there_when_a_run_counts_gpus():
    found = content(TOP / "cluster" / "aws.yaml")
    types = found["available_node_types"]
    head = types.pop(found["head_node_type"])
    assert "InstanceMarketOptions" not in head["node_config"]
    assert head["resources"] == {"CPU": 0}
    for worker in types.values():
        assert 0 < worker["min_workers"] == worker["max_workers"] <= found["max_workers"]
        assert worker["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    for machine in (head, *types.values()):
        (disk,) = machine["node_config"]["BlockDeviceMappings"]
        assert disk["Ebs"]["VolumeSize"] >= 100


@pytest.mark.parametrize("file", EVERY, ids=lambda path: path.name)
def test_three_lines_are_to_be_changed_and_the_file_says_what_tokens_do_not(file):
    text = file.read_text(encoding="utf-8")
    assert re.findall(r"(\d) of 3", text.partition('"3 of 3"')[2]) == ["1", "2", "3"]
    assert "do not encrypt" in text


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_clean(script):
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    found = subprocess.run(["shellcheck", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout


def test_where_hosts_cannot_be_made_the_test_says_so(monkeypatch, capsys):
    from tests.cluster import __main__ as harness

    monkeypatch.setattr(harness.shutil, "which", lambda name: None if name == "sshd" else name)
    assert harness.main() == 2
    assert "openssh-server" in capsys.readouterr().err


def test_tables_are_compared_apart_from_times_and_hosts(tmp_path):
    import pandas

    from tools.tables import same

    results = pandas.DataFrame({"seed": [1, 0], "value": [0.5, 0.25], "fit_seconds": [1.0, 2.0], "host": ["a", "b"]})
    results = results.assign(error=None, commit="0123456789ab")
    curves = pandas.DataFrame({"series": ["loss", "images_per_second"], "y": [1.0, 2.0], "seconds": [1.0, 1.0]})
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        results.to_parquet(tmp_path / name / "results.parquet")
        curves.to_parquet(tmp_path / name / "curves.parquet")
        results = results.iloc[::-1].assign(fit_seconds=3.0, host="c")
        curves["y"] = curves["y"].where(curves["series"] == "loss", 7.0)
    assert same(tmp_path / "one", tmp_path / "other") == 2
    results.assign(value=[0.5, 0.5]).to_parquet(tmp_path / "other" / "results.parquet")
    with pytest.raises(AssertionError, match="value"):
        same(tmp_path / "one", tmp_path / "other")
