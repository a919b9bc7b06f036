r"""Integrators that evaluate the loss at points: `forward_mc`, `mc`, `qmc`, `rqmc`."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_fraction, require_shape
from ldaf_bench.theory.bounds import kl_inverse
from ldaf_bench.theory.chunks import chunk_length, chunks
from ldaf_bench.theory.integrate.bonferroni import hunter_worsley
from ldaf_bench.theory.integrate.kernels import count_errors, cross_entropy
from ldaf_bench.theory.integrate.problem import Loss, Problem, Risk
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


def evaluate(problem: Problem, points: Tensor, loss: Loss) -> Tensor:
    """The mean loss over given points (c−1, q), the same for all data; per datum, float64.

    For the cross-entropy it is differentiable in the problem's mean and factor.
    """
    require(loss in ("zero_one", "cross_entropy"), "loss", "zero_one or cross_entropy", repr(loss))
    require_shape("points", points, (problem.num_classes - 1, None))
    require(points.shape[1] >= 1, "points", "at least one", "none")
    points = points.to(problem.mean)
    mean, factor = problem.differences()
    if loss == "cross_entropy":
        return cross_entropy(mean, factor, points)
    return count_errors(mean, factor, points) / points.shape[-1]


def _sobol(problem: Problem, num_points: int, *purpose: str | int) -> Tensor:
    points = sobol_normals(problem.num_classes - 1, num_points, named_seed(*purpose))
    return points.to(problem.mean)


def qmc(problem: Problem, loss: Loss, *, num_points: int, seed: int, delta: float) -> Risk:
    r"""The paper's integrator: one Sobol net for all data. An estimate without a guarantee. [Boll22, Sec. 4.4]"""
    per_datum = evaluate(problem, _sobol(problem, num_points, "qmc", seed), loss)
    size = problem.num_data * num_points
    return Risk("qmc", loss, per_datum.detach(), per_datum.mean(), "none", None, None, 0.0, size)


def rqmc(problem: Problem, loss: Loss, *, num_points: int, seed: int, delta: float, num_scrambles: int = 8) -> Risk:
    """Independent scrambles with `num_points` in all: unbiased, with a standard error between scrambles."""
    require_count("num_scrambles", num_scrambles, minimum=2)
    each = num_points // num_scrambles
    fits = each >= 1 and each & (each - 1) == 0 and each * num_scrambles == num_points
    require(fits, "num_points", f"num_scrambles = {num_scrambles} times a power of 2", num_points)
    runs = torch.stack([evaluate(problem, _sobol(problem, each, "rqmc", seed, k), loss) for k in range(num_scrambles)])
    per_datum = runs.mean(0)
    spread = float(runs.detach().mean(1).std()) / math.sqrt(num_scrambles)
    size = problem.num_data * each * num_scrambles
    return Risk("rqmc", loss, per_datum.detach(), per_datum.mean(), "standard error", spread, None, 0.0, size)


def mc(
    problem: Problem,
    loss: Loss,
    *,
    num_points: int,
    seed: int,
    delta: float,
    negligible: float = 1e-7,
) -> Risk:
    r"""i.i.d. draws from N(M, Σ̂), fresh for every datum and sample.

    For the 0-1 loss the draws are N = m·q independent Bernoulli variables with mean risk r, so that
    r ≤ kl⁻¹(r̂, ln(1/δ′)/N) with probability 1 − δ′ [Hoeffding63, which allows unequal means].

    Data that cannot matter are not sampled. Let u_k ≥ r_k be the deterministic bound of `bonferroni`, and S the
    data with u_k > `negligible`. S depends on (M, Σ̂) only, never on a draw, so the N = |S|·q draws on S are as
    independent as before, and with r̂ their mean

    .. math:: r \le \frac1m \Big( \sum_{k \notin S} u_k + |S| \,\mathrm{kl}^{-1}(\hat r, \ln(1/δ')/N) \Big).

    The bound is rigorous for any choice of `negligible`; 0 samples everything. Draws are made and compared in float64,
    whatever the problem's dtype. The cross-entropy is unbounded and gets a standard error only.
    """
    require_count("num_points", num_points)
    require_fraction("delta", delta)
    generator = named_generator("mc", seed, device=problem.mean.device)
    if loss == "cross_entropy":
        return _mc_cross_entropy(problem, num_points, generator)
    charged = hunter_worsley(problem) if negligible > 0 else torch.ones_like(problem.mean[:, 0].double())
    skipped = charged <= negligible  # false for NaN: what has no bound is sampled
    sampled = torch.nonzero(~skipped)[:, 0]
    mean, factor = problem.differences(torch.float64)
    mean, factor = mean[sampled], factor[sampled]
    per_datum = charged.clone()
    per_datum[sampled] = _bernoulli_means(mean, factor, num_points, generator)
    size = len(sampled) * num_points
    upper = float(charged[skipped].sum()) / problem.num_data
    error = 0.0
    if size:
        hits = float(per_datum[sampled].mean())
        share = len(sampled) / problem.num_data
        upper += share * float(kl_inverse(hits, math.log(1 / delta) / size))
        error = share * math.sqrt(hits * (1 - hits) / size)
    return Risk("mc", loss, per_datum, per_datum.mean(), "upper bound", error, min(upper, 1.0), delta, size)


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


