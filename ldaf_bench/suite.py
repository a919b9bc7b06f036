"""The suite: a YAML file as a frozen value. Validation, and nothing else.

Every axis is one value or a list. The plan is the union of the methods' grids.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError
from torch.quasirandom import SobolEngine

from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.methods import METHODS
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.recipe import Recipe, recipe_from
from ldaf_bench.resources import Resources
from ldaf_bench.sections import Axis, Count, EntryOf, Fraction, Section, Whole
from ldaf_bench.theory.bounds import BOUNDS, GUESS, Bound, Classifier
from ldaf_bench.theory.certificate import fits
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.yaml_file import FileError, explain, keys_of, read_yaml

MOST_INTEGRATIONS = 100_000
"""More than this is a slip of the pen."""
MOST_SOBOL_POINTS: int = 2**SobolEngine.MAXBIT

DatasetName = Annotated[str, EntryOf("dataset", DATASETS)]
BackboneName = Annotated[str, EntryOf("backbone", BACKBONES)]
IntegratorName = Annotated[str, EntryOf("integrator", INTEGRATORS)]
BoundName = Annotated[str, EntryOf("bound", BOUNDS)]


class SuiteError(Exception):
    """The suite file is wrong; the message is one sentence with the place in the file."""


class Data(Section):
    """Which data, and how they are divided."""

    dataset: DatasetName
    split_seed: Whole = 0
    """Seed of the split."""
    certificate: Axis[Fraction] = (0.2,)
    """Fraction of the points outside the test part that certify; all others train networks."""
    test: Fraction = 0.2
    """Fraction of all points that test, for data without a test set of their own."""


class Networks(Section):
    """The networks to train. Heads are the methods' own; methods with the same head share networks."""

    backbone: Axis[BackboneName]
    recipe: Annotated[Recipe, BeforeValidator(recipe_from)]
    """One of RECIPES by name, or `base` and what differs."""
    seed: Axis[Whole] = (0,)
    """Seed of weights, order and augmentation, and of everything drawn for the network's posteriors."""


def _check_points(integrators: Sequence[str], counts: Sequence[int]) -> None:
    """Numbers of points that these integrators can use, or a `ValueError`."""
    for entry in (INTEGRATORS[name] for name in integrators):
        for count in counts:
            if count < entry.least_points:
                raise ValueError(f"num_points must be at least {entry.least_points} for {entry.name}; got {count}")
            if entry.sobol and (count & (count - 1) or count > MOST_SOBOL_POINTS):
                raise ValueError(
                    f"num_points must be powers of 2, at most 2^30 (Sobol points of {entry.name}); got {count}"
                )


class Risks(Section):
    """How the expected empirical risk is integrated."""

    integrator: Axis[IntegratorName] = (next(iter(INTEGRATORS)),)
    num_points: Axis[Count] = (1024,)
    """q: points per datum; powers of 2 if an integrator uses Sobol points."""

    @model_validator(mode="after")
    def _points_fit(self) -> Self:
        _check_points(self.integrator, self.num_points)
        return self


class Certificates(Section):
    """Which bounds, at which confidence."""

    bound: Axis[BoundName] = (next(iter(BOUNDS)),)
    guess: Axis[Fraction] = (GUESS,)
    """Guesses of the risk, for bounds that rest on one; each guess is an event of its own."""
    epsilon: Axis[Fraction] = (0.0199,)
    """ε of the bounds; each value is a statement of its own."""
    delta: Fraction = 0.0001
    """δ′ of the integrations: ε + δ′ is the total. A small δ′ costs little."""
    report: Literal["all", "best"] = "all"
    """`best`: the best result may be reported, and all pay for the choice. `all`: nothing is selected."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        for epsilon in self.epsilon:
            if epsilon + self.delta >= 1:
                raise ValueError(f"epsilon {epsilon:g} and delta {self.delta:g} add up to 1 or more")
        return self

    def bounds_about(
        self, classifier: Classifier, integrator: str | None = None, has_mean: bool = True
    ) -> tuple[Bound, ...]:
        """The bounds for such a classifier, integrated like this, at all guesses; mean classifiers by none."""
        entry = None if integrator is None else INTEGRATORS[integrator]
        every = (bound for name in self.bound for bound in BOUNDS[name].each(self.guess))
        return tuple(bound for bound in every if fits(bound, classifier, entry, has_mean))


class Convergence(Section):
    """The paper's figure: how fast the integrators converge."""

    integrator: Axis[IntegratorName] = tuple(
        name for name, entry in INTEGRATORS.items() if entry.least_points and entry.needs == "gaussian"
    )
    num_points: Axis[Count] = (16, 64, 256, 1024)
    repeats: Annotated[int, Field(ge=2, le=1000, strict=True)] = 8
    """Seeds over which the error is averaged."""
    reference_points: Count = 16384
    """Points per datum of the reference, plain Monte Carlo in float64."""

    @model_validator(mode="after")
    def _converge(self) -> Self:
        for name in self.integrator:
            if not INTEGRATORS[name].least_points:
                raise ValueError(f"integrator: {name} uses no points, so it does not converge; leave it out here")
        _check_points(self.integrator, self.num_points)
        return self


