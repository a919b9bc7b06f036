"""What `verify` computes again of each method, by dense code of its own: all that it knows about methods.

Keyed by the entries themselves. A method without an entry here is checked by its own code only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ldaf_bench.methods.last_layer import LAST_LAYER
from ldaf_bench.methods.ldaf import LDAF
from ldaf_bench.methods.method import Distribution, Method
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import Flow
from ldaf_bench.store.digests import Digested
from ldaf_bench.theory.flows import forward
from ldaf_bench.verify import dense
from ldaf_bench.verify.dense import Array, Logits

DENSE_SAMPLE = 8
"""Data of every digest that are computed again by dense matrix exponentials."""
ACTION_SAMPLE = {"certificate": 459}
"""Data of a digest that are computed again by the exponential's action: if 1 % of the certificate part are wrong, at
least one is among these with a probability of 99 %, because 0.99^459 < 0.01."""
OTHER_SAMPLE = 64
"""The same for parts that no certificate rests on."""
ROUNDING = 1e-4
"""How far a digest in float32 may be from float64, relative to a datum's largest entry; more by a flow's tolerance."""


class Again(NamedTuple):
    """Something that a digest says, computed once more."""

    what: str
    exact: Tensor
    stored: Tensor
    allowed: float
    """Largest difference, relative to the datum's largest entry. It is said here: the digest's own error estimate is
    not asked."""


class MethodTwin(NamedTuple):
    """What can be computed again of a method."""

    digest: Callable[[Any, Classifier, Digested, np.random.Generator], Iterator[Again]]
    """(digest spec, classifier, digest, chance)."""
    logits: Callable[[Mapping[str, Tensor], Distribution], Iterator[Logits]]
    """(arrays of a digest, distribution) → of every datum, the logits as an affine map of white noise."""
    kl: Callable[[Distribution, Distribution], float]
    """(posterior, prior), from what they are stored as."""
    risk: Callable[[Iterable[Logits], NDArray[np.int64]], Array] | None = None
    """(logits, labels) → the 0-1 risk of every datum without sampling, if there is a way."""


def _numpy(distribution: Distribution) -> dict[str, Array]:
    return {name: tensor.detach().double().numpy() for name, tensor in distribution.tensors().items()}


def _flow_digest(spec: Any, model: Classifier, digested: Digested, chance: np.random.Generator) -> Iterator[Again]:
    """M of all data by the flow in float64; (M, G) of many by the exponential's action, of a few by exponentials."""
    assert isinstance(model.head, Flow)
    head, tensors = model.head, digested.tensors
    parameter, flow, horizon = head.parameter.detach().double(), head.spec.flow, head.spec.horizon
    allowed = ROUNDING + 10 * (spec.tolerance or 0.0)
    means = [forward(flow, parameter, part.double(), horizon) for part in tensors["features"].split(256)]
    yield Again("M", torch.cat(means), tensors["mean"], allowed)
    many = ACTION_SAMPLE.get(digested.record["part"], OTHER_SAMPLE)
    for twin, size in ((dense.pushforward_by_action, many), (dense.pushforward, DENSE_SAMPLE)):
        some = chance.permutation(len(digested.labels))[:size]
        mean, rows = twin(flow, parameter.numpy(), tensors["features"][some].double().numpy(), horizon)
        yield Again("M", torch.from_numpy(mean), tensors["mean"][some], allowed)
        yield Again("G", torch.from_numpy(rows), tensors["rows"][some], allowed)


def _start(distribution: Distribution) -> tuple[Array, Array]:
    """μ and the whole of B."""
    parts = _numpy(distribution)
    factor = parts["b"] if "b" in parts else np.diag(parts["d"]) + np.outer(parts["q"], parts["q"])
    return parts.get("mean", np.zeros(len(factor))), factor


def _flow_logits(digest: Mapping[str, Tensor], distribution: Distribution) -> Iterator[Logits]:
    """M + P Gᵀ(μ + B ξ), with ξ in all n(c − 1) coordinates of the start."""
    mean, factor = _start(distribution)
    lift = dense.basis(digest["mean"].shape[1])
    for middle, rows in zip(digest["mean"].double().numpy(), digest["rows"], strict=True):
        linear = lift @ rows.double().numpy()
        yield Logits(middle + linear @ mean, linear @ factor)


def _flow_kl(posterior: Distribution, prior: Distribution) -> float:
    return dense.kl(*_start(posterior), *_start(prior))


def _layer_digest(spec: Any, model: Classifier, digested: Digested, chance: np.random.Generator) -> Iterator[Again]:
    """The logits of all data from φ and the network's weights; the bias' constant."""
    weights = model.state_dict()
    features, scale = digested.tensors["features"].double(), model.backbone.scale
    logits = features[:, :-1] @ weights["head.linear.weight"].double().T + scale * weights["head.linear.bias"].double()
    yield Again("logits", logits, digested.tensors["logits"], ROUNDING)
    yield Again("constant", torch.full_like(features[:, -1:], scale), features[:, -1:], ROUNDING)


def _layer_logits(digest: Mapping[str, Tensor], distribution: Distribution) -> Iterator[Logits]:
    """(W⁰ + μ + σ∘ξ) φ, with a ξ for every weight: class k sees its own row of them."""
    parts = _numpy(distribution)
    num_classes = digest["logits"].shape[1]
    sigma = parts["d"].reshape(num_classes, -1)
    mean = parts.get("mean", np.zeros(sigma.size)).reshape(sigma.shape)
    for middle, features in zip(digest["logits"].double().numpy(), digest["features"].double().numpy(), strict=True):
        noise = np.zeros((num_classes, *sigma.shape))
        noise[np.arange(num_classes), np.arange(num_classes)] = sigma * features
        yield Logits(middle + mean @ features, noise.reshape(num_classes, -1))


def _layer_kl(posterior: Distribution, prior: Distribution) -> float:
    """The sum over weights; a posterior with correlated weights is not one of this method."""
    one, zero = _numpy(posterior), _numpy(prior)
    if one["q"].any() or zero["q"].any():
        return float("nan")
    return dense.kl_of_independent(one["d"], one.get("mean", 0.0), zero["d"], zero.get("mean", 0.0))


METHOD_TWINS: dict[Method, MethodTwin] = {
    LDAF: MethodTwin(_flow_digest, _flow_logits, _flow_kl),
    LAST_LAYER: MethodTwin(_layer_digest, _layer_logits, _layer_kl, dense.risk_of_independent),
}
