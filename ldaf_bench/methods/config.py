"""What determines a prior."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ldaf_bench.data.dataset import DataError, Dataset, Summary
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.splits import Splits, split
from ldaf_bench.methods.recipe import Recipe, recipe_from
from ldaf_bench.methods.yaml_file import EntryOf
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.theory.arguments import require_entry
from ldaf_bench.theory.flows import FLOWS


class SplitConfig(BaseModel):
    """How the data are divided."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(0, strict=True)
    certificate: float = Field(gt=0, lt=1, strict=True)
    """Fraction of the points outside the test set that certify; all others train the prior."""
    test: float = Field(0.2, gt=0, lt=1, strict=True)
    """Fraction of all points that test, for data without a test set of their own."""


class PriorConfig(BaseModel):
    """A prior: data, network, flow and how it is trained.

    Two priors of one configuration are as good as each other. They differ in weights if they were trained by different
    numbers of workers (each normalizes its own part of a batch), on other devices, or by other versions of torch: the
    record says which.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    dataset: Annotated[str, EntryOf("dataset", DATASETS)]
    split: SplitConfig
    method: str = "ldaf"
    """An entry of METHODS. `deterministic`: a plain linear layer in place of the flow, trained by the same recipe."""
    backbone: Annotated[str, EntryOf("backbone", BACKBONES)]
    flow: Annotated[str, EntryOf("flow", FLOWS)] = "daf"
    num_nodes: int = Field(50, ge=1, le=10_000, strict=True)
    """n: nodes of the flow."""
    horizon: float = Field(1.0, gt=0, allow_inf_nan=False, strict=True)
    """T: how long the flow runs."""
    recipe: Annotated[Recipe, BeforeValidator(recipe_from)]
    seed: int = Field(0, strict=True)
    """Of initial weights, order of the data and augmentation."""

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        # Here, because methods are about configurations.
        from ldaf_bench.methods import METHODS

        require_entry("method", value, METHODS)
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