class PosteriorResources(Section):
    """What one process of the sweep gets. Fits and integrations run on CPU cores, also where there are GPUs."""

    cpus: Count = 1
    at_once: Whole = 0
    """Processes at a time; 0: as many as fit."""


class AllResources(Section):
    """Where each stage runs."""

    train: Resources = Resources()
    digest: Resources = Resources()
    posteriors: PosteriorResources = PosteriorResources()


class Search(Section):
    """Instead of all posteriors: some, found by one of Ray Tune's searchers. The budget covers all of them."""

    searcher: Literal["random", "optuna"] = "optuna"
    scheduler: Literal["none", "asha"] = "none"
    """`asha`: fits whose objective falls behind others' are stopped early."""
    samples: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    """How often the searcher is asked; what it asks for twice is computed once."""


def _methods_from(value: Any) -> Any:
    """Each method's section, validated by the method itself; mistakes keep their place in the file."""
    if not isinstance(value, Mapping) or not value:
        raise ValueError(f"list at least one method with its axes, like {next(iter(METHODS))}: {{}}")
    sections, mistakes = {}, []
    for name, content in value.items():
        if name not in METHODS:
            near = difflib.get_close_matches(str(name), METHODS, 1, 0.4)
            hint = f"did you mean {near[0]}?" if near else f"the methods are {', '.join(METHODS)}"
            known = PydanticCustomError("value_error", "there is no such method; {hint}", {"hint": hint})
            mistakes.append(InitErrorDetails(type=known, loc=(str(name),), input=None))
            continue
        if isinstance(content, Section):
            content = content.model_dump()
        try:
            sections[name] = METHODS[name].axes.model_validate({} if content is None else content)
            # The specs check what concerns several fields, or more than a type can say.
            for spec, point in points_of(METHODS[name].specs, sections[name]):
                spec(**point)
        except ValidationError as error:
            for line in error.errors(include_url=False):
                kind = line["type"]
                known = PydanticCustomError(kind, "{said}", {"said": line["msg"]})
                mistakes.append(InitErrorDetails(type=known, loc=(name, *line["loc"]), input=line["input"]))
    if mistakes:
        raise ValidationError.from_exception_data("methods", mistakes)
    return sections


def points_of(specs: Sequence[Any], section: Section) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Each axis at each of its values, all others at their first: enough to have every value checked."""
    for spec in specs:
        axes = {name: getattr(section, name) for name in spec.model_fields}
        first = {name: values[0] for name, values in axes.items()}
        for name, values in axes.items():
            for value in values:
                yield spec, {**first, name: value}


class _MethodSections:
    """The JSON Schema of `methods`: one optional section per entry of METHODS."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        sections = {}
        for name, method in METHODS.items():
            section = handler(method.axes.__pydantic_core_schema__)
            sections[name] = {"anyOf": [section, {"type": "null"}]}
        return {"type": "object", "properties": sections, "additionalProperties": False, "minProperties": 1}


