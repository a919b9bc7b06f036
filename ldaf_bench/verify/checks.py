"""The checks: each returns nothing, or raises `VerifyError` with a sentence about the first thing that is wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ldaf_bench.data.dataset import Dataset
from ldaf_bench.data.splits import received_hash, require_received, require_unseen
from ldaf_bench.methods.method import Distribution, Method
from ldaf_bench.models.network import Network
from ldaf_bench.plan import DigestOf, PlannedIntegration, PlannedNetwork, PlannedPosterior
from ldaf_bench.results.collect import Sources
from ldaf_bench.stages.digest import digest_images
from ldaf_bench.stages.fit import integrate_posterior, make_prior, problem_of, reported_risks
from ldaf_bench.store.digests import Digested
from ldaf_bench.store.posteriors import Posterior
from ldaf_bench.theory.bounds import BOUNDS, Bound
from ldaf_bench.theory.certificate import Budget
from ldaf_bench.theory.integrate import INTEGRATORS, Integration, Integrator, accurate_risk
from ldaf_bench.theory.integrate.bonferroni import BONFERRONI
from ldaf_bench.verify import dense
from ldaf_bench.verify.methods import METHOD_TWINS
from ldaf_bench.verify.twins import BOUND_TWINS, UPPER_TWINS, Upper, excess

NETWORK_SAMPLE = 512
"""Data of every digest that go through the network again."""
SAMPLED_DRAWS = 100_000
"""Draws of the start, over all data, that the risk of a posterior is compared with."""


class VerifyError(Exception):
    """Something does not hold."""


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise VerifyError(sentence)


def check_network(planned: PlannedNetwork, network: Network, dataset: Dataset | None) -> None:
    """The network is the planned one, saw no certificate and no test point, and its workers got the prior part."""
    require_unseen(network.seen, planned.splits)
    if dataset is not None:
        prior = planned.splits.prior
        expected = received_hash(dataset.images[prior], dataset.labels[prior])
        require_received(network.record["training"]["starts"], expected)
    name = f"Network {network.identity}"
    same = np.array_equal(network.seen.indices(), planned.splits.prior)
    _require(same, f"{name} saw other points than were planned.")
    _require(network.record["splits"] == planned.splits.describe(), f"{name} carries the hashes of another split.")


def check_digest(planned: DigestOf, network: Network, digested: Digested, dataset: Dataset | None) -> None:
    """Labels are the data's; some data go through the network again; what has a twin is compared with it.

    Which data is left to chance: nobody can know beforehand what will not be looked at.
    """
    model = network.model()
    indices = np.load(digested.path / "indices.npy", allow_pickle=False)
    chance = np.random.default_rng()
    name = f"The digest {digested.path.name} of network {network.identity}"
    if dataset is not None:
        right = np.array_equal(dataset.labels[indices], digested.labels.numpy())
        _require(right, f"{name} has labels that are not the data's.")
        some = chance.permutation(len(indices))[:NETWORK_SAMPLE]
        again = digest_images(
            planned.entry, planned.digest_spec, model, torch.from_numpy(dataset.images[indices[some]])
        )
        _require(again.keys() == digested.tensors.keys(), f"{name} has other arrays than its method makes.")
        # An error estimate depends on the batch; it is judged by what it is an estimate of, below.
        for tensor in again.keys() - {"error"}:
            _require_close(f"{name} has {tensor} that are not the network's", again[tensor],
                           digested.tensors[tensor][some], 1e-3)  # fmt: skip
    twin = METHOD_TWINS.get(planned.entry)
    if twin is None or twin.digest is None:
        return
    for what, exact, stored, allowed in twin.digest(planned.digest_spec, model, digested, chance):
        require_within(f"{name} has a wrong {what}", exact, stored, allowed)


def require_within(sentence: str, exact: torch.Tensor, stored: torch.Tensor, allowed: float) -> None:
    """Every datum is right, relative to its largest entry."""
    exact, stored = exact.flatten(1), stored.flatten(1)
    gap = (exact - stored).abs().amax(1) / exact.abs().amax(1).clamp_min(1)
    _require(bool((gap <= allowed).all()), f"{sentence}: it differs by {float(gap.max()):.1e}.")


def _require_close(sentence: str, exact: torch.Tensor, stored: torch.Tensor, allowed: float) -> None:
    gap = float((exact - stored.to(exact)).abs().max() / exact.abs().max().clamp_min(1))
    _require(gap <= allowed, f"{sentence}: it differs by {gap:.1e}.")


def divergence(method: Method, posterior: Distribution, prior: Distribution) -> float:
    """KL by the method's twin if it has one, else by the distributions' own word."""
    twin = METHOD_TWINS.get(method)
    return posterior.kl_from(prior) if twin is None else twin.kl(posterior, prior)


def check_posterior(planned: PlannedPosterior, posterior: Posterior, sources: Sources) -> None:
    """It started from the planned prior, which depends on prior data only; KL and reported risks are right."""
    name = f"Posterior {planned.identity}"
    certificate, test = sources.certificate.data(sources.network), sources.test.data(sources.network)
    prior_data = None if sources.prior_part is None else sources.prior_part.data(sources.network)
    prior = make_prior(planned, certificate, prior_data)
    mine, stored = prior.tensors(), posterior.prior.tensors()
    same = mine.keys() == stored.keys() and all(
        # A scale in units of the logits rests on a digest, which another machine rounds otherwise.
        torch.allclose(mine[tensor], stored[tensor], rtol=1e-5, atol=1e-12)
        for tensor in mine
    )
    _require(same, f"{name} did not start from the prior that was planned: its KL divergence is from something else.")
    if not planned.fit.fitted:
        ours = posterior.distribution.tensors()
        same = all(torch.equal(ours[tensor], stored[tensor]) for tensor in stored)
        _require(same, f"{name} says that it is unfitted, but it is not its prior.")
    method, said = planned.digest.entry, posterior.about["kl_divergence"]
    kl = divergence(method, posterior.distribution, posterior.prior)
    _require(abs(kl - said) <= 1e-6 * max(1.0, abs(kl)), f"{name}: KL is {kl:.9g}, not {said:.9g}.")
    for column, again in reported_risks(planned, prior, posterior.distribution, certificate, test).items():
        said = posterior.about.get(column, math.nan)
        _require(abs(again - said) <= 1e-6, f"{name} says {column} = {said:.7f}, but it is {again:.7f}.")


def estimate_points(planned: PlannedPosterior, num_data: int) -> int:
    """Points per datum of `verify`'s own estimate; as many as are reported where every draw runs a network."""
    method = planned.digest.entry
    return (4 if method.report_draws is None else 1) * method.points_for(num_data)


