r"""fit and certify: one posterior on cached (M, G), and the certificates that rest on it. No Ray, no files.

Network and flow are done with: everything here works on what `push` wrote.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ldaf_bench.methods.pushed import Pushed
from ldaf_bench.models.classifier import LDAFClassifier
from ldaf_bench.plan import PlannedCell, PlannedPosterior
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.certificate import Budget, certify
from ldaf_bench.theory.covariances import PriorData, initial_covariance
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.integrate import flow_draw, integrate, problem
from ldaf_bench.theory.posterior import Alternation, FitSettings, Posterior, fit
from ldaf_bench.theory.pushforward import Pushforward

ACCURATE_POINTS = 256
"""Of `conditional`, for the Gibbs risks that are reported and that no certificate rests on."""


class Arrays(NamedTuple):
    """What `push` made of one part of the data."""

    pushforward: Pushforward
    features: Tensor
    labels: Tensor

    @classmethod
    def of(cls, pushed: Pushed) -> Arrays:
        """Of a pushforward on disk."""
        return cls(pushed.pushforward, pushed.features, pushed.labels)

    @property
    def mean_error(self) -> float:
        """The 0-1 error of the mean classifier."""
        return float((self.pushforward.mean.argmax(1) != self.labels).double().mean())


class Flow(NamedTuple):
    """The prior's flow, for `forward_mc`, which integrates it again."""

    name: str
    parameter: Tensor
    horizon: float


class Fitted(NamedTuple):
    """A posterior, the prior that it started from, and what there is to say about both."""

    start: Gaussian
    gaussian: Gaussian
    about: dict[str, Any]
    """Columns of the record, and the `history` of the fit."""


def flow_of(model: LDAFClassifier) -> Flow:
    """A trained classifier's."""
    return Flow(model.flow, model.flow_parameter.detach(), model.horizon)


def planned_start(planned: PlannedPosterior, certificate: Arrays, prior_data: Arrays | None) -> Gaussian:
    """The PAC-Bayes prior: where the covariance starts, by seed and by prior data alone."""
    size = certificate.pushforward.rows.shape[-1]
    data = None if prior_data is None else PriorData(prior_data.pushforward, prior_data.labels, planned.rise)
    return initial_covariance(planned.covariance, size, scale=planned.scale, seed=planned.seed, data=data)


def gibbs_risk(arrays: Arrays, gaussian: Gaussian) -> float:
    """The expected 0-1 error of the stochastic classifier, accurately estimated."""
    integrals = problem(arrays.pushforward, gaussian, arrays.labels)
    return float(integrate("conditional", integrals, num_points=ACCURATE_POINTS).value)


def fit_posterior(
    planned: PlannedPosterior,
    certificate: Arrays,
    test: Arrays,
    prior_data: Arrays | None = None,
    watch: Callable[[Alternation], None] = lambda alternation: None,
) -> Fitted:
    """Start the covariance and fit it on the certificate part, which the bound allows for every posterior at once."""
    begin = time.perf_counter()
    start = planned_start(planned, certificate, prior_data)
    if planned.objective == "prior":
        fitted = Posterior(start, 0.0, float("nan"), (), True)
    else:
        settings = FitSettings(
            epsilon=planned.epsilon,
            num_points=planned.num_points,
            optimizer=planned.optimizer,
            learning_rate=planned.learning_rate,
            epochs=planned.epochs,
            max_alternations=planned.max_alternations,
            batch_size=planned.batch_size,
            seed=planned.seed,
        )
        fitted = fit(certificate.pushforward, certificate.labels, start, settings, watch)
    seconds = time.perf_counter() - begin
    about = {
        "objective": planned.objective,
        "fit_points": planned.num_points or None,
        "optimizer": planned.optimizer or None,
        "prior_width": float(start.factor().square().sum() / start.size) ** 0.5,
        "lam": fitted.lam if fitted.history else None,
        "alternations": max(0, len(fitted.history) - 1),
        "converged": fitted.converged,
        "fit_seconds": seconds,
        "prior_risk": gibbs_risk(certificate, start),
        "prior_test_risk": gibbs_risk(test, start),
        "test_risk": gibbs_risk(test, fitted.gaussian),
        "history": [step._asdict() for step in fitted.history],
    }
    return Fitted(start, fitted.gaussian, about)


