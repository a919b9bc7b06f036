r"""PAC-Bayes with backprop: Gaussian weights on every layer, drawn afresh for every image. [PerezOrtiz21]

The prior is centred on the network that was trained on the prior part. Nothing is known in closed form, so the risk is
drawn: weights of their own for every datum and sample make N = m·q independent errors. The original shares each of q
draws among all data and may count q only.

- [Blundell15] Blundell, Cornebise, Kavukcuoglu, Wierstra. Weight uncertainty in neural networks. 2015.
- [PerezOrtiz21] Pérez-Ortiz, Rivasplata, Shawe-Taylor, Szepesvári. Tighter risk certificates for neural networks. 2021.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from ldaf_bench.methods.method import UNFITTED, Data, FitSpec, Fitted, Method, Watch
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.network import Network
from ldaf_bench.models.stochastic import StochasticClassifier
from ldaf_bench.sections import Count, EntryOf, Fraction, Positive, Shown, Spec
from ldaf_bench.theory.arguments import require
from ldaf_bench.theory.bounds import CLASSIC, LAMBDA, QUAD
from ldaf_bench.theory.integrate import Problem
from ldaf_bench.theory.seeds import named_generator

LEAST_PROBABILITY = 1e-5
"""p_min: the cross-entropy is cut off at ln(1/p_min) and divided by it, so that it lies in [0, 1]."""
MOMENTUM = 0.95
UNIT_DRAWS, UNIT_STEPS = 8, 6
"""To find a scale in units of the logits: draws of the weights, and steps of σ ← σ · wanted/seen. Their number is
fixed, so that σ is a smooth function of the weights: rounding on another machine moves it by rounding only."""
UNIT_START = 0.003
"""σ of the first step."""


class PriorSpec(Spec):
    """Where the weights start."""

    scale: Positive = 0.03
    """σ of every weight, in its `unit`."""
    unit: Literal["own", "logits"] = "own"
    """What `scale` is measured in. `own`: the weights themselves; `logits`: the root mean square deviation of the
    logits on prior data, which means the same for every network and method."""


def bbb(risk: Tensor, kl: Tensor, num_data: int, epsilon: float) -> Tensor:
    """Bayes by backprop: r + KL/m, which is no bound. [Blundell15]"""
    return risk + kl / num_data


OBJECTIVES: dict[str, Callable[[Tensor, Tensor, int, float], Tensor] | None] = {
    **{bound.name: bound for bound in (QUAD, LAMBDA, CLASSIC)},
    "bbb": bbb,
    UNFITTED: None,
}
"""What a fit minimizes, as a function of risk, KL, m and ε."""


class Fit(FitSpec):
    """How means and scales of the weights are fitted."""

    objective: Annotated[str, EntryOf("objective", OBJECTIVES)] = QUAD.name
    """What the fit minimizes, on the bounded cross-entropy; `unfitted`: the posterior is the prior itself."""
    fit_on: Annotated[Literal["certificate", "both"], Shown("fitted on")] = "certificate"
    """`both`: the prior part too. The certificate is computed on the certificate part alone."""
    learning_rate: Positive = 0.005
    """Learning rate of stochastic gradient descent with momentum."""
    fit_epochs: Count = 50
    """Passes over the data of the fit."""
    fit_batch: Count = 250
    """Data per step, which share one draw of the weights."""
    fit_epsilon: Fraction = 0.025
    """ε of the bound that the fit minimizes. Any value is valid; certificates have their own."""


@dataclass(frozen=True)
class Weights:
    """Independent Gaussian weights N(mean, scale²)."""

    mean: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        right = bool((self.scale > 0).all()) and bool(torch.isfinite(self.mean).all())
        require(right, "weights", "finite with positive scales", "not")

    def tensors(self) -> dict[str, Tensor]:
        """All that it is."""
        return {"mean": self.mean, "scale": self.scale}

    def to(self, device: torch.device) -> Weights:
        """The same on a device."""
        return Weights(self.mean.to(device), self.scale.to(device))

    def kl_from(self, prior: Weights) -> float:
        """KL(self ‖ prior), in float64."""
        return float(divergence(self.mean, self.scale, prior))


def divergence(mean: Tensor, scale: Tensor, prior: Weights) -> Tensor:
    r"""Σ ln(σ₀/σ) + (σ² + (μ − μ₀)²)/(2σ₀²) − ½, in float64."""
    ratio = scale.double() / prior.scale.double()
    moved = (mean.double() - prior.mean.double()) / prior.scale.double()
    return ((ratio**2 + moved**2 - 1) / 2 - ratio.log()).sum()


def digest(spec: Spec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """The images themselves, because every draw runs the network again; and the mean classifier's logits."""
    return {"images": images, "logits": model(images)}


