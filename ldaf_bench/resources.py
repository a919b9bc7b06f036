"""What a stage may use. Values of their own, so that suites can be read without Ray."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def whole_above_one(value: float) -> float:
    """GPUs can be shared by several processes, or several given to one."""
    if value > 1 and value != int(value):
        raise ValueError("must be at most 1, or a whole number")
    return value


Gpus = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True), AfterValidator(whole_above_one)]
"""GPUs of one process."""
Auto = Literal["auto"]


class Resources(BaseModel):
    """Where a stage runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: Auto | Annotated[int, Field(ge=1, strict=True)] = "auto"
    """`auto`: the cluster's GPUs, divided among the networks that run side by side; one worker without GPUs."""
    cpus_per_worker: int = Field(0, ge=0, strict=True)
    """0: the cores of the cluster, shared evenly."""
    gpus_per_worker: Auto | Gpus = "auto"
    """At most 1, or a whole number. `auto`: one if the cluster has any, else none."""
    checkpoint_seconds: float = Field(60, ge=0, allow_inf_nan=False, strict=True)
    """At most so much work is lost with a worker."""


class TrainResources(Resources):
    """Where networks are trained."""

    at_once: int = Field(0, ge=0, strict=True)
    """Networks at a time, each by its own workers; 0: as many as fit."""


class Placed(BaseModel):
    """Resources with every `auto` decided: what workers are started with, and what a network's record says."""

    model_config = ConfigDict(frozen=True)

    workers: int = 1
    cpus_per_worker: int = 1
    gpus_per_worker: float = 0
    checkpoint_seconds: float = 60
    at_once: int = 0
    """What the suite says."""
