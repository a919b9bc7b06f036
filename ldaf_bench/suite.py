"""The suite: a YAML file as a frozen value. Validation, and nothing else.

Every axis is one value or a list; the plan is their grid.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.methods.recipe import Recipe, recipe_from
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.resources import Resources
from ldaf_bench.theory.arguments import require_entry
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.flows import FLOWS
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.theory.posterior import OPTIMIZERS

MOST_CELLS = 100_000
"""More than this is a slip of the pen."""


class SuiteError(Exception):
    """The suite file is wrong; the message is one sentence with the place in the file."""


Item = TypeVar("Item")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Axis = Annotated[tuple[Item, ...], BeforeValidator(_as_list), Field(min_length=1)]
"""One value or a list of different ones."""
Count = Annotated[int, Field(ge=1, strict=True)]
Whole = Annotated[int, Field(ge=0, le=2**62, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


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


def _entries(*names: str, among: Iterable[str]) -> Any:
    """A validator: every value of these axes is an entry of a dictionary."""
    known = list(among)

    def check(cls: type[Section], value: Any) -> Any:
        for item in _as_list(value):
            require_entry(names[0], item, known)
        return value

    return field_validator(*names)(classmethod(check))


class Data(Section):
    """Which data, and how they are divided."""

    dataset: str
    """An entry of DATASETS."""
    split_seed: Whole = 0
    certificate: Axis[Fraction] = (0.2,)
    """Fraction of the points outside the test part that certify; all others train priors."""
    test: Fraction = 0.2
    """Fraction of all points that test, for data without a test set of their own."""

    _dataset = _entries("dataset", among=DATASETS)


class Priors(Section):
    """The networks to train."""

    method: Axis[Literal["ldaf", "deterministic"]] = ("ldaf",)
    backbone: Axis[str]
    """Entries of BACKBONES."""
    flow: Axis[str] = ("daf",)
    """Entries of FLOWS."""
    num_nodes: Axis[Annotated[int, Field(ge=1, le=10_000, strict=True)]] = (50,)
    """n."""
    horizon: Axis[Positive] = (1.0,)
    """T."""
    recipe: Recipe
    """One of RECIPES by name, or `base` and what differs."""
    seed: Axis[Whole] = (0,)

    _backbone = _entries("backbone", among=BACKBONES)
    _flow = _entries("flow", among=FLOWS)

    @field_validator("recipe", mode="before")
    @classmethod
    def _named_recipe(cls, value: Any) -> Any:
        return recipe_from(value)


class Pushforwards(Section):
    """How exactly the flow is integrated."""

    tolerance: Axis[Annotated[float, Field(gt=0, lt=1)] | None] = (None,)
    """Of the Krylov spaces; none: the precision's own."""