def prior(spec: PriorSpec, network: Network, data: Data | None, seed: int) -> Weights:
    """Centred on the trained weights."""
    stochastic, scale = StochasticClassifier(network.model()), spec.scale
    if spec.unit == "logits":
        require(data is not None, "data", "prior-training data for a scale in units of the logits", None)
        assert data is not None
        scale = UNIT_START
        for _ in range(UNIT_STEPS):
            scale *= spec.scale / logit_deviation(stochastic, scale, data, seed)
    return Weights(stochastic.weights, torch.full_like(stochastic.weights, scale))


def logit_deviation(stochastic: StochasticClassifier, scale: float, data: Data, seed: int) -> float:
    """The root mean square distance of a logit from the trained network's; what all classes share is left out."""
    generator = named_generator("unit of weights", seed)
    mean, total = stochastic.weights, 0.0
    images, logits = data.digest["images"], data.digest["logits"]
    for some in torch.arange(len(logits)).tensor_split(UNIT_DRAWS):
        moved = stochastic.shared(mean, torch.full_like(mean, scale), images[some], generator) - logits[some]
        total += float((moved - moved.mean(1, keepdim=True)).double().square().sum())
    return math.sqrt(total / logits.numel())


def fit_weights(spec: Fit, prior: Weights, data: Data, seed: int, watch: Watch) -> Fitted:
    """Stochastic gradient descent on the bound; one draw of the weights for every step, as the original does."""
    objective = OBJECTIVES[spec.objective]
    assert objective is not None
    device = data.labels.device
    stochastic = StochasticClassifier(data.network.model().to(device))
    prior = prior.to(device)
    parts = [data, data.also] if spec.fit_on == "both" and data.also is not None else [data]
    images = torch.cat([part.digest["images"] for part in parts])
    labels = torch.cat([part.labels for part in parts])
    mean = prior.mean.clone().requires_grad_()
    raw = torch.log(torch.expm1(prior.scale)).requires_grad_()  # the inverse of softplus
    optimizer = torch.optim.SGD([mean, raw], lr=spec.learning_rate, momentum=MOMENTUM)
    generator = named_generator("fit of weights", seed, device=device)
    history, begin = [], time.perf_counter()
    for epoch in range(spec.fit_epochs):
        seen = {"bound": 0.0, "bounded_cross_entropy": 0.0, "divergence": 0.0}
        for some in _batches(len(labels), spec.fit_batch, generator):
            optimizer.zero_grad()
            scale = torch.nn.functional.softplus(raw)
            noise = torch.empty_like(mean).normal_(generator=generator)
            risk = bounded_cross_entropy(stochastic(mean + scale * noise, images[some]), labels[some])
            kl = divergence(mean, scale, prior)
            bound = objective(risk.double(), kl, len(labels), spec.fit_epsilon)
            bound.backward()
            optimizer.step()
            for name, value in zip(seen, (bound, risk, kl), strict=True):
                seen[name] += float(value.detach()) * len(some) / len(labels)
        if not math.isfinite(seen["bound"]):
            raise ArithmeticError("The fit diverged: lower learning_rate.")
        history.append({"x": float(epoch + 1), "seconds": time.perf_counter() - begin, **seen})
        watch(seen["bound"])
    found = Weights(mean.detach(), torch.nn.functional.softplus(raw.detach())).to(torch.device("cpu"))
    return Fitted(found, {}, tuple(history))


def _batches(size: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    yield from torch.randperm(size, generator=generator, device=generator.device).split(batch)


def bounded_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """−ln max(p_y, p_min)/ln(1/p_min), the mean over data; in [0, 1]."""
    smallest = math.log(LEAST_PROBABILITY)
    own = logits.log_softmax(-1).gather(1, labels[:, None])
    return own.clamp_min(smallest).mean() / smallest


def problem(spec: Spec, weights: Weights, data: Data) -> Problem:
    """Draws only: fresh weights for every datum and sample, or one draw for all data."""
    images, device = data.digest["images"], data.labels.device
    weights = weights.to(device)
    held: list[StochasticClassifier] = []

    def classifier() -> StochasticClassifier:
        if not held:
            held.append(StochasticClassifier(data.network.model().to(device)))
        return held[0]

    def draw(part: slice, num_samples: int, generator: torch.Generator) -> Tensor:
        return classifier().fresh(weights.mean, weights.scale, images[part], num_samples, generator)

    def shared(generator: torch.Generator) -> Tensor:
        return classifier().shared(weights.mean, weights.scale, images, generator)

    num_classes = data.digest["logits"].shape[1]
    return Problem(None, None, data.labels, draw, num_classes, shared)


PBB = Method(
    name="pbb",
    head=LinearHead,
    digest=digest,
    logits=lambda digest: digest["logits"],
    prior=prior,
    fit=fit_weights,
    problem=problem,
    restore=lambda tensors: Weights(tensors["mean"], tensors["scale"]),
    offers=frozenset({"draws", "shared"}),
    prior_axes=PriorSpec,
    fit_axes=Fit,
    needs_prior_data=lambda spec: spec.unit == "logits",
    fits_on_prior_data=lambda spec: spec.fit_on == "both",
    report_points=16,
    report_draws=12_000,
)
