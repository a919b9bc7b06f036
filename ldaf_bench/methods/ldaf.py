r"""The linearized deep assignment flow: features → flow with a Gaussian start → Gaussian logits. [Boll22]

The digest is (M, G): network and flow run once per datum, and every prior, fit and integration works on it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from pydantic import model_validator
from torch import Tensor
from torch.quasirandom import SobolEngine

from ldaf_bench.columns import Column
from ldaf_bench.methods.method import UNFITTED, Data, Digest, FitSpec, Fitted, Method, Watch
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import Flow, FlowHead
from ldaf_bench.models.network import Network
from ldaf_bench.sections import Count, EntryOf, Fraction, Positive, Shown, Spec
from ldaf_bench.theory.covariances import COVARIANCES, FINDS_ITS_SCALE, PriorData, initial_covariance
from ldaf_bench.theory.gaussian import Gaussian, from_tensors
from ldaf_bench.theory.integrate import Draw, Problem
from ldaf_bench.theory.logits import flow_draw
from ldaf_bench.theory.logits import problem as flow_problem
from ldaf_bench.theory.posterior import OPTIMIZERS, Alternation, FitSettings, fit
from ldaf_bench.theory.pushforward import Pushforward, push

ATTEMPTS = 4
SAMPLE = 16
"""Data per batch that are recomputed in float64."""
LARGEST_DENSE = 5000
"""n(c − 1) of a dense covariance: its factor takes 0.2 GB then, and as much for every copy that fitting needs."""


class DigestSpec(Spec):
    """How exactly the flow is integrated."""

    tolerance: Annotated[Fraction | None, Shown("Krylov tolerance", "smallest", "the precision's own")] = None
    """Tolerance of the Krylov spaces; null: the precision's own."""


class PriorSpec(Spec):
    """Where the covariance starts."""

    covariance: Annotated[str, EntryOf("covariance", COVARIANCES)] = "code"
    """Initialization of the covariance."""
    scale: Positive = 0.1
    """σ, the size of the start's covariance; `scaled` finds its own from `rise`."""
    rise: Positive = PriorData._field_defaults["rise"]
    """For `scaled`: by how much the Gibbs risk on prior data may exceed the mean classifier's error."""

    def unused(self) -> frozenset[str]:
        return frozenset({"scale"} if self.covariance in FINDS_ITS_SCALE else {"rise"})


class Fit(FitSpec):
    """How the covariance is fitted; the defaults are those of `FitSettings`."""

    objective: Literal["cross_entropy", "unfitted"] = "cross_entropy"
    """What the fit minimizes: the λ-bound with the cross-entropy; `unfitted`: the posterior is the prior itself."""
    fit_points: Annotated[Count, Shown("points in training", "largest")] = FitSettings.num_points
    """Sobol points per datum in training, a power of 2."""
    optimizer: Annotated[str, EntryOf("optimizer", OPTIMIZERS)] = FitSettings.optimizer
    """How the covariance is moved."""
    learning_rate: Annotated[Positive | None, Shown(null_means="the optimizer's own")] = FitSettings.learning_rate
    """Learning rate of the fit; null: the optimizer's own."""
    fit_epochs: Count = FitSettings.epochs
    """Passes over the certificate part in one alternation."""
    max_alternations: Count = FitSettings.max_alternations
    """Alternations between covariance and λ at most."""
    fit_batch: Count = FitSettings.batch_size
    """Data per step of the fit."""
    fit_epsilon: Fraction = FitSettings.epsilon
    """ε of the bound that the fit minimizes. Any value is valid; certificates have their own."""

    @model_validator(mode="after")
    def _points_are_a_power(self) -> Fit:
        count = self.fit_points
        if count & (count - 1) or count > 2**SobolEngine.MAXBIT:
            raise ValueError(f"fit_points must be a power of 2, at most 2^30 (Sobol points); got {count}")
        return self


