r"""The linearized deep assignment flow: features → flow with a Gaussian start → Gaussian logits. [Boll22]

The digest is (M, G): network and flow run once per datum, and every prior, fit and integration works on it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from ldaf_bench.methods.gaussian import OUTCOMES, GaussianFit, GaussianPrior, sobol_refusal
from ldaf_bench.methods.method import Data, Digest, Fitted, Method, Watch
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import Flow, FlowHead
from ldaf_bench.models.network import Network
from ldaf_bench.sections import Fraction, Shown, Spec
from ldaf_bench.theory.gaussian import Gaussian, from_tensors
from ldaf_bench.theory.integrate import Draw, Problem
from ldaf_bench.theory.logits import flow_draw
from ldaf_bench.theory.logits import problem as closed_problem
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


class Fit(GaussianFit):
    """How the start is fitted."""

    mean: Annotated[Literal["zero", "fitted"], Shown("posterior mean")] = "zero"
    """Mean of the posterior: 0 or the trained layer as in the prior, or `fitted` with the covariance."""


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


def prior(spec: GaussianPrior, network: Network, data: Data | None, seed: int) -> Gaussian:
    """Where the covariance starts, by the seed and by prior data alone."""
    head = network.config.head
    assert isinstance(head, FlowHead)
    size = head.num_nodes * (network.num_classes - 1)
    cache, labels = (None, None) if data is None else (pushforward_of(data.digest), data.labels)
    return spec.make(size, cache, labels, seed)


def fit_start(spec: Fit, prior: Gaussian, data: Data, seed: int, watch: Watch) -> Fitted:
    """The start's distribution that minimizes the λ-bound on the certificate part."""
    return spec.run(pushforward_of(data.digest), data.labels, prior, seed, watch, mean=spec.mean == "fitted")


def problem(spec: DigestSpec, gaussian: Gaussian, data: Data) -> Problem:
    """Gaussian logits in closed form; draws integrate the flow again from a fresh start."""

    def draw(gaussian: Gaussian) -> Draw:
        bound: list[Draw] = []

        def lazily(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            if not bound:  # only integrators that draw need the network's flow
                head = _flow(data.network.model().to(data.labels.device))
                flow = head.spec.flow, head.parameter.detach(), data.digest["features"], head.spec.horizon
                bound.append(flow_draw(*flow, spec.tolerance)(gaussian))
            return bound[0](part, num_samples, generator)

        return lazily

    return closed_problem(pushforward_of(data.digest), gaussian, data.labels, draw)


def refusal(axes: Any, num_classes: int) -> tuple[str, str]:
    """What is too large for data of so many classes."""
    dimension = num_classes - 1
    largest = max(axes.num_nodes) * dimension
    if "dense" in axes.covariance and largest > LARGEST_DENSE:
        return "covariance", (
            f"dense needs n(c − 1) ≤ {LARGEST_DENSE}, but here it is {largest}: leave dense out, or lower num_nodes"
        )
    return sobol_refusal(axes, num_classes)


LDAF = Method(
    name="ldaf",
    head=FlowHead,
    digest=digest,
    logits=lambda digest: digest["mean"],
    prior=prior,
    fit=fit_start,
    problem=problem,
    restore=from_tensors,
    offers=frozenset({"gaussian", "draws", "shared"}),
    digest_axes=DigestSpec,
    prior_axes=GaussianPrior,
    fit_axes=Fit,
    needs_prior_data=lambda spec: spec.needs_data,
    refusal=refusal,
    outcomes=OUTCOMES,
)
