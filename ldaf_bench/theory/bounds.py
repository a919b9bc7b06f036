r"""BOUNDS: from an empirical risk to a bound on the true one, and the binary kl with its inverse.

All of them answer the same question. With probability at least 1 − ε over m certificate points, the risk of
a classifier whose empirical Gibbs risk is r and whose divergence from the prior is KL is at most
``BOUNDS[name](risk, kl, num_data, epsilon)``. Risks and divergences may be floats or tensors of any one shape;
results are float64 and not clipped: a value above 1 means that the bound is vacuous.

Each entry says which classifiers it is `about` and on which `event` it rests. Nothing else in the package knows
a bound by its name.

Throughout, C = (KL + ln(2√m/ε))/m. Proved order, for equal arguments: kl_exact ≤ kl ≤ quad = min_λ lambda,
kl ≤ classic, test_set ≤ chernoff.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import scipy.special
import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_fraction

Number = float | Tensor
Classifier = Literal["posterior", "prior", "mean"]
"""What a bound can be about: a distribution fitted on the certificate part, one that no certificate point has touched
(the unfitted prior), or the deterministic mean classifier."""


def _tensor(name: str, value: Number, low: float = 0.0, high: float = math.inf) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float64)
    inside = bool(((tensor >= low) & (tensor <= high)).all())
    require(inside, name, f"in [{low:g}, {high:g}] without NaN", value)
    return tensor


def binary_kl(r: Number, p: Number) -> Tensor:
    r"""kl(r‖p) = r ln(r/p) + (1 − r) ln((1 − r)/(1 − p)), with 0 ln 0 = 0; infinite where p excludes r.

    As −r log1p(δ/r) − (1−r) log1p(−δ/(1−r)) with δ = p − r, which is accurate for p close to r. A risk below 1e-290
    counts as 0: its term is smaller still, but δ/r would overflow.
    """
    r, p = _tensor("r", r, high=1.0), _tensor("p", p, high=1.0)
    delta = p - r
    one = torch.ones_like(delta)
    some = r > 1e-290
    left = torch.where(some, -r * torch.log1p(delta / torch.where(some, r, one)), 0 * one)
    right = torch.where(r < 1, -(1 - r) * torch.log1p(-delta / torch.where(r < 1, 1 - r, one)), 0 * one)
    return (left + right).clamp(min=0)


def kl_inverse(r: Number, complexity: Number) -> Tensor:
    r"""kl⁻¹(r, C) = sup{p ≥ r : kl(r‖p) ≤ C}, as the upper end of a bracket of neighbouring floats."""
    r, c = _tensor("r", r, high=1.0), _tensor("complexity", complexity)
    # Pinsker: the inverse is at most r + √(C/2). A little more, so that the end is safely outside.
    inside, outside = r, (r + (c / 2).sqrt() + 1e-9).clamp(max=1.0)
    for _ in range(200):
        middle = (inside + outside) / 2
        # The shrunken left side keeps rounding in `binary_kl` from letting the bracket slip inwards.
        out = binary_kl(r, middle) * (1 - 1e-12) >= c
        settled = (middle == inside) | (middle == outside)
        if bool(settled.all()):
            break
        outside = torch.where(out & ~settled, middle, outside)
        inside = torch.where(out | settled, inside, middle)
    return outside


@functools.cache
def log_xi(num_data: int) -> float:
    r"""ln ξ(m), ξ(m) = Σ_k C(m,k) (k/m)^k (1−k/m)^{m−k} ≤ 2√m, in log space. [Maurer04]"""
    require_count("num_data", num_data)
    k = torch.arange(num_data + 1, dtype=torch.float64)
    choose = math.lgamma(num_data + 1) - torch.lgamma(k + 1) - torch.lgamma(num_data - k + 1)
    powers = torch.xlogy(k, k / num_data) + torch.xlogy(num_data - k, 1 - k / num_data)
    # Rounding in lgamma is about 1e-16 · ln m!, which the allowance covers up to m = 10⁶.
    return float(torch.logsumexp(choose + powers, 0)) + 1e-8


def complexity(kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""C = (KL + ln(2√m/ε))/m. [Maurer04]"""
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    return (_tensor("kl", kl) + math.log(2 * math.sqrt(num_data) / epsilon)) / num_data


def kl_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""PAC-Bayes-kl: kl⁻¹(r, C). [Maurer04; Langford05]"""
    return kl_inverse(risk, complexity(kl, num_data, epsilon))


def kl_exact_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""PAC-Bayes-kl with the exact ξ(m) in place of 2√m: tighter for free. [Maurer04]"""
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    exact = (_tensor("kl", kl) + log_xi(num_data) - math.log(epsilon)) / num_data
    return kl_inverse(risk, exact)


def best_lambda(risk: Number, complexity: Number) -> Tensor:
    r"""λ* = 2/(√(2r/C + 1) + 1), the minimizer of the λ-bound; never above 1. [Thiemann17]"""
    risk, complexity = _tensor("risk", risk), _tensor("complexity", complexity)
    return 2 / ((2 * risk / complexity + 1).sqrt() + 1)


