"""The suite: a YAML file as a frozen value. Validation, and nothing else.

Every axis is one value or a list; the plan is their grid.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from torch.quasirandom import SobolEngine

from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.recipe import Recipe, recipe_from
from ldaf_bench.methods.yaml_file import Axis, EntryOf, FileError, explain, read_yaml
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.resources import Resources
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.flows import FLOWS
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.theory.posterior import OPTIMIZERS

MOST_CELLS = 100_000
"""More than this is a slip of the pen."""
SOBOL = frozenset({"qmc", "rqmc", "conditional"})
"""Integrators that use Sobol points."""
SCRAMBLES = 8
"""Of `rqmc`, each of which has a power of 2 of the points."""
MOST_SOBOL_POINTS: int = 2**SobolEngine.MAXBIT
LARGEST_DENSE = 5000
"""n(c − 1) of a dense covariance: its factor takes 0.2 GB then, and as much for every copy that fitting needs."""


class SuiteError(Exception):
    """The suite file is wrong; the message is one sentence with the place in the file."""


Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, le=2**62, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Fraction = Annotated[float, Field(gt=0, lt=1, strict=True)]
DatasetName = Annotated[str, EntryOf("dataset", DATASETS)]
MethodName = Annotated[str, EntryOf("method", METHODS)]
BackboneName = Annotated[str, EntryOf("backbone", BACKBONES)]
FlowName = Annotated[str, EntryOf("flow", FLOWS)]
CovarianceName = Annotated[str, EntryOf("covariance", COVARIANCES)]
OptimizerName = Annotated[str, EntryOf("optimizer", OPTIMIZERS)]
IntegratorName = Annotated[str, EntryOf("integrator", INTEGRATORS)]
BoundName = Annotated[str, EntryOf("bound", BOUNDS)]


class Section(BaseModel):
    """Frozen, strict about its keys, and without repetitions in its axes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="after")
    def _axes_do_not_repeat(self) -> Self:
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, tuple) and len(set(value)) < len(value):
                raise ValueError(f"{name} lists a value twice")
        return self


def _require_sobol(counts: tuple[int, ...], integrators: Collection[str] = ()) -> None:
    least = SCRAMBLES if "rqmc" in integrators else 1
    for count in counts:
        if count & (count - 1):
            raise ValueError(f"num_points must be powers of 2, as Sobol points are used; {count} is none")
        if count < least:
            raise ValueError(f"num_points must be at least {least} for rqmc, one for every scramble; {count} is less")
        if count > MOST_SOBOL_POINTS:
            raise ValueError(f"num_points may be at most 2^30, as Sobol sequences end there; {count} is more")


class Data(Section):
    """Which data, and how they are divided."""

    dataset: DatasetName
    split_seed: Whole = 0
    certificate: Axis[Fraction] = (0.2,)
    """Fraction of the points outside the test part that certify; all others train priors."""
    test: Fraction = 0.2
    """Fraction of all points that test, for data without a test set of their own."""


class Priors(Section):
    """The networks to train."""

    method: Axis[MethodName] = ("ldaf",)
    backbone: Axis[BackboneName]
    flow: Axis[FlowName] = ("daf",)
    num_nodes: Axis[Annotated[int, Field(ge=1, le=10_000, strict=True)]] = (50,)
    """n."""
    horizon: Axis[Positive] = (1.0,)
    """T."""
    recipe: Annotated[Recipe, BeforeValidator(recipe_from)]
    """One of RECIPES by name, or `base` and what differs."""
    seed: Axis[Whole] = (0,)


class Pushforwards(Section):
    """How exactly the flow is integrated."""

    tolerance: Axis[Fraction | None] = (None,)
    """Of the Krylov spaces; none: the precision's own."""


class Posteriors(Section):
    """Where the covariance starts, and how it is fitted."""

    covariance: Axis[CovarianceName] = ("code",)
    scale: Axis[Positive] = (0.1,)
    """σ. The covariance `scaled` finds its own, for which `rise` counts: it is planned once, whatever the scales."""
    objective: Axis[Literal["lambda", "prior"]] = ("lambda",)
    """`lambda`: the λ-bound with the cross-entropy; `prior`: the posterior is the prior."""
    num_points: Axis[Count] = (1024,)
    """Sobol points of the cross-entropy in training, powers of 2."""
    optimizer: Axis[OptimizerName] = ("adam",)
    learning_rate: Positive | None = None
    epochs: Count = 5
    """Passes over the certificate part in one alternation."""
    max_alternations: Count = 20
    batch_size: Count = 256
    rise: Positive = 0.005
    """For the covariance `scaled`: by how much the Gibbs risk on prior data may exceed the mean classifier's error."""

    @model_validator(mode="after")
    def _powers(self) -> Self:
        _require_sobol(self.num_points)
        return self


class Risks(Section):
    """How the expected empirical risk is integrated."""

    integrator: Axis[IntegratorName] = ("mc",)
    num_points: Axis[Count] = (1024,)
    """q: points per datum; powers of 2 if an integrator uses Sobol points, at least 8 for `rqmc`."""

    @model_validator(mode="after")
    def _powers(self) -> Self:
        if SOBOL & set(self.integrator):
            _require_sobol(self.num_points, self.integrator)
        return self


