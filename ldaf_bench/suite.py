"""The suite: a YAML file as a frozen value. Validation, and nothing else.

Every axis is one value or a list. The plan is the union of the methods' grids.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from torch.quasirandom import SobolEngine

from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.section import MethodSections, methods_from
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.recipe import Recipe, recipe_from
from ldaf_bench.resources import Auto, Gpus, Resources, TrainResources
from ldaf_bench.sections import Axis, Count, EntryOf, Fraction, Section, Whole, grids
from ldaf_bench.theory.bounds import BOUNDS, GUESS, Bound, Classifier
from ldaf_bench.theory.certificate import fits
from ldaf_bench.theory.integrate import INTEGRATORS, Integrator
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
    validation: Fraction | None = None
    """To compare recipes: this fraction of the prior part takes the places of certificate and test part, half of it
    each. The real ones are not looked at."""


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
    num_draws: Axis[Count] = (16,)
    """q of integrators that run the classifier for every draw, which costs far more than a point."""

    @model_validator(mode="after")
    def _points_fit(self) -> Self:
        for name in self.integrator:
            _check_points([name], self.points(INTEGRATORS[name]))
        return self

    def points(self, integrator: Integrator) -> tuple[int, ...]:
        """The values of q for an integrator; 0 for one that has none."""
        if not integrator.least_points:
            return (0,)
        return self.num_points if integrator.needs == "gaussian" else self.num_draws


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
        """The bounds for such a classifier, integrated like this, at all guesses."""
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
    num_data: Count | None = None
    """Data of the certificate part, spread over it, whose own risks are compared one by one; null: compare the risk of
    the whole part."""

    @model_validator(mode="after")
    def _converge(self) -> Self:
        for name in self.integrator:
            if not INTEGRATORS[name].least_points:
                raise ValueError(f"integrator: {name} uses no points, so it does not converge; leave it out here")
        _check_points(self.integrator, self.num_points)
        return self


class PosteriorResources(Section):
    """What the process of one posterior gets."""

    cpus: Count = 1
    gpus: Auto | Gpus = "auto"
    """Fits and integrations on cached data take seconds on a core. `auto`: one GPU, if there is any, for methods that
    run the network for every draw."""
    at_once: Whole = 0
    """Processes at a time; 0: as many as fit."""


class AllResources(Section):
    """Where each stage runs."""

    train: TrainResources = TrainResources()
    digest: Resources = Resources()
    posteriors: PosteriorResources = PosteriorResources()


class Search(Section):
    """Instead of all posteriors: some, found by one of Ray Tune's searchers. The budget covers all of them."""

    searcher: Literal["random", "optuna"] = "optuna"
    scheduler: Literal["none", "asha"] = "none"
    """`asha`: fits whose objective falls behind others' are stopped early."""
    samples: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    """How often the searcher is asked; what it asks for twice is computed once."""


class Published(Section):
    """A number that others published, to stand beside this suite's."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    """What it is of."""
    source: Annotated[str, Field(min_length=1, max_length=200)]
    certificate: Fraction | None = None
    epsilon: Fraction | None = None
    """How often the certificate may fail, as its source says."""
    test_risk: Fraction | None = None


class Suite(Section):
    """A suite file."""

    suite: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]
    """Its name: small letters, digits, - and _; the results' folder is called so."""
    about: Annotated[str, Field(max_length=2000)] = ""
    data: Data
    networks: Networks
    methods: Annotated[dict[str, SerializeAsAny[Section]], BeforeValidator(methods_from), MethodSections()]
    risks: Risks = Risks()
    certificates: Certificates = Certificates()
    convergence: Convergence | None = None
    search: Search | None = None
    resources: AllResources = AllResources()
    reference: Annotated[tuple[Published, ...], Field(exclude_if=operator.not_)] = ()
    """Published numbers, for figures and tables."""
    rehearsal: Annotated[bool, Field(exclude_if=operator.not_)] = False
    """Whether this is the rehearsal of a suite (`--rehearse`), of which no result counts."""

    @model_validator(mode="before")
    @classmethod
    def _integrators_that_fit(cls, content: Any) -> Any:
        """Where no integrator is asked for: for each method the first that certifies and can be given to it."""
        if not isinstance(content, Mapping) or not isinstance(content.get("methods"), Mapping):
            return content
        risks = content.get("risks", {})
        if not isinstance(risks, Mapping) or "integrator" in risks:
            return content
        offered = [METHODS[name].offers for name in content["methods"] if name in METHODS and METHODS[name].prior]
        first = [next(n for n, e in INTEGRATORS.items() if e.certifies and e.needs in offers) for offers in offered]
        return {**content, "risks": {**risks, "integrator": list(dict.fromkeys(first))}} if first else content

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.search is not None and self.certificates.report != "best":
            raise ValueError("a search selects by certificates, which must be paid for: set certificates.report: best")
        if self.search is not None and self.convergence is not None:
            raise ValueError("a search may not try the posteriors that convergence is shown for: leave out one of them")
        if self.search is not None and any(len(grids(section)) > 1 for section in self.methods.values()):
            raise ValueError("a search tries points of one grid for each method: leave out also")
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
            objectives = {value for grid in grids(self.methods[name]) for value in grid.objective}
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
    if len(place) in (2, 3) and place[0] == "methods" and place[1] in METHODS:
        return [axis for axis in METHODS[place[1]].axes.model_fields if len(place) == 2 or axis != "also"]
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
    every = [grid for section in suite.methods.values() for grid in grids(section)]
    return shared * sum(math.prod(len(axis) for name, axis in grid if name != "also") for grid in every)


def axes(suite: Suite) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Every axis that integrations are planned along, with its place in the file."""
    sections: dict[str, Section] = {"data": suite.data, "networks": suite.networks, "risks": suite.risks}
    sections |= {f"methods.{name}": section for name, section in suite.methods.items()}
    for place, section in sections.items():
        for name, value in section:
            if isinstance(value, tuple) and name != "also":
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
        for grid in grids(section):
            axis_name, why = METHODS[name].refusal(grid, num_classes)
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