class Posteriors(Section):
    """Where the covariance starts, and how it is fitted."""

    covariance: Axis[str] = ("code",)
    """Entries of COVARIANCES."""
    scale: Axis[Positive] = (0.1,)
    objective: Axis[Literal["lambda", "prior"]] = ("lambda",)
    """`lambda`: the λ-bound with the cross-entropy; `prior`: the posterior is the prior."""
    num_points: Axis[Count] = (1024,)
    """Sobol points of the cross-entropy in training, powers of 2."""
    optimizer: Axis[str] = ("adam",)
    """Entries of OPTIMIZERS."""
    learning_rate: Positive | None = None
    epochs: Count = 5
    """Passes over the certificate part in one alternation."""
    max_alternations: Count = 20
    batch_size: Count = 256
    rise: Positive = 0.005
    """For the covariance `scaled`: by how much the Gibbs risk on prior data may exceed the mean classifier's error."""

    _covariance = _entries("covariance", among=COVARIANCES)
    _optimizer = _entries("optimizer", among=OPTIMIZERS)

    @field_validator("num_points")
    @classmethod
    def _powers(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        for count in value:
            _require_power(count)
        return value


class Risks(Section):
    """How the expected empirical risk is integrated."""

    integrator: Axis[str] = ("mc",)
    """Entries of INTEGRATORS."""
    num_points: Axis[Count] = (1024,)
    """q: points per datum; powers of 2 if Sobol points are among the integrators."""

    _integrator = _entries("integrator", among=INTEGRATORS)

    @model_validator(mode="after")
    def _powers(self) -> Self:
        if {"qmc", "rqmc", "conditional"} & set(self.integrator):
            for count in self.num_points:
                _require_power(count)
        return self


class Certificates(Section):
    """Which bounds, at which confidence."""

    bound: Axis[str] = ("kl",)
    """Entries of BOUNDS."""
    epsilon: Axis[Fraction] = (0.01,)
    """ε, of the bounds; each value is a statement of its own."""
    delta: Fraction = 0.01
    """δ′, of the integrations."""
    report: Literal["all", "best"] = "all"
    """`best`: the best of all may be reported, and every one pays for the choice. `all`: mean and spread, no choice."""

    _bound = _entries("bound", among=BOUNDS)

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for epsilon in self.epsilon:
            if epsilon + self.delta >= 1:
                raise ValueError(f"epsilon {epsilon:g} and delta {self.delta:g} add up to 1 or more")
        return self


class Convergence(Section):
    """The paper's figure: how fast the integrators converge."""

    integrator: Axis[str] = ("mc", "qmc", "rqmc", "conditional")
    num_points: Axis[Count] = (16, 64, 256, 1024)
    repeats: Annotated[int, Field(ge=2, le=1000)] = 8
    """Seeds over which the error is averaged."""
    reference_points: Count = 16384
    """Points per datum of the reference, plain Monte Carlo in float64."""

    _integrator = _entries("integrator", among=INTEGRATORS)

    @field_validator("num_points")
    @classmethod
    def _powers(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        for count in value:
            _require_power(count)
        return value


class CellResources(Section):
    """What one process of the sweep gets."""

    cpus: Count = 1
    gpus: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
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


def _require_power(count: int) -> None:
    if count & (count - 1):
        raise ValueError(f"num_points must be powers of 2, as Sobol points are used; {count} is none")


def read_suite(path: Path) -> Suite:
    """The suite in a YAML file, or a `SuiteError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise SuiteError(f"{path} cannot be read as YAML: {error}") from error
    try:
        return Suite.model_validate(content)
    except ValidationError as error:
        raise SuiteError(f"{path}, {explain(error)}") from error
    except RecursionError as error:
        raise SuiteError(f"{path} is nested too deeply.") from error


def explain(error: ValidationError) -> str:
    """One sentence about the first thing that is wrong: where, what, and the nearest valid key."""
    first = error.errors(include_url=False)[0]
    place = [str(part) for part in first["loc"]]
    where = ".".join(place) or "at the top"
    if first["type"] == "extra_forbidden":
        keys = _keys_at(place[:-1])
        near = difflib.get_close_matches(place[-1], keys, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"the keys there are {', '.join(keys)}."
        return f"{where}: there is no such key; {hint}"
    if first["type"] == "missing":
        return f"{where}: this key is needed."
    message = first["msg"].removeprefix("Value error, ").rstrip(".")
    given = repr(first.get("input"))
    shown = f" (it is {given})" if first["type"] != "value_error" and len(given) <= 60 else ""
    return f"{where}: {message[0].lower()}{message[1:]}{shown}."


def _keys_at(place: list[str]) -> list[str]:
    """The keys that are valid at a place in the file."""
    model: type[BaseModel] = Suite
    for part in place:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        kinds = [kind for kind in (annotation, *getattr(annotation, "__args__", ())) if isinstance(kind, type)]
        inner = [kind for kind in kinds if issubclass(kind, BaseModel)]
        if not inner:
            return []
        model = inner[0]
    return list(model.model_fields)
