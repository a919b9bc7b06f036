r"""Fitting a posterior: alternate between the Gaussian and λ, on cached data only.

.. math:: \min_{μ,\, B,\, λ} \; \frac{L(μ, B)}{1 - λ/2} + \frac{\mathrm{KL}(μ, B) + \ln(2\sqrt m/ε)}{m λ (1 - λ/2)}

with L the cross-entropy as surrogate for the 0-1 loss [Boll22, Sec. 5.1], or the 0-1 risk itself (OBJECTIVES). λ has a
closed form. The covariance moves in coordinates in which B is invertible by construction: (log d, q) for
Diag(d) + q qᵀ, a Cholesky factor with logarithmic diagonal for the dense family. The mean stays, or moves as well. The
bound holds for all posteriors at once, so nothing here costs confidence; the points are derived from a name of their
own and never used to certify.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import (
    require,
    require_count,
    require_entry,
    require_finite,
    require_fraction,
    require_labels,
    require_positive,
)
from ldaf_bench.theory.bounds import best_lambda, complexity, lambda_value
from ldaf_bench.theory.chunks import chunks
from ldaf_bench.theory.gaussian import Dense, DiagonalRankOne, Gaussian, from_tensors, kl_divergence
from ldaf_bench.theory.integrate import sobol_normals
from ldaf_bench.theory.integrate.conditional import separating_points, smooth_risk
from ldaf_bench.theory.integrate.kernels import cross_entropy
from ldaf_bench.theory.integrate.problem import differences
from ldaf_bench.theory.pushforward import Affine, cholesky, logit_mean
from ldaf_bench.theory.seeds import named_generator, named_seed


class Alternation(NamedTuple):
    """Where the fit stands after an alternation; the first is the prior."""

    number: int
    loss: float
    """What the objective says: the cross-entropy or the 0-1 risk."""
    divergence: float
    """KL from the prior."""
    lam: float
    """λ* for that loss; the certificate has its own."""
    bound: float
    """The bound with that loss, at that λ."""
    seconds: float


class Posterior(NamedTuple):
    """A fitted posterior and how it was reached."""

    gaussian: Gaussian
    kl: float
    lam: float
    history: tuple[Alternation, ...]
    converged: bool
    """Whether the bound had stopped moving before the alternations ran out."""


@dataclass(frozen=True)
class FitSettings:
    """How a posterior is fitted."""

    objective: str = "cross_entropy"
    """An entry of OBJECTIVES."""
    mean: bool = False
    """Whether the mean moves too."""
    one_scale: bool = False
    """Whether d moves by one common factor, and q not at all."""
    epsilon: float = 0.01
    """ε of the bound that is minimized."""
    num_points: int = 1024
    """Sobol points of the loss, a power of 2. The 0-1 risk needs far fewer than the cross-entropy."""
    optimizer: str = "adam"
    """An entry of OPTIMIZERS."""
    learning_rate: float | None = None
    """`None`: the optimizer's own."""
    epochs: int = 5
    """Passes over the certificate set in one alternation."""
    max_alternations: int = 20
    tolerance: float = 1e-4
    """Relative change of the bound in an alternation below which the fit has converged."""
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        require_entry("objective", self.objective, OBJECTIVES)
        require_entry("optimizer", self.optimizer, OPTIMIZERS)
        require_fraction("epsilon", self.epsilon)
        for name in ("epochs", "max_alternations", "batch_size"):
            require_count(name, getattr(self, name))
        require_positive("tolerance", self.tolerance)
        if self.learning_rate is not None:
            require_positive("learning_rate", self.learning_rate)