def _mc_cross_entropy(problem: Problem, num_points: int, generator: torch.Generator) -> Risk:
    """Fresh draws in at least two batches, between which the standard error is taken."""
    require_count("num_points", num_points, minimum=2)
    width = min(num_points // 2, 4096)
    mean, factor = problem.differences()
    means, variances = [], []
    for part in chunks(problem.num_data, width * mean.shape[1]):
        some_mean, some_factor = mean[part], factor[part]
        runs, shares = [], []
        for done in range(0, num_points, width):
            size = min(width, num_points - done)
            points = some_mean.new_empty(*some_mean.shape, size).normal_(generator=generator)
            runs.append(cross_entropy(some_mean, some_factor, points))
            shares.append(size / num_points)
        share = torch.tensor(shares, dtype=torch.float64, device=problem.mean.device)
        stacked = torch.stack(runs)
        means.append(share @ stacked)
        spread = (stacked - means[-1]).detach().square()
        variances.append(share @ spread / (len(runs) - 1))
    per_datum = torch.cat(means)
    error = math.sqrt(float(torch.cat(variances).sum())) / problem.num_data
    size = problem.num_data * num_points
    return Risk("mc", "cross_entropy", per_datum.detach(), per_datum.mean(), "standard error", error, None, 0.0, size)


def forward_mc(problem: Problem, loss: Loss, *, num_points: int, seed: int, delta: float) -> Risk:
    r"""A fresh v₀ and a full flow integration for every sample: what methods without a pushforward must do.

    The same guarantee as `mc`, at the price of N = m·q flow integrations: the baseline of every cost figure. It
    certifies the classifier as it runs, in the features' precision. The standard error includes the spread between
    data, and is on the safe side.
    """
    require_count("num_points", num_points)
    require_fraction("delta", delta)
    draw = problem.draw
    if draw is None:
        raise ValueError("problem must be built with a draw (see `flow_draw`) for forward_mc, but has none.")
    generator = named_generator("forward_mc", seed, device=problem.mean.device)
    per_datum = torch.zeros(problem.num_data, dtype=torch.float64, device=problem.mean.device)
    squares = 0.0
    with torch.no_grad():
        for part in chunks(problem.num_data, 1, total=64):
            labels = problem.labels[part, None]
            for done in range(0, num_points, 32):
                logits = draw(part, min(32, num_points - done), generator)
                require_shape("the draw", logits, (len(labels), None, problem.num_classes))
                own = logits.gather(-1, labels[..., None].expand(-1, logits.shape[1], 1))
                if loss == "zero_one":  # correct only if all rivals are strictly below: ties and NaN are errors
                    value = ((logits < own).sum(-1) < problem.num_classes - 1).double()
                else:
                    value = (logits.logsumexp(-1) - own[..., 0]).double()
                per_datum[part] += value.sum(1)
                squares += float(value.square().sum())
    size = problem.num_data * num_points
    per_datum /= num_points
    mean = float(per_datum.mean())
    error = math.sqrt(max(0.0, squares / size - mean**2) / size)
    if loss == "cross_entropy":
        return Risk("forward_mc", loss, per_datum, per_datum.mean(), "standard error", error, None, 0.0, size)
    upper = float(kl_inverse(mean, math.log(1 / delta) / size))
    return Risk("forward_mc", loss, per_datum, per_datum.mean(), "upper bound", error, upper, delta, size)
