r"""BOUNDS: from an empirical risk to a bound on the true one, and the binary kl with its inverse.

All of them answer the same question. With probability at least 1 − ε over m certificate points, the risk of
a classifier whose empirical Gibbs risk is r and whose divergence from the prior is KL is at most
``BOUNDS[name](risk, kl, num_data, epsilon)``. Risks and divergences may be floats or tensors of any one shape;
results are float64 and not clipped: a value above 1 means that the bound is vacuous. Two bounds use more of the data
than their mean risk, and take that in its place (`takes`).

Each entry says which classifiers it is `about` and on which `event` it rests. Nothing else in the package knows
a bound by its name.

Throughout, C = (KL + ln(2√m/ε))/m. Proved order, for equal arguments: kl_exact ≤ kl ≤ quad = min_λ lambda,
kl ≤ classic, test_set ≤ chernoff; kl⁻¹(r, (KL + ln(1/ε))/m) ≤ catoni, with equality where the guess is right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import scipy.special
import torch
from torch import Tensor

from ldaf_bench.theory.arguments import require, require_count, require_fraction
from ldaf_bench.theory.betting import upper_end

Number = float | Tensor
Classifier = Literal["posterior", "prior", "mean"]
"""What a bound can be about: a distribution fitted on the certificate part, one that no certificate point has touched
(the unfitted prior), or the deterministic mean classifier."""
Takes = Literal["risk", "values", "excess"]
"""What a bound is evaluated at: the mean risk, of any shape; one value in [0, 1] for every datum, of shape (…, m); or
the excess over the mean classifier, of shape (…, 3) (see `split_kl_bound`)."""


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


def kl_inverse_of(r: float, complexity: float) -> float:
    """`kl_inverse` of two plain numbers, by the same bisection, without the cost of tensors."""
    require(0 <= r <= 1 and complexity >= 0, "r and complexity", "in [0, 1] and at least 0", (r, complexity))
    inside, outside = r, min(1.0, r + math.sqrt(complexity / 2) + 1e-9)
    while inside < (middle := (inside + outside) / 2) < outside:
        share = (middle - r) / (1 - r)
        left = -r * math.log1p((middle - r) / r) if r > 1e-290 else 0.0
        right = -(1 - r) * math.log1p(-share) if share < 1 else math.inf
        if max(0.0, left + right) * (1 - 1e-12) >= complexity:
            outside = middle
        else:
            inside = middle
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


BETAS = tuple(2.0 ** (k / 4) for k in range(-24, 17))
"""β from 1/64 to 16 in steps of a quarter octave; the union bound pays for all of them."""


def catoni_value(risk: Number, kl: Number, num_data: int, epsilon: float, beta: float) -> Tensor:
    r"""(1 − e^{−βr − (KL + ln(1/ε))/m})/(1 − e^{−β}), for one β > 0 fixed before the data are seen. [Catoni07]

    For each β this is an inequality for all posteriors of one prior at once: no ln 2√m is paid. [Foong21]
    """
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    risk, kl = _tensor("risk", risk, high=1.0), _tensor("kl", kl)
    penalty = (kl + math.log(1 / epsilon)) / num_data
    return -torch.expm1(-beta * risk - penalty) / -math.expm1(-beta)


def best_beta(guess: float, num_data: int, epsilon: float) -> float:
    r"""β that minimizes Catoni's bound at (r, KL) = (guess, ½): ln(p(1 − r)/(r(1 − p))), p = kl⁻¹(r, (½ + ln(1/ε))/m).

    Because kl(r‖p) = max_β(−βr − ln(1 − p(1 − e^{−β}))), the minimum over β is p. Any β is valid, so the guess may be
    wrong, and rounding and the limits of β do no harm.
    """
    require_fraction("guess", guess)
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    p = kl_inverse(guess, (0.5 + math.log(1 / epsilon)) / num_data)
    return float((torch.logit(p) - math.log(guess / (1 - guess))).clamp(1e-6, 50.0))


def catoni_bound(risk: Number, kl: Number, num_data: int, epsilon: float, guess: float) -> Tensor:
    r"""Catoni's bound at one β, which is best for a guess of the risk. [Catoni07; Foong21]"""
    return catoni_value(risk, kl, num_data, epsilon, best_beta(guess, num_data, epsilon))