class Objective(NamedTuple):
    """An entry of OBJECTIVES: a loss that is smooth in mean and covariance."""

    points: Callable[[int, int, int], Tensor]
    """(c, number of points, seed) → the points, the same for all data."""
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(mean and factor of the logits' differences, points) → the loss of every datum, differentiable in both."""
    dtype: torch.dtype | None = None
    """The precision that it is computed in; None: the cache's."""


OBJECTIVES: dict[str, Objective] = {
    "cross_entropy": Objective(lambda c, count, seed: sobol_normals(c - 1, count, seed), cross_entropy),
    # Φ and its inverse are followed through c − 1 stages: in float32 the gradient would lose too much.
    "zero_one": Objective(separating_points, smooth_risk, torch.float64),
}


class _Model:
    """The posterior's free coordinates, and the objective's pieces with their gradients."""

    def __init__(self, cache: Affine, labels: Tensor, prior: Gaussian, settings: FitSettings, raw: bool) -> None:
        self.cache, self.labels, self.prior = cache, labels, prior
        self.objective_entry = OBJECTIVES[settings.objective]
        self.dtype = self.objective_entry.dtype or cache.mean.dtype
        seed = named_seed("posterior", settings.seed)
        points = self.objective_entry.points(cache.mean.shape[1], settings.num_points, seed)
        self.points = points.to(cache.mean.device, self.dtype)
        self.leaves, self.build, self.repair = _coordinates(prior, settings, raw)

    def objective(self, lam: float, epsilon: float, index: Tensor) -> Tensor:
        """The bound at λ with the loss of the data of an index; differentiable."""
        gaussian = self.build(self.leaves)
        c = complexity(kl_divergence(gaussian, self.prior), len(self.labels), epsilon)
        return lambda_value(self.loss(gaussian, index), c, lam)

    def loss(self, gaussian: Gaussian, index: Tensor | None = None) -> Tensor:
        """The loss over all data, or over those of an index."""
        result: Tensor = _Loss.apply(self, gaussian, index, *gaussian.tensors().values())
        return result

    def chunk_value(self, gaussian: Gaussian, part: Tensor | slice) -> Tensor:
        """The sum of the losses of one chunk."""
        cached = self.cache.mean.dtype
        mean = logit_mean(self.cache, gaussian, part, cached).to(self.dtype)
        # Σ̂ in the cache's precision; its 9 × 9 factor in float64, where it is cheap and safe.
        factor = cholesky(self.cache.covariance(gaussian, part, cached).double()).to(self.dtype)
        return self.objective_entry.loss(*differences(mean, factor, self.labels[part]), self.points).sum()


class _Loss(torch.autograd.Function):
    """Sum over chunks with the gradient made chunk by chunk, so that no more than one is ever held."""

    @staticmethod
    def forward(ctx, model, gaussian, index, *tensors):  # type: ignore[no-untyped-def]
        size = len(model.labels) if index is None else len(index)
        wanted = any(ctx.needs_input_grad)
        leaves = [t.detach().requires_grad_(wanted) for t in tensors]
        copy = from_tensors(dict(zip(gaussian.tensors(), leaves, strict=True)))
        total = torch.zeros((), dtype=torch.float64, device=model.labels.device)
        for part in chunks(size, model.cache.numbers):
            with torch.set_grad_enabled(wanted):
                value = model.chunk_value(copy, part if index is None else index[part])
                if wanted:
                    value.backward()
            total += value.detach()
        if wanted:
            # None for what the logits do not depend on, like q of a last layer.
            gradients = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves)
            ctx.save_for_backward(*(gradient / size for gradient in gradients))
        return (total / size).to(tensors[0].device)  # beside the KL divergence, wherever the cache is

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):  # type: ignore[no-untyped-def]
        return None, None, None, *(upstream * gradient for gradient in ctx.saved_tensors)


Build = Callable[[Sequence[Tensor]], Gaussian]


def _coordinates(prior: Gaussian, settings: FitSettings, raw: bool) -> tuple[list[Tensor], Build, Callable[[], object]]:
    """Leaves that start at the prior, how they make a Gaussian, and a repair after each step.

    A mean moves in units of the prior's own deviations, μ = μ₀ + B₀ν: then KL gains ½‖ν‖² whatever the scales.
    """
    leaves, build, repair = _covariance_coordinates(prior, settings, raw)
    if not settings.mean:
        return leaves, build, repair
    step = torch.zeros(prior.size, dtype=torch.float64)
    return [*leaves, step], lambda x: from_tensors({**build(x[:-1]).tensors(), "mean": prior.act(x[-1])}), repair


def _covariance_coordinates(
    prior: Gaussian, settings: FitSettings, raw: bool
) -> tuple[list[Tensor], Build, Callable[[], object]]:
    """Those of the covariance. Where q starts at 0 its gradient is 0, and a diagonal prior has diagonal posteriors."""
    if isinstance(prior, DiagonalRankOne):
        smallest = float(prior.d.min())
        require(smallest > 0, "prior", "of positive d, so that a posterior can be fitted", smallest)
        if settings.one_scale:
            return [torch.zeros(1, dtype=torch.float64)], lambda x: replace(prior, d=prior.d * x[0].exp()), lambda: None
        if raw:
            leaves = [prior.d.detach().clone(), prior.q.detach().clone()]
            floor = smallest / 100
            return leaves, lambda x: DiagonalRankOne(*x), lambda: torch.clamp_(leaves[0], min=floor)
        leaves = [prior.d.detach().log(), prior.q.detach().clone()]
        return leaves, lambda x: DiagonalRankOne(x[0].exp(), x[1]), lambda: None
    require(not settings.one_scale, "prior", "of the form Diag(d) + q qᵀ where one scale is fitted", "dense")
    factor = torch.linalg.cholesky(prior.factor().detach() @ prior.factor().detach().mT)
    leaves = [factor.diagonal().log(), factor.tril(-1)]
    return leaves, lambda x: Dense(torch.diag(x[0].exp()) + x[1].tril(-1)), lambda: None


