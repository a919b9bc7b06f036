"""The checks: each returns nothing, or raises `VerifyError` with a sentence about the first thing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy.special
import torch

from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import require_unseen
from ldaf_bench.methods.pushed import Pushed
from ldaf_bench.methods.store import Prior
from ldaf_bench.models.classifier import LDAFClassifier
from ldaf_bench.plan import PlannedCell, PlannedPosterior, PlannedPrior
from ldaf_bench.results.collect import Sources
from ldaf_bench.results.store import StoredPosterior
from ldaf_bench.stages.certify import Arrays, Fitted, certify_cell, certify_mean, flow_of, gibbs_risk, planned_start
from ldaf_bench.theory.bounds import CATONI_GRID
from ldaf_bench.theory.flows import forward
from ldaf_bench.theory.integrate import CERTIFYING, integrate, problem
from ldaf_bench.verify import dense

NETWORK_SAMPLE = 512
"""So many data of every pushforward go through the network again."""
DENSE_SAMPLE = 8
"""So many are computed again by dense matrix exponentials."""


NEGLIGIBLE = 1e-7
"""Of the risk may come from data that `mc` does not draw for."""


class VerifyError(Exception):
    """Something does not hold."""


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise VerifyError(sentence)


def check_prior(planned: PlannedPrior, prior: Prior) -> None:
    """The prior is the planned one, and saw no certificate and no test point."""
    require_unseen(prior.seen, planned.splits)
    seen = prior.seen.indices()
    _require(np.array_equal(seen, planned.splits.prior), f"Prior {prior.identity} saw other points than were planned.")
    described = prior.record["splits"]
    _require(described == planned.splits.describe(), f"Prior {prior.identity} carries the hashes of another split.")


def check_pushforward(prior: Prior, pushed: Pushed, dataset: Dataset | None) -> None:
    """Labels are the data's, M that of the flow for all data; features and G are looked at for some.

    Which some is left to chance: nobody can know beforehand what will not be looked at.
    """
    model = prior.model()
    indices = np.load(pushed.path / "indices.npy", allow_pickle=False)
    chance = np.random.default_rng()
    name = f"The pushforward {pushed.path.name} of prior {prior.identity}"
    if dataset is not None:
        some = chance.permutation(len(indices))[:NETWORK_SAMPLE]
        _require(
            np.array_equal(dataset.labels[indices], pushed.labels.numpy()),
            f"{name} has labels that are not the data's.",
        )
        images = torch.from_numpy(dataset.images[indices[some]])
        with torch.inference_mode():
            flows = isinstance(model, LDAFClassifier)
            again = model.features(images) if isinstance(model, LDAFClassifier) else model(images)
        _require_close(f"{name} has {'features' if flows else 'logits'} that are not the network's",
                       again, (pushed.features if flows else pushed.pushforward.mean)[some], 1e-3)  # fmt: skip
    if not isinstance(model, LDAFClassifier):
        return
    parameter = model.flow_parameter.detach().double()
    means = [forward(model.flow, parameter, part.double(), model.horizon) for part in pushed.features.split(256)]
    error = pushed.pushforward.error
    _require_within(f"{name} has a wrong M", torch.cat(means), pushed.pushforward.mean, error)
    some = chance.permutation(len(indices))[:DENSE_SAMPLE]
    features = pushed.features[some].double().numpy()
    mean, rows = dense.pushforward(model.flow, parameter.numpy(), features, model.horizon)
    for what, exact, stored in (("M", mean, pushed.pushforward.mean), ("G", rows, pushed.pushforward.rows)):
        sentence = f"{name} has a wrong {what}, by dense exponentials"
        _require_within(sentence, torch.from_numpy(exact), stored[some], error[some])


def _require_within(sentence: str, exact: torch.Tensor, stored: torch.Tensor, error: torch.Tensor) -> None:
    """Every datum is right within a few times its own error estimate."""
    exact, stored = exact.flatten(1), stored.flatten(1)
    gap = (exact - stored).abs().amax(1)
    allowed = 2 * error + 1e-6 * exact.abs().amax(1).clamp_min(1)
    _require(bool((gap <= allowed).all()), f"{sentence}: it differs by {float(gap.max()):.1e}.")


def _require_close(sentence: str, exact: torch.Tensor, stored: torch.Tensor, allowed: float) -> None:
    gap = float((exact - stored.to(exact)).abs().max() / exact.abs().max().clamp_min(1))
    _require(gap <= allowed, f"{sentence}: it differs by {gap:.1e}.")


def check_posterior(planned: PlannedPosterior, posterior: StoredPosterior, sources: Sources) -> None:
    """The posterior started from the planned prior, which depends on prior data only; its reported risks are right."""
    name = f"Posterior {planned.identity}"
    certificate, test, prior_part = (None if part is None else Arrays.of(part) for part in sources[1:])
    assert certificate is not None
    assert test is not None
    start = planned_start(planned, certificate, prior_part)
    same = torch.allclose(start.factor(), posterior.start.factor(), rtol=1e-7, atol=1e-12)
    _require(same, f"{name} did not start from the prior that was planned: its KL divergence is from something else.")
    for column, arrays, gaussian in (
        ("prior_risk", certificate, start), ("prior_test_risk", test, start), ("test_risk", test, posterior.gaussian),
    ):  # fmt: skip
        again = gibbs_risk(arrays, gaussian)
        _require(
            abs(again - posterior.about[column]) <= 1e-6,
            f"{name} says {column} = {posterior.about[column]:.7f}, but it is {again:.7f}.",
        )


def check_again(
    cell: PlannedCell, rows: Sequence[Mapping[str, Any]], posterior: StoredPosterior | None, sources: Sources
) -> None:
    """The cell, computed once more from the same seeds, has the same rows."""
    certificate = Arrays.of(sources.certificate)
    if posterior is None:
        again = certify_mean(cell, certificate)
    else:
        model = sources.prior.model()
        assert isinstance(model, LDAFClassifier)
        again = certify_cell(cell, Fitted(*posterior), certificate, flow_of(model))
    _require(len(rows) == len(again), f"Cell {cell.identity} has {len(rows)} rows instead of {len(again)}.")
    # Rounding that differs between machines may turn a draw or two.
    allowed = 2 / (len(certificate.labels) * max(1, cell.num_points)) + 1e-6
    for found, right in zip(rows, again, strict=True):
        for column, other in right.items():
            if column == "integrate_seconds":
                continue
            one = found.get(column)
            close = one == other or (
                isinstance(one, float) and isinstance(other, float) and abs(one - other) <= allowed * max(1, abs(other))
            )
            _require(close, f"Cell {cell.identity}, bound {right['bound']}: {column} is {other}, not {one}.")


def check_row(cell: PlannedCell, row: Mapping[str, Any], posterior: StoredPosterior, certificate: Pushed) -> None:
    """One certificate of the stochastic classifier: KL, risk, bound and what was paid for it."""
    name = f"Cell {cell.identity}, bound {row['bound']}"
    check_paid(cell, row, name)
    num_data = len(certificate.labels)
    kl = dense.kl(posterior.gaussian.factor().double().numpy(), posterior.start.factor().double().numpy())
    _require(abs(kl - row["kl"]) <= 1e-6 * max(1.0, abs(kl)), f"{name}: KL is {kl:.9g}, not {row['kl']:.9g}.")
    guaranteed = row["risk_upper"] is not None
    _require(
        row["certified"] == guaranteed and (not guaranteed or cell.integrator in CERTIFYING),
        f"{name} says certified = {row['certified']}, which {cell.integrator} does not allow.",
    )
    risk = row["risk_upper"] if guaranteed else row["risk"]
    value = min(1.0, slow_bound(row["bound"], risk, row["kl"], num_data, row["epsilon"] / cell.num_priors))
    _require(abs(value - row["value"]) <= 1e-7, f"{name}: the bound is {value:.9g}, not {row['value']:.9g}.")


def check_risk(cell: PlannedCell, row: Mapping[str, Any], posterior: StoredPosterior, certificate: Pushed) -> None:
    """The risk that the certificates of a cell rest on, against an accurate estimate at points of its own."""
    pushed = type(certificate.pushforward)(*(part.double() for part in certificate.pushforward))
    integrals = problem(pushed, posterior.gaussian, certificate.labels)
    estimate = float(integrate("conditional", integrals, num_points=1024, seed=-7).value)
    name = f"Cell {cell.identity}"
    # How far an estimate with q points per datum may be off: six standard errors of plain sampling.
    draws = max(1, len(certificate.labels) * max(cell.num_points, 1))
    noise = 6 * math.sqrt(max(estimate * (1 - estimate), 1 / draws) / draws) + 1e-4
    if row["risk_upper"] is not None:
        _require(
            row["risk_upper"] >= estimate - noise,
            f"{name}: the risk is about {estimate:.6f}, above its guarantee {row['risk_upper']:.6f}.",
        )
    if cell.integrator != "bonferroni":
        _require(
            abs(row["risk"] - estimate) <= noise, f"{name}: the risk is about {estimate:.6f}, not {row['risk']:.6f}."
        )


def check_guarantee(cell: PlannedCell, row: Mapping[str, Any], posterior: StoredPosterior, certificate: Pushed) -> None:
    """The upper bound on the risk follows from what was drawn, at the confidence that the plan pays for."""
    name, upper = f"Cell {cell.identity}", row["risk_upper"]
    if cell.integrator == "bonferroni":
        pushed = certificate.pushforward
        mean, rows, factor = (part.double().numpy() for part in (pushed.mean, pushed.rows, posterior.gaussian.factor()))
        low = high = float(dense.tree_bound(mean, rows, factor, certificate.labels.numpy()).mean())
    elif upper is not None:
        num_data, draws = len(certificate.labels), row["num_evaluations"]
        share = draws / (num_data * cell.num_points)
        _require(
            0 <= share <= 1, f"{name} has {draws} draws, which is not {cell.num_points} for some of {num_data} data."
        )
        _require(cell.integrator != "forward_mc" or share == 1, f"{name} has not drawn for all data.")
        low, high = row["risk"] - NEGLIGIBLE, row["risk"]
        if draws:
            complexity = math.log(cell.num_integrations / cell.delta) / draws
            low, high = (share * kl_inverse(min(1.0, max(0.0, risk) / share), complexity) for risk in (low, high))
        high = min(1.0, high + NEGLIGIBLE)
    else:
        return
    _require(
        low - 1e-7 <= upper <= high + 1e-7,
        f"{name}: the risk's guarantee is {high:.7f}, not {upper:.7f}, at the δ′ that the plan pays for.",
    )


def check_mean(cell: PlannedCell, row: Mapping[str, Any], certificate: Pushed) -> None:
    """One certificate of the mean classifier."""
    name = f"Cell {cell.identity}, bound {row['bound']}"
    check_paid(cell, row, name)
    wrong, num_data = round(certificate.mean_error * len(certificate.labels)), len(certificate.labels)
    epsilon = row["epsilon"] / cell.num_priors
    if row["bound"] == "test_set":
        # The defining identity: P(Bin(m, p) ≤ errors) = ε.
        chance = float(scipy.special.bdtr(wrong, num_data, row["value"])) if wrong < num_data else epsilon
        _require(abs(chance - epsilon) <= 1e-6, f"{name}: {wrong} errors in {num_data} do not give {row['value']:.6f}.")
    else:
        value = min(1.0, kl_inverse(wrong / num_data, math.log(1 / epsilon) / num_data))
        _require(abs(value - row["value"]) <= 1e-7, f"{name}: the bound is {value:.9g}, not {row['value']:.9g}.")


def check_paid(cell: PlannedCell, row: Mapping[str, Any], name: str) -> None:
    """What was paid for choosing is what the plan says."""
    for column in ("num_priors", "num_integrations"):
        _require(
            row[column] == getattr(cell, column),
            f"{name} paid for {column} = {row[column]}, but the plan says {getattr(cell, column)}.",
        )
    _require(row["epsilon"] in cell.epsilons, f"{name} is at an ε of {row['epsilon']}, which is not in the plan.")


def kl_inverse(risk: float, complexity: float) -> float:
    """sup{p ≥ r : kl(r‖p) ≤ C}, by bisection in plain Python."""

    def excess(p: float) -> float:
        left = risk * math.log(risk / p) if risk > 0 else 0.0
        right = (1 - risk) * math.log((1 - risk) / (1 - p)) if risk < 1 else 0.0
        return left + right - complexity

    low, high = risk, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high) or middle >= 1:
            break
        low, high = (middle, high) if excess(middle) <= 0 else (low, middle)
    return high


def slow_bound(bound: str, risk: float, kl: float, num_data: int, epsilon: float) -> float:
    """Every bound, written down once more, in plain Python."""
    penalty = (kl + math.log(2 * math.sqrt(num_data) / epsilon)) / num_data
    if bound == "kl":
        return kl_inverse(risk, penalty)
    if bound == "kl_exact":
        counts = np.arange(num_data + 1)
        logs = scipy.special.gammaln(num_data + 1) - scipy.special.gammaln(counts + 1)
        logs = logs - scipy.special.gammaln(num_data - counts + 1)
        logs = logs + scipy.special.xlogy(counts, counts / num_data)
        logs = logs + scipy.special.xlogy(num_data - counts, 1 - counts / num_data)
        exact = (kl + float(scipy.special.logsumexp(logs)) - math.log(epsilon)) / num_data
        return kl_inverse(risk, exact)
    if bound in ("lambda", "quad"):
        return (math.sqrt(risk + penalty / 2) + math.sqrt(penalty / 2)) ** 2
    if bound == "classic":
        return risk + math.sqrt(penalty / 2)
    if bound == "catoni":
        union = (kl + math.log(len(CATONI_GRID) / epsilon)) / num_data
        return min(-math.expm1(-beta * risk - union) / -math.expm1(-beta) for beta in CATONI_GRID)
    raise VerifyError(f"The bound {bound} is not known here: write it down in `verify.checks.slow_bound` too.")
