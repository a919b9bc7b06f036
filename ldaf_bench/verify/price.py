"""What a suite has to pay, counted once more from the suite's own text, by other code than `plan`'s."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ldaf_bench.methods import METHODS
from ldaf_bench.theory.bounds import BOUNDS, Bound
from ldaf_bench.theory.certificate import Budget
from ldaf_bench.theory.integrate import INTEGRATORS


class Price(NamedTuple):
    """Events and guarantees of integrations that could be picked among."""

    mean_events: int
    stochastic_events: int
    integrations: int
    """Guarantees of integrations by chance."""


def _points(spec: Any, axes: Mapping[str, list[Any]]) -> Iterator[str]:
    """Every point of a section as text, without what has no effect; repeated ones included."""
    names = list(spec.model_fields)
    for values in itertools.product(*(axes[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        silent = spec(**point).unused()
        yield json.dumps([[name, value] for name, value in point.items() if name not in silent])


def _events(names: list[str], guesses: list[float]) -> Iterator[tuple[Bound, str, float | None]]:
    """Every bound with its event, at each guess if it rests on one."""
    for bound in (BOUNDS[name] for name in names):
        for guess in [None] if bound.at is None else guesses:
            yield bound, bound.name if guess is not None else bound.event, guess


def recount(suite: Mapping[str, Any]) -> Price:
    """K of mean and of stochastic classifiers, and J, from a suite as plan.json has it."""
    asked, risks = suite["certificates"], suite["risks"]
    networks = list(
        itertools.product(suite["data"]["certificate"], suite["networks"]["backbone"], suite["networks"]["seed"])
    )
    mean, stochastic, by_chance = set(), set(), set()
    every = list(_events(asked["bound"], asked["guess"]))
    grids = [(name, axes) for name, first in suite["methods"].items() for axes in (first, *first.get("also", ()))]
    for name, axes in grids:
        method = METHODS[name]
        heads = set(_points(method.head, axes))
        digests = set(_points(method.digest_axes, axes))
        for network, head in itertools.product(networks, heads):
            if method.logits is not None:
                mean |= {(*event, name, network, head) for bound, *event in every if "mean" in bound.about}
        if method.prior is None:
            continue
        priors = set(_points(method.prior_axes, axes))
        fits = {point: json.loads(point) for point in _points(method.fit_axes, axes)}
        for network, head, digest, prior in itertools.product(networks, heads, digests, priors):
            for point, fit in fits.items():
                kind = "prior" if ["objective", "unfitted"] in fit else "posterior"
                for integrator in risks["integrator"]:
                    entry = INTEGRATORS[integrator]
                    if entry.needs not in method.offers or not entry.certifies:
                        continue
                    points = risks["num_points" if entry.needs == "gaussian" else "num_draws"]
                    points = points if entry.least_points else [0]
                    key = (name, network, head, digest, prior)
                    for bound, *event in every:
                        if kind not in bound.about or (bound.takes == "excess" and method.logits is None):
                            continue
                        if bound.takes == "values" and entry.needs == "shared":
                            continue  # its values hang together
                        if bound.takes == "values":  # every integration has other values
                            stochastic |= {(*event, key, point, integrator, count) for count in points}
                        elif bound.counts == entry.counts:
                            stochastic.add((*event, bound.counts, key))
                            if entry.costs_delta:  # ends of the risk and ends of the excess may fail apart
                                by_chance |= {(key, point, integrator, count, bound.takes) for count in points}
    return Price(max(1, len(mean)), max(1, len(stochastic)), len(by_chance))


def budget_of(row: Mapping[str, Any], suite: Mapping[str, Any], price: Price) -> Budget:
    """What a row has to have paid: K and J, and whether its bound may spend δ′ too."""
    asked, epsilon = suite["certificates"], row["epsilon"]
    best, mean = asked["report"] == "best", row["classifier"] == "mean"
    entry = None if mean else INTEGRATORS[row["integrator"]]
    spends = entry is not None and entry.costs_delta and BOUNDS[row["bound"]].takes != "values"
    certified = entry is None or entry.certifies
    beside_chance = best and not mean and price.integrations > 0
    level = epsilon + asked["delta"] if certified and not spends and not beside_chance else epsilon
    events = (price.mean_events if mean else price.stochastic_events) if best else 1
    integrations = max(1, price.integrations) if best and not mean else 1
    return Budget(level, asked["delta"] if spends else 0.0, events, integrations)