class Suite(Section):
    """A suite file."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """Its name: small letters, digits, - and _; the results' folder is called so."""
    about: Annotated[str, Field(max_length=2000)] = ""
    data: Data
    networks: Networks
    methods: Annotated[dict[str, SerializeAsAny[Section]], BeforeValidator(_methods_from), _MethodSections()]
    risks: Risks = Risks()
    certificates: Certificates = Certificates()
    convergence: Convergence | None = None
    search: Search | None = None
    resources: AllResources = AllResources()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.search is not None and self.certificates.report != "best":
            raise ValueError("a search selects by certificates, which must be paid for: set certificates.report: best")
        if self.search is not None and self.convergence is not None:
            raise ValueError("a search may not try the posteriors that convergence is shown for: leave out one of them")
        stochastic = [name for name in self.methods if METHODS[name].prior is not None]
        if self.search is not None and not stochastic:
            raise ValueError("there are no posteriors to search: add a method that has some")
        kinds = {kind for name in self.methods for kind in self.classifiers(name)}
        for name in self.certificates.bound:
            if not kinds & BOUNDS[name].about:
                about = " or ".join(sorted(BOUNDS[name].about))
                raise ValueError(f"certificates.bound: {name} is about a {about}, and no method here has one")
        offered = {need for name in stochastic for need in METHODS[name].offers}
        for place, section in (("risks", self.risks), ("convergence", self.convergence)):
            for name in section.integrator if section and stochastic else ():
                if INTEGRATORS[name].needs not in offered:
                    needs = INTEGRATORS[name].needs
                    raise ValueError(f"{place}.integrator: {name} needs {needs}, and no method here offers that")
        for name in self.certificates.bound:
            if not any(self._uses(BOUNDS[name], method) for method in self.methods):
                integrators = ", ".join(self.risks.integrator)
                raise ValueError(f"certificates.bound: {name} goes with no method here integrated by {integrators}")
        return self

    def classifiers(self, name: str) -> frozenset[Classifier]:
        """The kinds of classifiers that a method makes here."""
        method, kinds = METHODS[name], set[Classifier]()
        if method.logits is not None:
            kinds.add("mean")
        if method.prior is not None:
            objectives = self.methods[name].objective  # type: ignore[attr-defined]
            fitted = {method.fit_axes(objective=value).fitted for value in objectives}
            kinds |= {"posterior" if one else "prior" for one in fitted}
        return frozenset(kinds)

    def _uses(self, bound: Bound, name: str) -> bool:
        """Whether a certificate of a method's classifiers uses the bound."""
        method = METHODS[name]
        offered = [INTEGRATORS[one] for one in self.risks.integrator if INTEGRATORS[one].needs in method.offers]
        return any(
            fits(bound, kind, entry, method.logits is not None)
            for kind in self.classifiers(name)
            for entry in ([None] if kind == "mean" else offered)
        )


def keys_at(place: Sequence[str]) -> list[str]:
    """The keys that are valid at a place in a suite file."""
    if list(place) == ["methods"]:
        return list(METHODS)
    if len(place) == 2 and place[0] == "methods" and place[1] in METHODS:
        return list(METHODS[place[1]].axes.model_fields)
    return keys_of(Suite, place)


def read_suite(path: Path) -> Suite:
    """The suite in a YAML file, or a `SuiteError`."""
    try:
        return Suite.model_validate(read_yaml(path))
    except FileError as error:
        raise SuiteError(str(error)) from error
    except ValidationError as error:
        raise SuiteError(f"{path}, {explain(error, keys_at)}") from error


def num_integrations_at_most(suite: Suite) -> int:
    """An upper bound of the number of integrations, without planning them."""
    shared = math.prod(len(axis) for place, axis in axes(suite) if not place.startswith("methods."))
    own = 0
    for name in suite.methods:
        own += math.prod(len(axis) for place, axis in axes(suite) if place.startswith(f"methods.{name}."))
    return shared * own


def axes(suite: Suite) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every axis that integrations are planned along, with its place in the file."""
    sections: dict[str, Section] = {"data": suite.data, "networks": suite.networks, "risks": suite.risks}
    sections |= {f"methods.{name}": section for name, section in suite.methods.items()}
    for place, section in sections.items():
        for name, value in section:
            if isinstance(value, tuple):
                yield f"{place}.{name}", value


def check_sizes(suite: Suite, num_classes: int) -> None:
    """Refuse, before it is planned, what is too large; a `SuiteError` with the place in the file."""
    most = num_integrations_at_most(suite)
    if most > MOST_INTEGRATIONS:
        place, axis = max(axes(suite), key=lambda pair: len(pair[1]))
        raise SuiteError(
            f"{place}: the plan would have up to {most} integrations, more than {MOST_INTEGRATIONS}; shorten its axes. "
            f"This one is the longest, with {len(axis)} values."
        )
    for name, section in suite.methods.items():
        axis_name, why = METHODS[name].refusal(section, num_classes)
        if why:
            raise SuiteError(f"methods.{name}.{axis_name}: {why}.")
    if num_classes - 1 <= SobolEngine.MAXDIM:
        return
    for place_name, asked in (("risks", suite.risks), ("convergence", suite.convergence)):
        for integrator in asked.integrator if asked else ():
            if INTEGRATORS[integrator].sobol:
                raise SuiteError(
                    f"{place_name}.integrator: Sobol points have at most {SobolEngine.MAXDIM} dimensions, but "
                    f"{num_classes} classes need {num_classes - 1}; leave {integrator} out."
                )
