"""cluster.yaml is one that Ray accepts, closed to strangers."""

from pathlib import Path

import yaml

CLUSTER = Path(__file__).parents[1] / "cluster.yaml"


def test_ray_accepts_the_cluster_file():
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(yaml.safe_load(CLUSTER.read_text())))


def test_the_dashboard_is_local_and_tokens_are_on():
    content = yaml.safe_load(CLUSTER.read_text())
    (head,) = [line for line in content["head_start_ray_commands"] if "start --head" in line]
    assert "--dashboard-host=127.0.0.1" in head
    commands = content["head_start_ray_commands"] + content["worker_start_ray_commands"]
    starts = [line for line in commands if " start " in line]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line for line in starts)
    assert any("chmod 600 ~/.ray/auth_token" in line for line in content["setup_commands"])


def test_machines_install_what_is_pinned():
    content = yaml.safe_load(CLUSTER.read_text())
    assert any("make install" in line for line in content["setup_commands"])