Advance = Callable[[float], None]
"""One alternation's epochs at fixed λ."""


def _batches(model: _Model, settings: FitSettings) -> Iterator[Tensor]:
    """Shuffled batches, epoch after epoch, for ever."""
    generator = named_generator("posterior batches", settings.seed)
    while True:
        order = torch.randperm(len(model.labels), generator=generator).to(model.labels.device)
        yield from order.split(settings.batch_size)


def _stochastic(optimizer: torch.optim.Optimizer, model: _Model, settings: FitSettings) -> Advance:
    batches = _batches(model, settings)
    steps = -(-len(model.labels) // settings.batch_size) * settings.epochs

    def advance(lam: float) -> None:
        for step in range(1, steps + 1):
            try:
                optimizer.zero_grad()
                value = model.objective(lam, settings.epsilon, next(batches))
                value.backward()
                for leaf in model.leaves:
                    require_finite("the gradient", leaf.grad if leaf.grad is not None else leaf)
            except (ArithmeticError, ValueError) as error:
                raise ArithmeticError(f"at step {step} of {steps}, {error}") from error
            optimizer.step()
            with torch.no_grad():
                model.repair()

    return advance


def _sgd(model: _Model, settings: FitSettings) -> Advance:
    """Plain SGD on (d, q) as the paper has it; d is kept above a hundredth of the prior's smallest."""
    rate = settings.learning_rate or 0.1
    return _stochastic(torch.optim.SGD(model.leaves, lr=rate), model, settings)


def _adam(model: _Model, settings: FitSettings) -> Advance:
    """Adam on (log d, q): converges from every initialization, whatever its scales."""
    rate = settings.learning_rate or 0.03
    return _stochastic(torch.optim.Adam(model.leaves, lr=rate), model, settings)


OPTIMIZERS: dict[str, tuple[Callable[[_Model, FitSettings], Advance], bool]] = {
    "adam": (_adam, False),
    "sgd": (_sgd, True),
}
"""How the covariance is moved, and whether in raw (d, q) rather than in (log d, q)."""


def fit(
    cache: Affine,
    labels: Tensor,
    prior: Gaussian,
    settings: FitSettings | None = None,
    watch: Callable[[Alternation], None] = lambda alternation: None,
) -> Posterior:
    """The posterior that minimizes the λ-bound with the loss of the objective, starting from the prior.

    Returns the best alternation seen, and shows each of them to `watch` on the way. A non-finite value is an
    `ArithmeticError` that names the step.
    """
    settings = settings or FitSettings()
    num_data, num_classes = cache.mean.shape
    require(num_data >= 1, "cache", "of at least one datum", f"of {num_data}")
    require(cache.size == prior.size, "prior", f"of size {cache.size}, as the cached data are", prior.size)
    require_labels("labels", labels, num_data, num_classes)
    for name, tensor in cache._asdict().items():
        require_finite(f"the cached {name}", tensor)
    labels = labels.long()
    make, raw = OPTIMIZERS[settings.optimizer]
    model = _Model(cache, labels, prior, settings, raw)
    for leaf in model.leaves:
        leaf.requires_grad_()
    begin = time.perf_counter()

    def stand(number: int) -> Alternation:
        with torch.no_grad():
            gaussian = model.build(model.leaves)
            risk, kl = model.loss(gaussian), kl_divergence(gaussian, prior)
        c = complexity(kl, num_data, settings.epsilon)
        lam = best_lambda(risk, c)
        value = float(lambda_value(risk, c, lam))
        seconds = time.perf_counter() - begin
        return Alternation(number, float(risk), float(kl), float(lam), value, seconds)

    history: list[Alternation] = []
    best, kept, converged = None, model.leaves, False
    advance = make(model, settings)
    for number in range(settings.max_alternations + 1):
        try:
            if number:
                advance(history[-1].lam)
            history.append(stand(number))
        except (ArithmeticError, ValueError) as error:
            raise ArithmeticError(
                f"Fitting the posterior stopped in alternation {number} with {settings.optimizer}: {error} "
                f"Lower the learning rate, or start from a smaller covariance."
            ) from error
        watch(history[-1])
        if best is None or history[-1].bound < best.bound:
            best, kept = history[-1], [leaf.detach().clone() for leaf in model.leaves]
        if number and abs(history[-2].bound - history[-1].bound) <= settings.tolerance * best.bound:
            converged = True
            break
    assert best is not None
    return Posterior(model.build(kept), best.divergence, best.lam, tuple(history), converged)