class Certificates(Section):
    """Which bounds, at which confidence."""

    bound: Axis[BoundName] = ("kl",)
    epsilon: Axis[Fraction] = (0.01,)
    """ε, of the bounds; each value is a statement of its own."""
    delta: Fraction = 0.01
    """δ′, of the integrations."""
    report: Literal["all", "best"] = "all"
    """`best`: the best of all may be reported, and every one pays for the choice. `all`: mean and spread, no choice."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for epsilon in self.epsilon:
            if epsilon + self.delta >= 1:
                raise ValueError(f"epsilon {epsilon:g} and delta {self.delta:g} add up to 1 or more")
        return self


class Convergence(Section):
    """The paper's figure: how fast the integrators converge."""

    integrator: Axis[IntegratorName] = ("mc", "qmc", "rqmc", "conditional")
    num_points: Axis[Count] = (16, 64, 256, 1024)
    repeats: Annotated[int, Field(ge=2, le=1000, strict=True)] = 8
    """Seeds over which the error is averaged."""
    reference_points: Count = 16384
    """Points per datum of the reference, plain Monte Carlo in float64."""

    @model_validator(mode="after")
    def _converge(self) -> Self:
        for name, why in (("forward_mc", "needs the network"), ("bonferroni", "knows no points")):
            if name in self.integrator:
                raise ValueError(f"integrator: {name} {why}; leave it out here, and name it in risks")
        _require_sobol(self.num_points, self.integrator)
        return self


class CellResources(Section):
    """What one process of the sweep gets. Posteriors and certificates run on CPU cores, also where there are GPUs."""

    cpus: Count = 1
    at_once: Whole = 0
    """Processes at a time; 0: as many as fit."""


class AllResources(Section):
    """Where each stage runs."""

    train: Resources = Resources()
    push: Resources = Resources()
    cells: CellResources = CellResources()


class Search(Section):
    """Instead of all posteriors: some, found by one of Ray Tune's searchers; all of them are paid for."""

    searcher: Literal["random", "optuna"] = "optuna"
    scheduler: Literal["none", "asha"] = "none"
    """`asha`: fits whose bound falls behind others' are stopped early."""
    samples: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    """How often the searcher is asked; what it asks for twice is computed once."""


class Suite(Section):
    """A suite file."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """Its name: small letters, digits, - and _; the results' folder is called so."""
    about: Annotated[str, Field(max_length=2000)] = ""
    data: Data
    priors: Priors
    pushforwards: Pushforwards = Pushforwards()
    posteriors: Posteriors = Posteriors()
    risks: Risks = Risks()
    certificates: Certificates = Certificates()
    convergence: Convergence | None = None
    search: Search | None = None
    resources: AllResources = AllResources()

    @model_validator(mode="after")
    def _searches_are_paid_for(self) -> Self:
        if self.search is not None and self.certificates.report != "best":
            raise ValueError(
                "a search chooses by certificates, which has to be paid for: set certificates.report: best"
            )
        if self.search is not None and self.convergence is not None:
            raise ValueError("a search may not come by the posteriors that convergence is shown for: leave out one")
        return self


def read_suite(path: Path) -> Suite:
    """The suite in a YAML file, or a `SuiteError`."""
    try:
        return Suite.model_validate(read_yaml(path))
    except FileError as error:
        raise SuiteError(str(error)) from error
    except ValidationError as error:
        raise SuiteError(f"{path}, {explain(error, Suite)}") from error


def num_cells_at_most(suite: Suite) -> int:
    """An upper bound of the number of cells, without planning them."""
    lengths = {place: len(axis) for place, axis in _axes(suite)}

    def product(*sections: str) -> int:
        return math.prod(length for place, length in lengths.items() if place.split(".")[0] in sections)

    integrated = product("data", "priors", "pushforwards", "posteriors", "risks")
    return integrated + product("data", "priors")


def check_num_cells(suite: Suite) -> None:
    """Refuse a grid that is too large, before it is planned."""
    most = num_cells_at_most(suite)
    if most > MOST_CELLS:
        place, axis = max(_axes(suite), key=lambda pair: len(pair[1]))
        raise SuiteError(
            f"{place}: the suite's grid has up to {most} cells, more than {MOST_CELLS}; shorten its axes, of which "
            f"this one is the longest with {len(axis)} values."
        )


def _axes(suite: Suite) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every axis that cells are planned along, with its place in the file; several bounds and ε share a cell."""
    for section in ("data", "priors", "pushforwards", "posteriors", "risks"):
        for name, value in getattr(suite, section):
            if isinstance(value, tuple):
                yield f"{section}.{name}", value


def check_sizes(suite: Suite, num_classes: int) -> None:
    """Refuse what is too large for data of so many classes; a `SuiteError` with the place in the file."""
    if "ldaf" not in suite.priors.method:
        return
    num_nodes, dimension = max(suite.priors.num_nodes), num_classes - 1
    if "dense" in suite.posteriors.covariance and num_nodes * dimension > LARGEST_DENSE:
        raise SuiteError(
            f"posteriors.covariance: dense needs n(c − 1) of at most {LARGEST_DENSE}, which is {num_nodes} · "
            f"{dimension} here; leave dense out, or lower priors.num_nodes."
        )
    if dimension <= SobolEngine.MAXDIM:
        return
    sobol = f"Sobol points have at most {SobolEngine.MAXDIM} dimensions, and {num_classes} classes need {dimension}"
    if "lambda" in suite.posteriors.objective:
        raise SuiteError(f"posteriors.objective: {sobol}; use the objective prior.")
    if "scaled" in suite.posteriors.covariance:
        raise SuiteError(f"posteriors.covariance: {sobol}; leave scaled out.")
    for place, section in (("risks", suite.risks), ("convergence", suite.convergence)):
        for integrator in section.integrator if section else ():
            if integrator in SOBOL:
                raise SuiteError(f"{place}.integrator: {sobol}; leave {integrator} out.")