def estimate_risk(planned: PlannedPosterior, posterior: Posterior, sources: Sources) -> float:
    """An accurate estimate of the risk on the certificate part, at points that nothing else uses.

    Where there is a dense twin, plain Monte Carlo in all coordinates has to agree with it.
    """
    certificate = sources.certificate.data(sources.network)
    integrals = problem_of(planned, posterior.distribution, certificate)
    estimate = accurate_risk(integrals, estimate_points(planned, len(certificate.labels)), seed=-7)
    twin, labels = METHOD_TWINS.get(planned.digest.entry), certificate.labels.numpy()
    name = f"Posterior {planned.identity}"
    if twin is not None and twin.logits is not None:
        num_draws = -(-SAMPLED_DRAWS // len(labels))
        sampled = dense.sampled_risk(twin.logits(certificate.digest, posterior.distribution), labels, num_draws, 7)
        _require_drawn(name, sampled, len(labels) * num_draws, estimate)
        if twin.risk is not None:
            exact = float(twin.risk(twin.logits(certificate.digest, posterior.distribution), labels).mean())
            sentence = f"{name}: its risk is {exact:.6f} by quadrature, not {estimate:.6f}."
            _require(abs(exact - estimate) <= 1e-4, sentence)
    elif twin is not None and twin.draw is not None:
        errors = twin.draw(certificate.network.model(), certificate.digest, labels, posterior.distribution)
        _require_drawn(name, sum(errors) / len(errors), len(errors), estimate)
    return estimate


def _require_drawn(name: str, sampled: float, draws: int, estimate: float) -> None:
    """So many plain draws agree with the estimate within six standard errors."""
    noise = 6 * math.sqrt(max(estimate * (1 - estimate), 1 / draws) / draws) + 1e-5
    _require(abs(sampled - estimate) <= noise, f"{name}: its risk is {sampled:.6f} by drawing, not {estimate:.6f}.")


def check_integration(
    planned: PlannedIntegration,
    posterior: Posterior,
    integration: Integration,
    sources: Sources,
    estimate: float,
    device: torch.device,
    archived: bool,
) -> None:
    """The same values come out from the same seeds, on the device that drew them.

    They fit an accurate estimate and, where there is one, a twin. `archived`: the digests were computed again, maybe by
    a processor that rounds otherwise.
    """
    name, entry = f"Integration {planned.identity}", INTEGRATORS[planned.integrator]
    certificate = sources.certificate.data(sources.network)
    again, _ = integrate_posterior(planned, posterior, certificate.to(device))
    # Rounding that differs between machines may turn a draw or two, but no probability.
    draws = len(certificate.labels) * max(1, planned.num_points)
    turned = 0.0 if entry is BONFERRONI else 2 / draws
    gap = abs(float(again.value) - float(integration.value))
    right = len(integration.per_datum) == len(certificate.labels) and gap <= turned + 1e-6
    _require(right, f"{name}: the risk is {float(again.value):.7f}, not {float(integration.value):.7f}.")
    moved = (again.per_datum - integration.per_datum).abs() * max(1, planned.num_points)
    _require(float(moved.sum()) <= 2.1 + 1e-4 * draws, f"{name}: other data are wrong than from the same seeds.")
    _require((integration.draws is not None) == entry.certifies, f"{name}: what its values rest on is not said.")
    if again.draws is not None and integration.draws is not None:
        _require(torch.equal(again.draws, integration.draws), f"{name} has not drawn as often as it says.")
    for what, one, other in (
        ("evaluations", again.num_evaluations, integration.num_evaluations),
        ("standard error", again.standard_error, integration.standard_error),
    ):
        near = one == other or (one is not None and other is not None and abs(one - other) <= 1e-6 * max(1, abs(one)))
        _require(near, f"{name}: its {what} is {one}, not {other}.")
    twin = METHOD_TWINS.get(planned.posterior.digest.entry)
    if entry is BONFERRONI and twin is not None and twin.logits is not None:
        logits = twin.logits(certificate.digest, posterior.distribution)
        exact = dense.tree_bound(logits, certificate.labels.numpy())
        gap = float(np.abs(exact - integration.per_datum.numpy()).max())
        _require(gap <= (1e-3 if archived else 1e-7), f"{name}: the bound differs from its dense twin by {gap:.1e}.")
    # How far two estimates with so many independent draws may be apart: six standard errors of plain sampling.
    independent = planned.num_points if entry.needs == "shared" else draws
    others = len(certificate.labels) * estimate_points(planned.posterior, len(certificate.labels))
    noise = 6 * math.sqrt(max(estimate * (1 - estimate), 1 / draws) * (1 / independent + 1 / others)) + 1e-4
    if not entry.certifies or entry.chance:
        off = abs(float(integration.value) - estimate)
        _require(off <= noise, f"{name}: the risk is about {estimate:.6f}, not {float(integration.value):.6f}.")
    else:
        _require(
            float(integration.value) >= estimate - noise,
            f"{name}: the risk is about {estimate:.6f}, above its guarantee {float(integration.value):.6f}.",
        )


def check_row(
    row: Mapping[str, Any],
    integrations: Sequence[Integration],
    mistakes: Sequence[torch.Tensor],
    budget: Budget,
    delta: float,
) -> None:
    """One certificate: what it paid, what its bound was evaluated at, and the bound, by twins of both.

    `integrations` holds its own, or is empty for a mean classifier; `mistakes` says where the mean classifier errs, if
    there is one; `delta` is the suite's δ′.
    """
    name = _name(row)
    for column, asked in (
        ("num_events", budget.num_events), ("num_integrations", budget.num_integrations), ("level", budget.epsilon),
        ("delta", budget.delta),
    ):  # fmt: skip
        paid = row[column]
        _require(paid == asked, f"{name} paid for {column} = {paid}, but the plan says {asked}.")
    bound, certified = _bound(row), True
    _require(row["event"] == bound.event, f"{name} rests on another event than it says.")
    _require(row["classifier"] in bound.about, f"{name} is not about a {row['classifier']}.")
    kl, taken = 0.0, _taken(bound, row, integrations, mistakes, budget)
    if integrations:
        entry, kl = INTEGRATORS[row["integrator"]], row["kl_divergence"]
        certified, said = entry.certifies, row["risk_upper"]
        _require(bound.takes == "values" or entry.counts == bound.counts, f"{name} does not go with {entry.name}.")
        if certified and bound.takes == "risk":
            sentence = f"{name}: the risk's guarantee is {taken:.7f}, not {said}, at the δ′ that the plan pays for."
            _require(said is not None and abs(taken - said) <= 1e-7, sentence)
        else:
            _require(said is None, f"{name} has an upper end of the risk that it does not pay for.")
    _require(row["certified"] == certified, f"{name} says certified = {row['certified']}, which is not so.")
    total = row["epsilon"] + delta if certified else None
    _require(row["total"] == total, f"{name} says that it fails with probability {row['total']}, not {total}.")
    _check_value(name, row["value"], bound, taken, kl, row["num_certificate"], budget)


def check_mixture(
    seeds: Sequence[Mapping[str, Any]],
    integrations: Sequence[Integration],
    mistakes: Sequence[torch.Tensor],
    budget: Budget,
    report: str,
) -> None:
    """The certificate of the mixture over the seeds of one setting: mean KL, and the values of all seeds together."""
    first, size = seeds[0], len(seeds)
    name, bound = f"The mixture of {_name(first)}", _bound(first)
    said = {row["mixture"] for row in seeds}
    if report != "all" or not bound.mixes:
        _require(said == {None}, f"{name} has a value, but there is none.")
        return
    _require(len(said) == 1 and None not in said, f"{name} is not the same for all seeds.")
    kl = sum(row["kl_divergence"] or 0.0 for row in seeds) / size
    taken = _taken(bound, first, integrations, mistakes, budget)
    _check_value(name, first["mixture"], bound, taken, kl, first["num_certificate"], budget)


def _name(row: Mapping[str, Any]) -> str:
    return f"Integration {row['integration']}, bound {row['bound']}"


def _bound(row: Mapping[str, Any]) -> Bound:
    """The bound of a row, at its guess."""
    bound = BOUNDS[row["bound"]]
    _require((row["guess"] is None) == (bound.at is None), f"{_name(row)} rests on a guess where there is none.")
    return bound if bound.at is None else bound.at(row["guess"])


def _check_value(name: str, said: float, bound: Bound, taken: Any, kl: float, num_data: int, budget: Budget) -> None:
    numbers = (taken, kl, num_data, budget.epsilon / budget.num_events)
    twin = BOUND_TWINS.get(BOUNDS[bound.name])
    guess = () if bound.guess is None else (bound.guess,)
    value = min(1.0, float(bound(*numbers)) if twin is None else twin(*numbers, *guess))
    _require(abs(value - said) <= 1e-7, f"{name}: the bound is {value:.9g}, not {said:.9g}.")


def _taken(
    bound: Bound,
    row: Mapping[str, Any],
    integrations: Sequence[Integration],
    mistakes: Sequence[torch.Tensor],
    budget: Budget,
) -> Any:
    """What the bound is evaluated at, from hits and draws, at the confidence that the plan pays for; of all seeds."""
    entry = INTEGRATORS[row["integrator"]] if integrations else None
    wrong = [one.numpy() for one in mistakes]
    parts = [one.per_datum.numpy() for one in integrations] or [one.astype(np.float64) for one in wrong]
    if bound.takes == "values":
        return np.mean(parts, axis=0).tolist()
    values, free = np.concatenate(parts), np.zeros(sum(map(len, parts)), np.int64)
    draws = [one.draws.numpy() for one in integrations if one.draws is not None]
    counted = np.concatenate(draws) if draws else free
    upper = upper_twin(entry)
    if bound.takes == "excess":
        return excess(values, counted, np.concatenate(wrong), upper, budget.delta_each)
    return upper(values, counted, budget.delta_each)


def upper_twin(entry: Integrator | None) -> Upper:
    """The guarantee's twin, or the guarantee itself if it has none; the mean where nothing is guaranteed."""
    if entry is None or entry.upper is None:
        return lambda values, draws, delta: float(values.mean())
    own = entry.upper
    return UPPER_TWINS.get(entry) or (
        lambda values, draws, delta: own(Integration(torch.from_numpy(values), torch.from_numpy(draws)), delta)
    )


def without_twin(bounds: set[str]) -> list[str]:
    """The bounds that have no twin here."""
    return sorted(name for name in bounds if BOUNDS[name] not in BOUND_TWINS)