def catoni_grid_bound(risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""The smallest of Catoni's bounds over a grid of K values of β, each at ε/K. [Catoni07]"""
    require_fraction("epsilon", epsilon)
    each = epsilon / len(BETAS)
    return torch.stack([catoni_value(risk, kl, num_data, each, beta) for beta in BETAS]).amin(0)


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


def betting_bound(values: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""The largest mean that betting does not refute, for values (…, m) of the data. [WaudbySmith23]

    Needs X_k in [0, 1], i.i.d. over data, with E[X_k] ≥ R(Q) for a Q that no certificate point has touched. No δ′ is
    spent, whatever the values come from, because their own chance is in the event:

    - errors of one classifier, or of one fresh draw per datum: E[X_k] = R(Q);
    - shares of errors among q fresh draws: given z_k the expected share is L_k = P(h errs on z_k), so E[X_k] = R(Q).
      The draws of one datum are independent of all other data and draws, so the X_k are i.i.d.;
    - upper values U_k ≥ L_k without chance, in place of all or some of these: U_k (and which data get one) depends on
      z_k alone, so the X_k are i.i.d. still, and E[X_k] ≥ R(Q);
    - the mean over seeds of any of these, for the mixture over seeds.
    """
    _require_fixed(kl)
    require_count("num_data", num_data)
    require_fraction("epsilon", epsilon)
    values = _tensor("values", values, high=1.0)
    require(values.shape[-1:] == (num_data,), "values", f"one for each of {num_data} data", tuple(values.shape))
    return upper_end(values, epsilon)


def split_kl_bound(excess: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
    r"""The mean classifier's risk, and what a posterior's exceeds it by, each bounded on its own. [WuSeldin22]

    With h̄ the mean classifier and ℓ the 0-1 loss, R(Q) = R(h̄) + E⁺ − E⁻, where E⁺ is the probability that h ~ Q errs
    and h̄ does not, and E⁻ that h̄ errs and h does not. `excess` holds (R̂(h̄), e⁺, e⁻) in its last dimension: the share
    of errors of h̄, an upper value of the empirical E⁺ and a lower value of the empirical E⁻. Each of three inequalities
    gets ε/3: Clopper and Pearson's for h̄, and PAC-Bayes-kl for the two binary losses, from above and from below.
    """
    require_fraction("epsilon", epsilon)
    excess = _tensor("excess", excess, high=1.0)
    require(excess.shape[-1:] == (3,), "excess", "three numbers", tuple(excess.shape))
    (errors, worse, better), each = excess.unbind(-1), epsilon / 3
    lower = 1 - kl_exact_bound(1 - better, kl, num_data, each)
    return test_set_bound(errors, 0.0, num_data, each) + kl_exact_bound(worse, kl, num_data, each) - lower


@dataclass(frozen=True)
class Bound:
    """An entry of BOUNDS; call it as ``bound(risk, kl, num_data, epsilon)``."""

    name: str
    value: Callable[..., Tensor]
    """(risk, KL, m, ε) → value; the guess comes last where there is one."""
    about: frozenset[Classifier]
    """The classifiers that it may be used for. PAC-Bayes bounds hold for every posterior, so for the prior too."""
    event: str
    """What may fail with probability ε. Bounds that follow from one event hold together and are paid for once; each
    event is counted once per prior (or per fixed classifier), and once per integration if it takes `values`."""
    counts: bool = False
    """Whether it counts errors: it needs a 0 or 1 for every datum, from a mean classifier or from one draw per datum. A
    mixture over seeds has no such count."""
    takes: Takes = "risk"
    """What it is evaluated at. Bounds that take `values` spend no δ′: an integration's chance is in their event."""
    guess: float | None = None
    """A guess of the risk that it rests on; None: it rests on none."""
    at: Callable[[float], Bound] | None = None
    """The same bound at another guess, which is another event."""

    def __call__(self, risk: Number, kl: Number, num_data: int, epsilon: float) -> Tensor:
        guess = () if self.guess is None else (self.guess,)
        return self.value(risk, kl, num_data, epsilon, *guess)

    @property
    def mixes(self) -> bool:
        """Whether it has a value for a mixture over seeds: Clopper–Pearson, which counts errors, has none."""
        return not self.counts and self.takes != "excess"

    def each(self, guesses: Sequence[float]) -> tuple[Bound, ...]:
        """Itself, or itself at each of these guesses if it rests on one."""
        return (self,) if self.at is None else tuple(map(self.at, guesses))


GUESS = 0.05
"""Of the risk, where a suite states none."""


def catoni_at(guess: float) -> Bound:
    """Catoni's bound at one guess."""
    event = f"Catoni's inequality for all posteriors of one prior, at the β of the guess {guess}"
    return Bound("catoni", catoni_bound, STOCHASTIC, event, guess=guess, at=catoni_at)


STOCHASTIC: frozenset[Classifier] = frozenset({"posterior", "prior"})
FIXED: frozenset[Classifier] = frozenset({"prior", "mean"})
_KL_EVENT = "kl(r‖R) ≤ (KL + ln(ξ(m)/ε))/m for all posteriors of one prior"
_GRID_EVENT = "Catoni's inequality for all posteriors of one prior, at every β of the grid with ε/K"
_TAIL_EVENT = "the tail of the errors of one fixed classifier"
_BETTING_EVENT = "the capital of betting against the mean of one fixed classifier's values"
_SPLIT_EVENT = (
    "the tail of the mean classifier's errors, and kl(r‖R) ≤ (KL + ln(ξ(m)/ε))/m for all posteriors of one prior and "
    "both parts of the excess, at ε/3 each"
)

KL = Bound("kl", kl_bound, STOCHASTIC, _KL_EVENT)
KL_EXACT = Bound("kl_exact", kl_exact_bound, STOCHASTIC, _KL_EVENT)
LAMBDA = Bound("lambda", lambda_bound, STOCHASTIC, _KL_EVENT)
QUAD = Bound("quad", quad_bound, STOCHASTIC, _KL_EVENT)
CLASSIC = Bound("classic", classic_bound, STOCHASTIC, _KL_EVENT)
CATONI = catoni_at(GUESS)
CATONI_GRID = Bound("catoni_grid", catoni_grid_bound, STOCHASTIC, _GRID_EVENT)
SPLIT_KL = Bound("split_kl", split_kl_bound, STOCHASTIC, _SPLIT_EVENT, takes="excess")
# For the same errors Clopper–Pearson is never above Chernoff, so that one event covers both.
TEST_SET = Bound("test_set", test_set_bound, FIXED, _TAIL_EVENT, counts=True)
CHERNOFF = Bound("chernoff", chernoff_bound, FIXED, _TAIL_EVENT)
BETTING = Bound("betting", betting_bound, FIXED, _BETTING_EVENT, takes="values")

BOUNDS: dict[str, Bound] = {
    entry.name: entry
    for entry in (
        KL_EXACT, KL, QUAD, LAMBDA, CATONI, CATONI_GRID, CLASSIC, SPLIT_KL, TEST_SET, CHERNOFF, BETTING
    )
}  # fmt: skip
"""In the order in which tables list them: by proved order as far as there is one."""
