r"""A Gaussian last layer: independent Gaussian weights around the trained linear layer, all others fixed.

The network is that of any method with a linear head. The digest is the feature vector φ(x): logits are Gaussian in
closed form, and every prior, fit and integration works on it.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from ldaf_bench.methods.gaussian import OUTCOMES, GaussianFit, GaussianPrior, sobol_refusal
from ldaf_bench.methods.method import Data, Digest, Fitted, Method, Watch
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import Linear, LinearHead
from ldaf_bench.models.network import Network
from ldaf_bench.sections import Count, EntryOf, Positive, Shown, Spec
from ldaf_bench.theory.covariances import COVARIANCES
from ldaf_bench.theory.gaussian import Gaussian, from_tensors
from ldaf_bench.theory.integrate import Draw, Problem
from ldaf_bench.theory.layer import Layer, layer_draw
from ldaf_bench.theory.logits import problem as closed_problem


class Prior(GaussianPrior):
    """σ of all weights: one number, from the suite or found on prior data."""

    covariance: Annotated[str, EntryOf("covariance", {name: COVARIANCES[name] for name in ("scaled", "isotropic")})] = (
        "scaled"
    )
    """Initialization of the covariance. `scaled`: σ is found on prior data, and so means the same for every network;
    `isotropic`: σ is `scale`."""


class Fit(GaussianFit):
    """How the weights' distribution is fitted."""

    mean: Annotated[Literal["fixed", "fitted"], Shown("posterior mean")] = "fitted"
    """Mean of the posterior: 0 or the trained layer as in the prior, or `fitted` with the covariance."""
    fit_points: Annotated[Count, Shown("points in training", "largest")] = 256
    """Sobol points per datum of the cross-entropy in training, a power of 2."""
    learning_rate: Annotated[Positive | None, Shown(null_means="the optimizer's own")] = 0.003
    """Learning rate of the fit; null: the optimizer's own."""
    scales: Literal["each", "one"] = "each"
    """What is fitted of the scales: each weight's, or one for all."""


def digest(spec: Spec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """φ(x), with the constant that the bias multiplies as its last entry, and the trained layer's logits."""
    vectors, scale = model.vectors(images), model.backbone.scale
    features = torch.cat([vectors.float(), torch.ones_like(vectors[:, :1], dtype=torch.float32)], dim=1) * scale
    return {"features": features, "logits": _head(model)(vectors, scale)}


def _head(model: Classifier) -> Linear:
    assert isinstance(model.head, Linear)
    return model.head


def trained_weights(model: Classifier) -> Tensor:
    """W⁰ of shape (c, w), the bias as its last column."""
    layer = _head(model).linear
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1).detach()


def layer_of(digest: Digest) -> Layer:
    """The digest as `theory` takes it."""
    return Layer(digest["logits"], digest["features"])


def prior(spec: Prior, network: Network, data: Data | None, seed: int) -> Gaussian:
    """Weights around the trained ones, of one scale."""
    size = trained_weights(network.model()).numel()
    cache, labels = (None, None) if data is None else (layer_of(data.digest), data.labels)
    return spec.make(size, cache, labels, seed)


def fit_weights(spec: Fit, prior: Gaussian, data: Data, seed: int, watch: Watch) -> Fitted:
    """The weights' distribution that minimizes the λ-bound on the certificate part."""
    free = {"mean": spec.mean == "fitted", "one_scale": spec.scales == "one"}
    return spec.run(layer_of(data.digest), data.labels, prior, seed, watch, **free)


def problem(spec: Spec, gaussian: Gaussian, data: Data) -> Problem:
    """Gaussian logits in closed form; draws take fresh weights for every datum and sample."""

    def draw(gaussian: Gaussian) -> Draw:
        bound: list[Draw] = []

        def lazily(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
            if not bound:  # only integrators that draw need the trained weights
                bound.append(layer_draw(trained_weights(data.network.model()), data.digest["features"])(gaussian))
            return bound[0](part, num_samples, generator)

        return lazily

    return closed_problem(layer_of(data.digest), gaussian, data.labels, draw)


LAST_LAYER = Method(
    name="last_layer",
    head=LinearHead,
    digest=digest,
    logits=lambda digest: digest["logits"],
    prior=prior,
    fit=fit_weights,
    problem=problem,
    restore=from_tensors,
    offers=frozenset({"gaussian", "draws", "shared"}),
    prior_axes=Prior,
    fit_axes=Fit,
    needs_prior_data=lambda spec: spec.needs_data,
    refusal=sobol_refusal,
    outcomes=OUTCOMES,
)