def lambda_value(risk: Number, complexity: Number, lam: Number) -> Tensor:
    r"""r/(1 − λ/2) + C/(λ(1 − λ/2)), which holds for all λ ∈ (0, 2) at once. [Thiemann17]"""
    lam = torch.as_tensor(lam, dtype=torch.float64)
    require(bool(((lam > 0) & (lam < 2)).all()), "lambda", "in the open interval (0, 2)", lam)
    rest = 1 - lam / 2
    return _tensor("risk", risk) / rest + _tensor("complexity", complexity) / (lam * rest)


def lambda_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""The paper's PAC-Bayes-λ bound at its best λ, for this very risk. [Thiemann17]

    λ that was best for the cross-entropy in training is not best here; choosing it again is free.
    """
    c = complexity(kl, num_data, epsilon)
    risk = _tensor("risk", risk, high=1.0)
    return lambda_value(risk, c, best_lambda(risk, c))


def quad_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""(√(r + C/2) + √(C/2))², equal to the minimum over λ of the λ-bound. [PerezOrtiz21]"""
    half = complexity(kl, num_data, epsilon) / 2
    return ((_tensor("risk", risk, high=1.0) + half).sqrt() + half.sqrt()) ** 2


def classic_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""r + √(C/2), from the kl bound by Pinsker's inequality. [PerezOrtiz21]"""
    return _tensor("risk", risk, high=1.0) + (complexity(kl, num_data, epsilon) / 2).sqrt()


CATONI_GRID = tuple(2.0 ** (k / 4) for k in range(-24, 17))
"""β from 1/64 to 16 in steps of a quarter octave; the union bound pays for all of them."""


def catoni_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""min over the grid of (1 − e^{−βr − (KL + ln(K/ε))/m})/(1 − e^{−β}). [Catoni07]"""
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    risk, kl = _tensor("risk", risk, high=1.0), _tensor("kl", kl)
    penalty = (kl + math.log(len(CATONI_GRID) / epsilon)) / num_data
    values = [-torch.expm1(-beta * risk - penalty) / -math.expm1(-beta) for beta in CATONI_GRID]
    return torch.stack(values).amin(0)


def _require_fixed(kl: Number) -> None:
    require(bool((torch.as_tensor(kl) == 0).all()), "kl", "0 for a bound on one fixed classifier", kl)


def test_set_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""Clopper–Pearson for a fixed classifier: the p with P(Bin(m, p) ≤ mr) = ε. [Langford05]"""
    _require_fixed(kl)
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    errors = _tensor("risk", risk, high=1.0) * num_data
    whole = errors.round()
    require(bool(((errors - whole).abs() < 1e-6).all()), "risk", "a number of errors over m", risk)
    correct = (num_data - whole).clamp(min=1)
    value = scipy.special.betaincinv((whole + 1).cpu().numpy(), correct.cpu().numpy(), 1 - epsilon)
    return torch.where(whole < num_data, torch.as_tensor(value, dtype=torch.float64, device=whole.device), 1.0)


def chernoff_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""kl⁻¹(r, ln(1/ε)/m) for a fixed classifier. [Hoeffding63; Langford05]"""
    _require_fixed(kl)
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    return kl_inverse(risk, math.log(1 / epsilon) / num_data)


@dataclass(frozen=True)
class Bound:
    """An entry of BOUNDS; call it as ``bound(risk, kl, num_data, epsilon)``."""

    name: str
    value: Callable[[Number, Number, int, float], Tensor]
    about: frozenset[Classifier]
    """The classifiers that it may be used for. PAC-Bayes bounds hold for every posterior, so for the prior too."""
    event: str
    """What may fail with probability ε. Bounds that follow from one event hold together and are paid for once; each
    event is counted once per prior (or per fixed classifier)."""
    counts: bool = False
    """Whether it counts errors: it needs a 0 or 1 for every datum, from a mean classifier or from one draw per datum. A
    mixture over seeds has no such count."""

    def __call__(self, risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
        return self.value(risk, kl, num_data, epsilon)


STOCHASTIC: frozenset[Classifier] = frozenset({"posterior", "prior"})
_KL_EVENT = "kl(r‖R) ≤ (KL + ln(ξ(m)/ε))/m for all posteriors of one prior"
_GRID_EVENT = "Catoni's inequality for all posteriors of one prior, at every β of the grid with ε/K"
_TAIL_EVENT = "the tail of the errors of one fixed classifier"

KL = Bound("kl", kl_bound, STOCHASTIC, _KL_EVENT)
KL_EXACT = Bound("kl_exact", kl_exact_bound, STOCHASTIC, _KL_EVENT)
LAMBDA = Bound("lambda", lambda_bound, STOCHASTIC, _KL_EVENT)
QUAD = Bound("quad", quad_bound, STOCHASTIC, _KL_EVENT)
CLASSIC = Bound("classic", classic_bound, STOCHASTIC, _KL_EVENT)
CATONI = Bound("catoni", catoni_bound, STOCHASTIC, _GRID_EVENT)
# For the same errors Clopper–Pearson is never above Chernoff, so that one event covers both.
TEST_SET = Bound("test_set", test_set_bound, frozenset({"prior", "mean"}), _TAIL_EVENT, counts=True)
CHERNOFF = Bound("chernoff", chernoff_bound, frozenset({"prior", "mean"}), _TAIL_EVENT)

BOUNDS: dict[str, Bound] = {
    entry.name: entry for entry in (KL_EXACT, KL, QUAD, LAMBDA, CATONI, CLASSIC, TEST_SET, CHERNOFF)
}
"""In the order in which tables list them: by proved order as far as there is one."""
