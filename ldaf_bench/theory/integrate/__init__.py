"""INTEGRATORS: eight ways to the expected empirical 0-1 risk, behind one interface.

======================  ================================================================  =========
entry                   what it promises of the risk on the given data                    certifies
======================  ================================================================  =========
`mc`                    upper bound, fails with probability δ′                            yes
`forward_mc`            the same from drawn logits: any method, far more expensive        yes
`shared_mc`             the same from q draws, each shared by all data: counts q only     yes
`bonferroni`            deterministic upper bound                                         yes
`one_draw`              the errors of one draw per datum, for `test_set` on a prior       yes
`conditional`           nothing; the most accurate estimate at equal cost                 no
`rqmc`                  a standard error                                                  no
`qmc`                   nothing: the paper's estimate                                     no
======================  ================================================================  =========

Every integrator derives its points from its own name and the seed. So no two of them share points, and none of them
shares points with the fit of a posterior. Each entry says what it needs, guarantees and leaves to chance; nothing
else in the package knows an integrator by its name.
"""

from __future__ import annotations

from ldaf_bench.theory.arguments import require, require_entry, require_finite
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.theory.integrate.conditional import CONDITIONAL
from ldaf_bench.theory.integrate.problem import Draw, Integration, Integrator, Problem
from ldaf_bench.theory.integrate.sampling import (
    FORWARD_MC,
    MC,
    ONE_DRAW,
    QMC,
    RQMC,
    SHARED_MC,
    evaluate,
    sobol_normals,
    vote_error,
)

__all__ = [
    "ACCURATE_POINTS",
    "INTEGRATORS",
    "Draw",
    "Integration",
    "Integrator",
    "Problem",
    "accurate_risk",
    "evaluate",
    "integrate",
    "reference_integrator",
    "sobol_normals",
    "vote_error",
]

INTEGRATORS: dict[str, Integrator] = {
    entry.name: entry for entry in (MC, FORWARD_MC, SHARED_MC, BONFERRONI, ONE_DRAW, CONDITIONAL, RQMC, QMC)
}
"""Where one has to stand for all, the first that applies."""

ACCURATE_POINTS = 256
"""Points per datum for the risks that are reported and that no certificate rests on."""


def integrate(integrator: str, problem: Problem, *, num_points: int = 1024, seed: int = 0) -> Integration:
    """The expected empirical 0-1 risk by the integrator of that name."""
    require_entry("integrator", integrator, INTEGRATORS)
    entry = INTEGRATORS[integrator]
    fits = entry.needs in problem.offers
    require(fits, "problem", f"one that offers {entry.needs} for {integrator}", f"offering {sorted(problem.offers)}")
    found = entry.run(problem, num_points=num_points, seed=seed)
    require_finite("the integrand", found.per_datum)
    if entry.certifies and found.draws is None:
        raise AssertionError(f"{integrator} says that it certifies, but does not say what its values rest on.")
    return found


def reference_integrator(problem: Problem) -> Integrator:
    """Plain Monte Carlo for this problem: the first guaranteed integrator with chance that it can be given to."""
    return next(entry for entry in INTEGRATORS.values() if entry.costs_delta and entry.needs in problem.offers)


def accurate_risk(problem: Problem, num_points: int = ACCURATE_POINTS, seed: int = 0) -> float:
    """An accurate estimate of the risk, for reporting: smooth quadrature if the logits are Gaussian, else draws."""
    entry = CONDITIONAL if CONDITIONAL.needs in problem.offers else reference_integrator(problem)
    return float(integrate(entry.name, problem, num_points=num_points, seed=seed).value)
