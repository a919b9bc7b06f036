r"""fit and integrate: one posterior on digests, and the risks that certificates rest on. No Ray, no files.

The network is done with: everything here works on what `digest` wrote.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

import torch
from torch import Tensor

from ldaf_bench.methods.method import Data, Distribution, Fitted, Watch
from ldaf_bench.plan import PlannedIntegration, PlannedPosterior
from ldaf_bench.store.posteriors import Posterior
from ldaf_bench.suite import Convergence
from ldaf_bench.theory.integrate import (
    INTEGRATORS,
    Integration,
    Problem,
    accurate_risk,
    integrate,
    reference_integrator,
    vote_error,
)


def problem_of(planned: PlannedPosterior, distribution: Distribution, data: Data) -> Problem:
    """What integrators take."""
    method = planned.digest.entry
    assert method.problem is not None
    return method.problem(planned.digest.digest_spec, distribution, data)


def make_prior(planned: PlannedPosterior, data: Data, prior_data: Data | None) -> Distribution:
    """The prior, by seed and prior data alone: of `data` it gets the network only."""
    method = planned.digest.entry
    assert method.prior is not None
    return method.prior(planned.prior, data.network, prior_data, planned.seed)


def fit_posterior(
    planned: PlannedPosterior,
    certificate: Data,
    test: Data,
    prior_data: Data | None = None,
    watch: Watch = lambda objective: None,
) -> Posterior:
    """Make the prior and fit the posterior on the certificate part, which the bounds allow for every posterior."""
    begin = time.perf_counter()
    prior = make_prior(planned, certificate, prior_data)
    method = planned.digest.entry
    fitted = Fitted(prior)
    if planned.fit.fitted:
        assert method.fit is not None
        fitted = method.fit(planned.fit, prior, certificate._replace(also=prior_data), planned.seed, watch)
    seconds = time.perf_counter() - begin
    about = {
        **fitted.outcome,
        "kl_divergence": fitted.distribution.kl_from(prior) if planned.fit.fitted else 0.0,
        "fit_seconds": seconds,
        **reported_risks(planned, prior, fitted.distribution, certificate, test),
    }
    return Posterior(prior, fitted.distribution, about, fitted.history)


def reported_risks(
    planned: PlannedPosterior, prior: Distribution, posterior: Distribution, certificate: Data, test: Data
) -> dict[str, float]:
    """Accurate estimates of the Gibbs risks, and of the majority vote's error where logits are Gaussian.

    They are reported, and no certificate rests on them.
    """
    method = planned.digest.entry

    def risk(problem: Problem) -> float:
        return accurate_risk(problem, method.points_for(len(problem.labels)))

    tested = problem_of(planned, posterior, test)
    test_risk = risk(tested)
    return {
        "prior_risk": risk(problem_of(planned, prior, certificate)),
        "prior_test_risk": risk(problem_of(planned, prior, test)) if planned.fit.fitted else test_risk,
        "test_risk": test_risk,
        **({} if tested.mean is None else {"vote_test_error": vote_error(tested)}),
    }


def integrate_posterior(
    planned: PlannedIntegration, posterior: Posterior, certificate: Data
) -> tuple[Integration, dict[str, Any]]:
    """The empirical Gibbs risk, and what it cost."""
    begin = time.perf_counter()
    integrals = problem_of(planned.posterior, posterior.distribution, certificate)
    points = planned.num_points or 1
    found = integrate(planned.integrator, integrals, num_points=points, seed=planned.posterior.seed)
    about = {"integrate_seconds": time.perf_counter() - begin, "peak_bytes": peak_bytes()}
    return found.cpu(), {**about, "integrate_device": certificate.labels.device.type}


def convergence(
    planned: PlannedPosterior, posterior: Posterior, certificate: Data, asked: Convergence
) -> list[dict[str, Any]]:
    """Root mean square errors over seeds, against a long Monte Carlo run. [Boll22, Fig. 3]

    Of the risk of the whole part; or, if the suite names a number of data, of each one's own risk. The band is that of
    the mean square's standard error. The series `reference` is the reference's own error: what comes near it cannot be
    judged by it.
    """
    one_by_one = asked.num_data is not None
    integrals = problem_of(planned, posterior.distribution, _some(certificate, asked.num_data))

    def compared(found: Integration) -> Tensor:
        return found.per_datum.double().cpu() if one_by_one else found.value.double().cpu()[None]

    name = reference_integrator(integrals).name
    reference = integrate(name, integrals, num_points=asked.reference_points, seed=-1)
    truth, error = compared(reference), reference.standard_error or 0.0
    if one_by_one:
        error = float((truth * (1 - truth)).mean() / asked.reference_points) ** 0.5
    points = float(asked.reference_points)
    rows = [{"series": "reference", "x": points, "y": error, "low": error, "high": error, "seconds": 0.0}]
    for integrator in asked.integrator:
        if INTEGRATORS[integrator].needs not in integrals.offers:
            continue
        for count in asked.num_points:
            begin = time.perf_counter()
            found = [integrate(integrator, integrals, num_points=count, seed=seed) for seed in range(asked.repeats)]
            seconds = (time.perf_counter() - begin) / asked.repeats
            squares = torch.stack([((compared(one) - truth) ** 2).mean() for one in found])
            middle, spread = float(squares.mean()), float(squares.std()) / asked.repeats**0.5
            rows.append(
                {
                    "series": integrator,
                    "x": float(count),
                    "y": middle**0.5,
                    "low": max(0.0, middle - spread) ** 0.5,
                    "high": (middle + spread) ** 0.5,
                    "seconds": seconds,
                }
            )
    return rows


def _some(data: Data, at_most: int | None) -> Data:
    """At most so many data, spread over all of them."""
    if at_most is None:
        return data
    step = -(-len(data.labels) // at_most)
    return data._replace(
        digest={name: tensor[::step] for name, tensor in data.digest.items()}, labels=data.labels[::step]
    )


def peak_bytes() -> int:
    """Peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
