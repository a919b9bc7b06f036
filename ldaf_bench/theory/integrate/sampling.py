r"""Integrators that evaluate the 0-1 loss at points: `forward_mc`, `shared_mc`, `mc`, `qmc`, `rqmc`."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_fraction, require_shape
from ldaf_bench.theory.bounds import kl_inverse_of
from ldaf_bench.theory.chunks import chunk_length, chunks
from ldaf_bench.theory.integrate.bonferroni import hunter_worsley
from ldaf_bench.theory.integrate.kernels import count_errors, cross_entropy
from ldaf_bench.theory.integrate.problem import Integration, Integrator, Problem
from ldaf_bench.theory.pushforward import class_factor
from ldaf_bench.theory.seeds import named_generator, named_seed


def sobol_uniforms(dimension: int, num_points: int, seed: int) -> Tensor:
    """A scrambled Sobol net of 2^k points in (0, 1), as columns: (dimension, num_points), float64.

    Half a grid step is added, so that no coordinate is ever 0, where Φ⁻¹ is infinite; the net stays balanced.
    """
    require_count("num_points", num_points)
    power = num_points & (num_points - 1) == 0
    require(power, "num_points", "a power of 2, which Sobol nets need to be balanced", num_points)
    limit = torch.quasirandom.SobolEngine.MAXDIM
    require(dimension <= limit, "num_classes", f"at most {limit + 1} for Sobol points", dimension + 1)
    engine = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=seed)
    return (engine.draw(num_points, dtype=torch.float64) + 2.0 ** -(engine.MAXBIT + 1)).T.contiguous()


def sobol_normals(dimension: int, num_points: int, seed: int) -> Tensor:
    """Φ⁻¹ of `sobol_uniforms`."""
    return torch.special.ndtri(sobol_uniforms(dimension, num_points, seed))


def fill_normal_(buffer: Tensor, generator: torch.Generator) -> Tensor:
    """Overwrite a float64 tensor by independent standard normals, √2 erf⁻¹(u) with u uniform on (−1, 1).

    By inversion in float64 the draws are normal to 1e-16, out to eight standard deviations. In float32 they would end
    before six, and torch's own float64 normals take three times as long.
    """
    inside = math.nextafter(1.0, 0.0)
    buffer.uniform_(-1.0, 1.0, generator=generator).clamp_(-inside, inside)  # ±1 itself would be infinite
    return buffer.erfinv_().mul_(math.sqrt(2.0))


Loss = Literal["zero_one", "cross_entropy"]


def evaluate(problem: Problem, points: Tensor, loss: Loss) -> Tensor:
    """The mean loss over given points (c−1, q), the same for all data; per datum, float64.

    For the cross-entropy it is differentiable in the problem's mean and factor.
    """
    require(loss in ("zero_one", "cross_entropy"), "loss", "zero_one or cross_entropy", repr(loss))
    require_shape("points", points, (problem.num_classes - 1, None))
    require(points.shape[1] >= 1, "points", "at least one", "none")
    mean, factor = problem.differences()
    points = points.to(mean)
    if loss == "cross_entropy":
        return cross_entropy(mean, factor, points)
    return count_errors(mean, factor, points) / points.shape[-1]


def _at_sobol_points(problem: Problem, num_points: int, *purpose: str | int) -> Tensor:
    points = sobol_normals(problem.num_classes - 1, num_points, named_seed(*purpose))
    return evaluate(problem, points.to(problem.gaussian[0]), "zero_one")


def qmc(problem: Problem, *, num_points: int, seed: int) -> Integration:
    r"""The paper's integrator: one Sobol net for all data. An estimate without a guarantee. [Boll22, Sec. 4.4]"""
    per_datum = _at_sobol_points(problem, num_points, "qmc", seed)
    return Integration(per_datum, num_evaluations=problem.num_data * num_points)


SCRAMBLES = 8
"""Of `rqmc`; each has a power of 2 of the points."""


def rqmc(problem: Problem, *, num_points: int, seed: int) -> Integration:
    """Independent scrambles with `num_points` in all: unbiased, with a standard error between scrambles."""
    each = num_points // SCRAMBLES
    fits = each >= 1 and each & (each - 1) == 0 and each * SCRAMBLES == num_points
    require(fits, "num_points", f"{SCRAMBLES} (the number of scrambles) times a power of 2", num_points)
    runs = torch.stack([_at_sobol_points(problem, each, "rqmc", seed, k) for k in range(SCRAMBLES)])
    spread = float(runs.mean(1).std()) / math.sqrt(SCRAMBLES)
    return Integration(runs.mean(0), None, spread, problem.num_data * num_points)