def digest(spec: DigestSpec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """(M, G), its error estimate, and the features that it is of; what is less exact than it says is computed again.

    Once, on a busy virtual machine, half of a batch came out a hundred times less exact than its error estimate said,
    and never again from the same input. So some data are compared with float64. If the same result comes out twice, it
    is what the computation gives, and stays.
    """
    head = _flow(model)
    features = head.features(model.vectors(images), model.backbone.scale)
    seen: list[Pushforward] = []
    while len(seen) < ATTEMPTS:
        pushed = push(head.spec.flow, head.parameter, features, head.spec.horizon, tolerance=spec.tolerance)
        again = any(all(map(torch.equal, pushed, other)) for other in seen)
        if again or is_as_exact_as_it_says(head, features, pushed):
            return {**pushed._asdict(), "features": features}
        seen.append(pushed)
    raise ArithmeticError(
        f"The flow gave {ATTEMPTS} different results for the same input: check this machine's memory."
    )


def is_as_exact_as_it_says(head: Flow, features: Tensor, pushed: Pushforward) -> bool:
    """Whether some data, spread over the batch, agree with float64 within their error estimate."""
    some = torch.linspace(0, len(features) - 1, min(SAMPLE, len(features)), device=features.device).long()
    exact = push(head.spec.flow, head.parameter.double(), features[some].double(), head.spec.horizon)
    pairs = ((exact.mean, pushed.mean), (exact.rows, pushed.rows))
    gaps = (torch.abs(one - other[some]).flatten(1).amax(1) for one, other in pairs)
    return all(bool((gap <= pushed.error[some]).all()) for gap in gaps)


def _flow(model: Classifier) -> Flow:
    assert isinstance(model.head, Flow)
    return model.head


def pushforward_of(digest: Digest) -> Pushforward:
    """(M, G) and its error, as `theory` takes them."""
    return Pushforward(*(digest[name] for name in Pushforward._fields))


def prior(spec: PriorSpec, network: Network, data: Data | None, seed: int) -> Gaussian:
    """Where the covariance starts, by the seed and by prior data alone."""
    head = network.config.head
    assert isinstance(head, FlowHead)
    size = head.num_nodes * (network.num_classes - 1)
    some = None if data is None else PriorData(pushforward_of(data.digest), data.labels, spec.rise)
    scale = 1.0 if "scale" in spec.unused() else spec.scale
    return initial_covariance(spec.covariance, size, scale=scale, seed=seed, data=some)


def fit_covariance(spec: Fit, prior: Gaussian, data: Data, seed: int, watch: Watch) -> Fitted:
    """The posterior that minimizes the λ-bound on the certificate part."""
    settings = FitSettings(
        epsilon=spec.fit_epsilon,
        num_points=spec.fit_points,
        optimizer=spec.optimizer,
        learning_rate=spec.learning_rate,
        epochs=spec.fit_epochs,
        max_alternations=spec.max_alternations,
        batch_size=spec.fit_batch,
        seed=seed,
    )
    found = fit(pushforward_of(data.digest), data.labels, prior, settings, lambda step: watch(step.bound))
    outcome = {"lam": found.lam, "alternations": len(found.history) - 1, "converged": found.converged}
    return Fitted(found.gaussian, outcome, tuple(map(_point, found.history)))


def _point(step: Alternation) -> dict[str, float]:
    """One step of the fit as a point of its curves."""
    values = step._asdict()
    return {"x": float(values.pop("number")), **values}


def problem(spec: DigestSpec, gaussian: Gaussian, data: Data) -> Problem:
    """Gaussian logits in closed form; draws integrate the flow again from a fresh start."""

    def draw(gaussian: Gaussian) -> Draw:
        bound: list[Draw] = []

        def lazily(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            if not bound:  # only integrators that draw need the network's flow
                head = _flow(data.network.model())
                flow = head.spec.flow, head.parameter.detach(), data.digest["features"], head.spec.horizon
                bound.append(flow_draw(*flow, spec.tolerance)(gaussian))
            return bound[0](part, num_samples, generator)

        return lazily

    return flow_problem(pushforward_of(data.digest), gaussian, data.labels, draw)


def refusal(axes: Any, num_classes: int) -> tuple[str, str]:
    """What is too large for data of so many classes."""
    dimension = num_classes - 1
    largest = max(axes.num_nodes) * dimension
    if "dense" in axes.covariance and largest > LARGEST_DENSE:
        return "covariance", (
            f"dense needs n(c − 1) ≤ {LARGEST_DENSE}, but here it is {largest}: leave dense out, or lower num_nodes"
        )
    limit = f"Sobol points have at most {SobolEngine.MAXDIM} dimensions, but {num_classes} classes need {dimension}"
    if dimension > SobolEngine.MAXDIM and set(axes.objective) != {UNFITTED}:
        return "objective", f"{limit}; use the objective {UNFITTED}"
    if dimension > SobolEngine.MAXDIM and FINDS_ITS_SCALE & set(axes.covariance):
        return "covariance", f"{limit}; leave out {', '.join(sorted(FINDS_ITS_SCALE))}"
    return "", ""


LDAF = Method(
    name="ldaf",
    head=FlowHead,
    digest=digest,
    logits=lambda digest: digest["mean"],
    prior=prior,
    fit=fit_covariance,
    problem=problem,
    restore=from_tensors,
    offers=frozenset({"gaussian", "draws"}),
    digest_axes=DigestSpec,
    prior_axes=PriorSpec,
    fit_axes=Fit,
    needs_prior_data=lambda spec: spec.covariance in FINDS_ITS_SCALE,
    refusal=refusal,
    outcomes=(
        Column("lam", float, "λ at the end of the fit", "λ"),
        Column("alternations", int, "alternations between covariance and λ"),
        Column("converged", bool, "whether the bound had stopped moving"),
    ),
)
