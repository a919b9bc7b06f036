"""INTEGRATORS: six ways to the expected empirical risk, behind one interface.

======================  ================================================================  =========
entry                   what it promises of the risk on the given data                    certifies
======================  ================================================================  =========
`forward_mc`            upper bound, fails with probability δ′ (0-1 loss)                 yes
`mc`                    the same, from the pushforward: orders of magnitude cheaper       yes
`qmc`                   nothing: the paper's estimate                                     no
`rqmc`                  a standard error                                                  no
`conditional`           nothing; the most accurate estimate at equal cost                 no
`bonferroni`            deterministic upper bound                                         yes
======================  ================================================================  =========

Every integrator derives its points from its own name and the seed, so that no two of them, and none of them and
posterior fitting, ever share points.
"""

from __future__ import annotations

from typing import Protocol

from ldaf_bench.theory.arguments import require, require_entry, require_finite
from ldaf_bench.theory.integrate.bonferroni import bonferroni
from ldaf_bench.theory.integrate.conditional import conditional
from ldaf_bench.theory.integrate.problem import Loss, Problem, Risk, flow_draw, problem
from ldaf_bench.theory.integrate.sampling import evaluate, forward_mc, mc, qmc, rqmc, sobol_normals

__all__ = [
    "CERTIFYING",
    "INTEGRATORS",
    "Problem",
    "Risk",
    "evaluate",
    "flow_draw",
    "integrate",
    "problem",
    "sobol_normals",
]


class Integrator(Protocol):
    """An entry of INTEGRATORS; `num_points` is q, the number of points for every datum."""

    def __call__(self, problem: Problem, loss: Loss, *, num_points: int, seed: int, delta: float) -> Risk: ...


INTEGRATORS: dict[str, Integrator] = {
    "forward_mc": forward_mc,
    "mc": mc,
    "qmc": qmc,
    "rqmc": rqmc,
    "conditional": conditional,
    "bonferroni": bonferroni,
}

CERTIFYING = frozenset({"forward_mc", "mc", "bonferroni"})
"""The integrators whose result a certificate may rest on."""


def integrate(
    integrator: str,
    problem: Problem,
    loss: Loss = "zero_one",
    *,
    num_points: int = 1024,
    seed: int = 0,
    delta: float = 0.01,
) -> Risk:
    """The expected empirical risk by the integrator of that name."""
    require_entry("integrator", integrator, INTEGRATORS)
    require(loss in ("zero_one", "cross_entropy"), "loss", "zero_one or cross_entropy", repr(loss))
    risk = INTEGRATORS[integrator](problem, loss, num_points=num_points, seed=seed, delta=delta)
    require_finite("the integrand", risk.per_datum)
    if risk.certified and integrator not in CERTIFYING:
        raise AssertionError(f"{integrator} claims a guarantee, but CERTIFYING does not list it.")
    return risk._replace(gaussian=problem.gaussian)