def mc(problem: Problem, *, num_points: int, seed: int, negligible: float = 1e-7) -> Integration:
    r"""i.i.d. draws from N(M, Σ̂), fresh for every datum and sample.

    Data that cannot matter are not sampled. Let u_k ≥ r_k be the deterministic bound of Hunter and Worsley. Data with
    u_k ≤ `negligible` are charged u_k, all others are drawn for. Which ones depends on (M, Σ̂) only, never on a draw, so
    the draws are as independent as before (see `upper_of_draws`). This is rigorous for any choice of `negligible`; 0
    samples everything. Draws are made and compared in float64, whatever the problem's dtype.
    """
    require_count("num_points", num_points)
    mean, factor = problem.differences(torch.float64)
    generator = named_generator("mc", seed, device=mean.device)
    charged = hunter_worsley(problem) if negligible > 0 else torch.ones_like(mean[:, 0])
    skipped = charged <= negligible  # false for NaN: what has no bound is sampled
    sampled = torch.nonzero(~skipped)[:, 0]
    per_datum = charged.clone()
    per_datum[sampled] = _bernoulli_means(mean[sampled], factor[sampled], num_points, generator)
    return _drawn(per_datum, torch.where(skipped, 0, num_points))


def _bernoulli_means(mean: Tensor, factor: Tensor, num_points: int, generator: torch.Generator) -> Tensor:
    """The share of draws with an error, for every datum; normals are drawn into one reused buffer."""
    dimension = mean.shape[1]
    width = min(num_points, 4096)
    counts = torch.zeros(len(mean), dtype=torch.float64, device=mean.device)
    buffer = mean.new_empty(chunk_length(width * dimension) * dimension * width)
    for part in chunks(len(mean), width * dimension):
        for done in range(0, num_points, width):
            shape = (part.stop - part.start, dimension, min(width, num_points - done))
            points = buffer[: math.prod(shape)].view(shape)
            fill_normal_(points, generator)
            counts[part] += count_errors(mean[part], factor[part], points)
    return counts / num_points


def forward_mc(problem: Problem, *, num_points: int, seed: int) -> Integration:
    r"""Logits drawn afresh for every datum and sample: what a method without a closed form must do.

    The same guarantee as `mc`, at the price of N = m·q evaluations of the stochastic classifier. It certifies the
    classifier as it runs, in its own precision.
    """
    require_count("num_points", num_points)
    draw, labels = problem.draw, problem.labels
    assert draw is not None
    generator = named_generator("forward_mc", seed, device=labels.device)
    counts = torch.zeros(problem.num_data, dtype=torch.float64, device=labels.device)
    with torch.no_grad():
        for part in chunks(problem.num_data, 1, total=64):
            for done in range(0, num_points, 32):
                logits = draw(part, min(32, num_points - done), generator)
                require_shape("the draw", logits, (part.stop - part.start, None, problem.num_classes))
                counts[part] += _wrong(logits, labels[part])
    return _drawn(counts / num_points, torch.full_like(labels, num_points))


def shared_mc(problem: Problem, *, num_points: int, seed: int) -> Integration:
    r"""q draws of the classifier, each for all data: what PBB does. [PerezOrtiz21]

    The m errors of one draw hang together, so that only q draws may be counted (`upper_of_shared`).
    """
    require_count("num_points", num_points)
    assert problem.shared is not None
    generator = named_generator("shared_mc", seed, device=problem.labels.device)
    counts = torch.zeros(problem.num_data, dtype=torch.float64, device=problem.labels.device)
    squares = 0.0
    with torch.no_grad():
        for _ in range(num_points):
            wrong = _wrong(problem.shared(generator)[:, None], problem.labels)
            counts += wrong
            squares += float(wrong.double().mean()) ** 2
    found = counts / num_points
    spread = math.sqrt(max(0.0, squares / num_points - float(found.mean()) ** 2) / num_points)
    return Integration(found, torch.full_like(problem.labels, num_points), spread, problem.num_data * num_points)