def certify_cell(cell: PlannedCell, fitted: Fitted, certificate: Arrays, flow: Flow) -> list[dict[str, Any]]:
    """One row for each bound and ε, for the stochastic classifier."""
    begin = time.perf_counter()
    budgets = [Budget(epsilon, cell.delta, cell.num_priors, cell.num_integrations) for epsilon in cell.epsilons]
    draw = None
    if cell.integrator == "forward_mc":
        tolerance = None if cell.posterior is None else cell.posterior.tolerance
        draw = flow_draw(flow.name, flow.parameter, certificate.features, flow.horizon, tolerance)
    integrals = problem(certificate.pushforward, fitted.gaussian, certificate.labels, draw)
    risk = integrate(
        cell.integrator,
        integrals,
        num_points=cell.num_points or 1,
        seed=0 if cell.posterior is None else cell.posterior.seed,
        delta=budgets[0].delta_each,
    )
    seconds = time.perf_counter() - begin
    rows = []
    for budget in budgets:
        for bound in cell.bounds:
            proof = certify(bound, risk, fitted.start, budget)
            rows.append(
                {
                    "integrator": cell.integrator,
                    "num_points": cell.num_points or None,
                    "num_evaluations": risk.num_evaluations,
                    "risk": float(risk.value),
                    "risk_upper": risk.upper,
                    "integration_error": risk.standard_error,
                    "kl": proof.kl,
                    "bound": bound,
                    "epsilon": budget.epsilon,
                    "delta": cell.delta if risk.delta else 0.0,
                    "num_priors": cell.num_priors,
                    "num_integrations": cell.num_integrations,
                    "value": proof.value,
                    "certified": proof.certified,
                    "integrate_seconds": seconds,
                }
            )
    return rows


def certify_mean(cell: PlannedCell, certificate: Arrays) -> list[dict[str, Any]]:
    """One row for each bound and ε, for the mean classifier, which is fixed before the certificate part is seen."""
    error, num_data = certificate.mean_error, len(certificate.labels)
    return [
        {
            "bound": bound,
            "epsilon": epsilon,
            "delta": 0.0,
            "num_priors": cell.num_priors,
            "num_integrations": cell.num_integrations,
            "value": min(1.0, float(BOUNDS[bound](error, 0.0, num_data, epsilon / cell.num_priors))),
            "certified": True,
        }
        for epsilon in cell.epsilons
        for bound in cell.bounds
    ]


def convergence(
    fitted: Fitted, certificate: Arrays, integrators: tuple[str, ...], num_points: tuple[int, ...], repeats: int,
    reference_points: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Root mean square errors of the risk over seeds, against a long Monte Carlo run. [Boll22, Fig. 3]

    The band is that of the mean square's standard error. The series `reference` is the reference's own error: what
    comes near it cannot be judged by it.
    """
    integrals = problem(certificate.pushforward, fitted.gaussian, certificate.labels)
    reference = integrate("mc", integrals, num_points=reference_points, seed=-1)
    truth, error = float(reference.value), reference.standard_error or 0.0
    rows = [
        {"series": "reference", "x": float(reference_points), "y": error, "low": error, "high": error, "seconds": 0.0}
    ]
    for integrator in integrators:
        for count in num_points:
            begin = time.perf_counter()
            values = [float(integrate(integrator, integrals, num_points=count, seed=s).value) for s in range(repeats)]
            seconds = (time.perf_counter() - begin) / repeats
            squares = (torch.tensor(values, dtype=torch.float64) - truth) ** 2
            middle, spread = float(squares.mean()), float(squares.std()) / repeats**0.5
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


def peak_bytes() -> int:
    """Peak memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024
