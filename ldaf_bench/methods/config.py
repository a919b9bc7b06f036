"""What determines a prior."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ldaf_bench.data.dataset import DataError, Dataset, Summary
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.splits import Splits, split
from ldaf_bench.methods.recipe import Recipe, recipe_from
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.theory.arguments import require_entry
from ldaf_bench.theory.flows import FLOWS


class SplitConfig(BaseModel):
    """How the data are divided."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    certificate: float = Field(gt=0, lt=1)
    """Fraction of the points outside the test set that certify; all others train the prior."""
    test: float = Field(0.2, gt=0, lt=1)
    """Fraction of all points that test, for data without a test set of their own."""


class PriorConfig(BaseModel):
    """A prior: data, network, flow and how it is trained.

    Two priors of one configuration are as good as each other. They differ in weights if they were trained by different
    numbers of workers (each normalizes its own part of a batch), on other devices, or by other versions of torch: the
    record says which.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: str
    """An entry of DATASETS."""
    split: SplitConfig
    method: Literal["ldaf", "deterministic"] = "ldaf"
    """`deterministic`: a plain linear layer in place of the flow, trained by the same recipe."""
    backbone: str
    """An entry of BACKBONES."""
    flow: str = "daf"
    """An entry of FLOWS."""
    num_nodes: int = Field(50, ge=1, le=10_000)
    """n: nodes of the flow."""
    horizon: float = Field(1.0, gt=0, allow_inf_nan=False)
    """T: how long the flow runs."""
    recipe: Recipe
    seed: int = 0
    """Of initial weights, order of the data and augmentation."""

    @field_validator("recipe", mode="before")
    @classmethod
    def _named_recipe(cls, value: Any) -> Any:
        return recipe_from(value)

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, value: str) -> str:
        require_entry("dataset", value, DATASETS)
        return value

    @field_validator("backbone")
    @classmethod
    def _known_backbone(cls, value: str) -> str:
        require_entry("backbone", value, BACKBONES)
        return value

    @field_validator("flow")
    @classmethod
    def _known_flow(cls, value: str) -> str:
        require_entry("flow", value, FLOWS)
        return value

    def splits(self, dataset: Dataset | Summary) -> Splits:
        """The split that the configuration draws from its data set."""
        if dataset.name != self.dataset:
            raise DataError(f"The prior is one for {self.dataset}, and cannot be trained on {dataset.name}.")
        return split(dataset, seed=self.split.seed, certificate=self.split.certificate, test=self.split.test)

    def determines(self) -> dict[str, Any]:
        """The fields that the trained weights depend on, as JSON has them: the baseline has no flow."""
        unused = {"flow", "num_nodes", "horizon"} if self.method == "deterministic" else set()
        return self.model_dump(mode="json", exclude=unused)
