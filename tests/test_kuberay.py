"""cluster/kuberay.yaml parses strictly as the RayJob of KubeRay's ray.io/v1: the part of its schema that we use."""

from pathlib import Path
from typing import Literal

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

FILE = Path(__file__).parents[1] / "cluster" / "kuberay.yaml"
Name = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)


class Strict(BaseModel):
    """Unknown keys and wrong types are refused, as the API server does with strict validation."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Metadata(Strict):
    name: str = Name
    namespace: str | None = None
    labels: dict[str, str] = {}


class Amounts(Strict):
    requests: dict[str, str]
    limits: dict[str, str]


class Mount(Strict):
    name: str = Name
    mountPath: str  # noqa: N815


class Claim(Strict):
    claimName: str = Name  # noqa: N815


class Volume(Strict):
    name: str = Name
    persistentVolumeClaim: Claim  # noqa: N815


class Container(Strict):
    name: str = Name
    image: str
    resources: Amounts
    volumeMounts: list[Mount] = []  # noqa: N815


class Toleration(Strict):
    key: str
    operator: Literal["Exists", "Equal"]
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class PodSpec(Strict):
    tolerations: list[Toleration] = []
    containers: list[Container] = Field(min_length=1)
    volumes: list[Volume] = []


class Template(Strict):
    spec: PodSpec


class Group(Strict):
    # A map of strings: numbers and truth values have to be quoted.
    rayStartParams: dict[str, str]  # noqa: N815
    template: Template


class WorkerGroup(Group):
    groupName: str = Name  # noqa: N815
    replicas: int = Field(ge=0)
    minReplicas: int = Field(ge=0)  # noqa: N815
    maxReplicas: int = Field(ge=0)  # noqa: N815


class Auth(Strict):
    mode: Literal["token", "disabled"]


class Cluster(Strict):
    rayVersion: str  # noqa: N815
    authOptions: Auth  # noqa: N815
    enableInTreeAutoscaling: bool  # noqa: N815
    headGroupSpec: Group  # noqa: N815
    workerGroupSpecs: list[WorkerGroup] = Field(min_length=1)  # noqa: N815


class JobSpec(Strict):
    entrypoint: str
    shutdownAfterJobFinishes: bool  # noqa: N815
    ttlSecondsAfterFinished: int = Field(ge=0)  # noqa: N815
    activeDeadlineSeconds: int = Field(gt=0)  # noqa: N815
    backoffLimit: int = Field(ge=0)  # noqa: N815
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]  # noqa: N815
    rayClusterSpec: Cluster  # noqa: N815


class RayJob(Strict):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: JobSpec


@pytest.fixture
def content():
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_it_is_a_rayjob_with_a_token_and_cleans_up(content):
    spec = RayJob.model_validate(content).spec
    assert spec.shutdownAfterJobFinishes
    assert spec.rayClusterSpec.authOptions.mode == "token"
    # The operator refuses a clean-up time without the clean-up, and names that leave no room for its own suffixes.
    assert len(content["metadata"]["name"]) <= 47


def test_the_head_keeps_the_store_and_workers_are_there_when_a_run_counts_gpus(content):
    cluster = RayJob.model_validate(content).spec.rayClusterSpec
    head = cluster.headGroupSpec
    assert head.rayStartParams["num-cpus"] == "0"
    (container,) = head.template.spec.containers
    mounted = {mount.name: mount.mountPath for mount in container.volumeMounts}
    assert mounted == {volume.name: "/data" for volume in head.template.spec.volumes}
    for option in ("--store /data/", "--results /data/", "--root /data/"):
        assert option in content["spec"]["entrypoint"]
    for group in cluster.workerGroupSpecs:
        assert 0 < group.minReplicas == group.replicas == group.maxReplicas
        (toleration,) = group.template.spec.tolerations
        assert toleration.key == "nvidia.com/gpu"
        for one in group.template.spec.containers:
            assert one.resources.requests == one.resources.limits
            assert "nvidia.com/gpu" in one.resources.limits


def test_ray_in_the_image_is_the_one_of_the_lock(content):
    lock = (FILE.parents[1] / "requirements.lock").read_text(encoding="utf-8")
    version = content["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"\nray[default,train,tune]=={version} " in lock or f"\nray=={version} " in lock


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "shutdownAfterJobFinish"], True),
        (["spec", "ttlSecondsAfterFinished"], "600"),
        (["spec", "rayClusterSpec", "headGroupSpec", "rayStartParams", "num-cpus"], 0),
        (["spec", "rayClusterSpec", "authOptions", "mode"], "tokens"),
        (["metadata", "name"], "LDAF_bench"),
    ],
)
def test_a_slip_is_noticed(content, path, value):
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        RayJob.model_validate(content)