def _wrong(logits: Tensor, labels: Tensor) -> Tensor:
    """The number of samples (m, q, c) with an error, for every datum. Ties and NaN are errors."""
    own = logits.gather(-1, labels[:, None, None].expand(-1, logits.shape[1], 1))
    return ((logits < own).sum(-1) < logits.shape[-1] - 1).sum(1)


def upper_of_shared(integration: Integration, delta: float) -> float:
    r"""kl⁻¹(r̂, ln(2/δ′)/q): the q empirical risks are independent values in [0, 1]. [PerezOrtiz21]

    For a mixture over seeds the q means over seeds are such values too.
    """
    require_fraction("delta", delta)
    assert integration.draws is not None
    draws = int(integration.draws.min())
    return kl_inverse_of(float(integration.value), math.log(2 / delta) / draws)


def _drawn(per_datum: Tensor, draws: Tensor) -> Integration:
    """With the standard error of N Bernoulli draws; unequal means make it smaller still."""
    num_draws, error = int(draws.sum()), 0.0
    if num_draws:
        drawn = draws > 0
        hits, share = float(per_datum[drawn].mean()), float(drawn.double().mean())
        error = share * math.sqrt(hits * (1 - hits) / num_draws)
    return Integration(per_datum, draws, error, num_draws)


def upper_of_draws(integration: Integration, delta: float) -> float:
    r"""What independent 0-1 draws prove about the risk, and upper values about the data without draws.

    With S the data that were drawn for, q times each, the N = |S|·q draws are independent Bernoulli variables. With r̂
    their mean [Hoeffding63, which allows unequal means], except with probability δ′,

    .. math:: r \le \frac1m \Big( \sum_{k \notin S} u_k + |S| \,\mathrm{kl}^{-1}(\hat r, \ln(1/δ')/N) \Big).
    """
    require_fraction("delta", delta)
    per_datum, draws = integration.per_datum, integration.draws
    assert draws is not None
    drawn = draws > 0
    require(len(draws[drawn].unique()) <= 1, "draws", "equally many for all data that are drawn for", "not")
    upper = float(per_datum[~drawn].sum()) / len(per_datum)
    size = int(draws.sum())
    if size:
        hits, share = float(per_datum[drawn].mean()), int(drawn.sum()) / len(per_datum)
        upper += share * kl_inverse_of(hits, math.log(1 / delta) / size)
    return min(upper, 1.0)


def one_draw(problem: Problem, *, num_points: int, seed: int) -> Integration:
    """One draw of the randomized classifier for every datum: its errors are i.i.d. Bernoulli(R). [Langford05]"""
    assert problem.draw is not None
    return forward_mc(problem, num_points=1, seed=named_seed("one_draw", seed))


VOTES = 1024
"""Points per datum that vote."""


def vote_error(problem: Problem, num_points: int = VOTES, seed: int = 0) -> float:
    """The 0-1 error of the majority vote: the class that most points choose, for Gaussian logits; a tie is an error.

    An estimate of the most probable class of every datum. No bound on a Gibbs risk is about this classifier.
    """
    mean, factor = (tensor.double() for tensor in problem.gaussian)
    points = sobol_normals(problem.num_classes - 1, num_points, named_seed("vote", seed)).to(mean)
    wrong = 0
    for part in chunks(problem.num_data, num_points * problem.num_classes):
        chosen = (mean[part, :, None] + class_factor(factor[part]) @ points).argmax(1)
        votes = mean.new_zeros(mean[part].shape).scatter_add_(1, chosen, torch.ones_like(chosen, dtype=mean.dtype))
        own = votes.gather(1, problem.labels[part, None])
        wrong += int(((votes < own).sum(1) < problem.num_classes - 1).sum())
    return wrong / problem.num_data


def share_of_errors(integration: Integration, delta: float) -> float:
    """The share of errors itself: what a bound that counts errors takes."""
    return float(integration.value)


ONE_DRAW = Integrator(
    "one_draw", one_draw, needs="draws", upper=share_of_errors, chance=False, counts=True, least_points=0
)
MC = Integrator("mc", mc, needs="gaussian", upper=upper_of_draws)
FORWARD_MC = Integrator("forward_mc", forward_mc, needs="draws", upper=upper_of_draws)
SHARED_MC = Integrator("shared_mc", shared_mc, needs="shared", upper=upper_of_shared)
QMC = Integrator("qmc", qmc, needs="gaussian", sobol=True)
RQMC = Integrator("rqmc", rqmc, needs="gaussian", sobol=True, least_points=SCRAMBLES)
