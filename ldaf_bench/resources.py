"""What a stage may use. A value of its own, so that suites can be read without Ray."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator


class Resources(BaseModel):
    """Where a stage runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    workers: int = Field(1, ge=1, strict=True)
    cpus_per_worker: int = Field(0, ge=0, strict=True)
    """0: the cores of the cluster, shared evenly."""
    gpus_per_worker: float = Field(0, ge=0, allow_inf_nan=False, strict=True)
    """At most 1, or a whole number."""
    checkpoint_seconds: float = Field(60, ge=0, allow_inf_nan=False, strict=True)
    """At most so much work is lost with a worker."""

    @field_validator("gpus_per_worker")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("gpus_per_worker must be at most 1, or a whole number")
        return value
