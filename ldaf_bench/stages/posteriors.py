r"""posteriors: a trial of Ray Tune for every posterior, which fits it and integrates its risk in all ways asked for.

A trial's configuration is the posterior's axes by their names in the suite, and all that a trial needs beyond them is
the same for all. It reports once for each integrator and number of points: the risk, and the certificate of each bound
under the bound's name. Everything is written before it is reported: whatever is stopped resumes with what is missing.
"""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search import BasicVariantGenerator
from torch import Tensor

from ldaf_bench.data.splits import Part
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import Data, Watch
from ldaf_bench.plan import DigestOf, Plan, PlannedIntegration, PlannedPosterior, integrations_of
from ldaf_bench.sections import Spec
from ldaf_bench.stages.fit import convergence, fit_posterior, integrate_posterior
from ldaf_bench.stages.networks import stored_network
from ldaf_bench.stages.session import device_of
from ldaf_bench.stages.trials import NO_AXIS, Config, Ended, failure_of, run_trials
from ldaf_bench.stages.writer import Access
from ldaf_bench.store.digests import mean_mistakes
from ldaf_bench.store.posteriors import (
    Posterior,
    convergence_path,
    integration_path,
    load_convergence,
    load_integration,
    load_posterior,
    posterior_path,
    save_convergence,
    save_integration,
    save_posterior,
)
from ldaf_bench.store.store import Store, find
from ldaf_bench.suite import Certificates, Convergence, Risks, Search
from ldaf_bench.theory.bounds import Classifier, Takes
from ldaf_bench.theory.certificate import Budget, certify, evidence
from ldaf_bench.theory.integrate import INTEGRATORS, Integration

MOST_STEPS = 10_000
"""More than any fit has."""


@dataclass(frozen=True)
class Source:
    """What the posteriors of one digest rest on: keys of the store, and a hash of what is there."""

    keys: Mapping[Part, str]
    content: str


@dataclass(frozen=True)
class Work:
    """What all trials have in common. It does not grow with the number of posteriors."""

    sources: Mapping[DigestOf, Source]
    seeds: Mapping[str, int]
    """By network."""
    risks: Risks
    certificates: Certificates
    budgets: Mapping[tuple[Classifier, str, Takes], tuple[Budget, ...]]
    """By classifier, integrator, and what the bound takes."""
    convergence: Mapping[str, str]
    """Names of convergence runs by those of their posteriors."""
    asked: Convergence | None
    searching: bool
    """Whether a searcher waits for one value of each trial."""
    cpus: int
    gpus: Mapping[str, float]
    """By method."""
    access: Access


def work_of(plan: Plan, sources: Mapping[DigestOf, Source], access: Access, cpus: int, gpus: float | None) -> Work:
    """The work of a plan. Without a number of GPUs, those methods get one whose every draw runs the network."""
    kinds: tuple[Classifier, ...] = ("posterior", "prior")
    every: tuple[Takes, ...] = ("risk", "excess", "values")
    budgets = {
        (kind, integrator, takes): plan.budgets(kind, integrator, takes)
        for kind, integrator, takes in itertools.product(kinds, plan.suite.risks.integrator, every)
    }
    draws = {name: "gaussian" not in METHODS[name].offers for name in plan.suite.methods}
    return Work(
        sources,
        {one.identity: one.config.seed for one in plan.networks},
        plan.suite.risks,
        plan.suite.certificates,
        budgets,
        plan.convergence,
        plan.suite.convergence,
        plan.suite.search is not None,
        cpus,
        {name: gpus if gpus is not None else float(drawn) for name, drawn in draws.items()},
        access,
    )


def config_of(planned: PlannedPosterior, head: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's configuration: the axes that have an effect, by their names in the suite. `head` are the network's."""
    digest = planned.digest
    return {
        "method": digest.method,
        **head,
        **digest.digest_spec.used(),
        **planned.prior.used(),
        **planned.fit.used(),
        "seed": planned.seed,
        "network": digest.network,
        "posterior": planned.identity,
    }


def posterior_at(config: Config, seeds: Mapping[str, int]) -> PlannedPosterior:
    """The posterior of a configuration. In a search over several methods an axis is called `method.axis`."""
    name = str(config["method"])
    entry = METHODS[name]

    def value(axis: str) -> Any:
        return config.get(f"{name}.{axis}", config.get(axis, NO_AXIS))

    def point(axes: type[Spec]) -> Any:
        found = {axis: value(axis) for axis in axes.model_fields}
        return axes(**{axis: one for axis, one in found.items() if one != NO_AXIS})

    network = str(value("network"))
    digest = DigestOf(network, name, json.dumps(point(entry.digest_axes).named(), sort_keys=True))
    return PlannedPosterior(digest, point(entry.prior_axes), point(entry.fit_axes), seeds[network])


def posterior_trial(config: dict[str, Any], *, work: Work) -> None:
    """Fit a posterior and integrate its risk; each result is written before the next is begun."""
    told: dict[str, Any] = {"certificate": 1.0, "surrogate": math.inf, "fit_steps": 0} if work.searching else {}

    def watch(objective: float) -> None:
        """For schedulers that stop early, by steps of the fit: the certificate is not known yet."""
        if work.searching:
            told.update(surrogate=objective, fit_steps=told["fit_steps"] + 1)
            tune.report(dict(told))

    try:
        planned = posterior_at(config, work.seeds)
        told["posterior"] = planned.identity
        if config.get("posterior", planned.identity) != planned.identity:
            raise ValueError(f"The configuration is not that of posterior {config['posterior']}.")
        for values, found in _results(planned, work, watch):
            if work.searching:
                told["certificate"] = min(told["certificate"], *values.values()) if values else told["certificate"]
            tune.report({**found, **values, **told})
    except Exception as error:
        tune.report({**told, **failure_of(error)})


def _results(planned: PlannedPosterior, work: Work, watch: Watch) -> Iterator[tuple[dict[str, float], dict[str, Any]]]:
    """Certificates and findings for each integration, made first unless they are there."""
    access, source, method = work.access, work.sources[planned.digest], planned.digest.method
    device = device_of(work.cpus, work.gpus[method])
    parts = loaded(access, planned.digest.network, source.keys)
    data = {part: one.to(device) for part, one in parts.items()}
    certificate = data["certificate"]
    posterior, says = access(stored_posterior, planned.identity, method, source.content)
    if posterior is None:
        fitted = fit_posterior(planned, certificate, data["test"], data.get("prior"), watch)
        access(save_posterior, planned.identity, planned.determines, source.content, fitted)
        # Another process may have been faster, and have other last bits: what is integrated is what is there.
        posterior, _ = access(stored_posterior, planned.identity, method, source.content)
        posterior = posterior or fitted
    own = posterior.hash
    about = {name: posterior.about[name] for name in ("test_risk", "kl_divergence", "fit_seconds")}
    wrong = mean_mistakes(planned.digest.entry, parts["certificate"].digest, parts["certificate"].labels)
    for asked in integrations_of(work.risks, work.certificates, planned):
        found, cost, more = access(stored_integration, asked.identity, source.content, own)
        if found is None:
            found, cost = integrate_posterior(asked, posterior, certificate)
            access(save_integration, asked.identity, source.content, own, found, cost)
        values = certificates_of(asked, found, about["kl_divergence"], wrong, work)
        where = {"integrator": asked.integrator, "num_points": asked.num_points, "risk": float(found.value)}
        said = {"says": " ".join((*says, *more))} if says or more else {}
        yield values, {**where, **about, "integrate_seconds": cost["integrate_seconds"], **said}
        says = ()
    name = work.convergence.get(planned.identity)
    if name is not None and work.asked is not None and not access(convergence_is_there, name, source.content):
        access(save_convergence, name, source.content, convergence(planned, posterior, certificate, work.asked))


def certificates_of(
    asked: PlannedIntegration, found: Integration, kl: float, mistakes: Tensor | None, work: Work
) -> dict[str, float]:
    """The certificate of each bound at the first ε, under the bound's name; of a further guess under that as well.

    What certifies nothing has none. Tune keeps statistics of every number of every trial: so not at every ε.
    """
    entry, kind = INTEGRATORS[asked.integrator], asked.posterior.classifier
    if not entry.certifies:
        return {}
    has_mean = asked.posterior.digest.entry.logits is not None
    values: dict[str, float] = {}
    for bound in work.certificates.bounds_about(kind, asked.integrator, has_mean):
        budgets = work.budgets[kind, asked.integrator, bound.takes]
        taken = evidence(bound, entry, [found], mistakes, budgets[0].delta_each)
        name = (
            bound.name if bound.guess is None or len(work.certificates.guess) == 1 else f"{bound.name}_{bound.guess:g}"
        )
        values[name] = float(certify(bound, kind, taken, kl, len(found.per_datum), budgets[0]))
    return values


_LOADED: dict[tuple[str, ...], Mapping[Part, Data]] = {}
"""Of the digest that this process used last: Tune keeps processes from trial to trial."""


def loaded(access: Access, network: str, keys: Mapping[Part, str]) -> Mapping[Part, Data]:
    """A digest's parts with their network; memory-mapped, or without a copy from the object store."""
    name = (access.place, *keys.values())
    if name not in _LOADED:
        _LOADED.clear()
        found = access(stored_network, network)
        parts: dict[Part, Data] = {}
        for part, key in keys.items():
            with warnings.catch_warnings():
                # They are read-only, and nothing here writes to data.
                warnings.simplefilter("ignore", UserWarning)
                tensors = {one: torch.from_numpy(array) for one, array in access.arrays(key).items()}
            parts[part] = Data(tensors, tensors.pop("labels"), found)
        _LOADED[name] = parts
    return _LOADED[name]


def stored_posterior(store: Store, identity: str, method: str, source: str) -> tuple[Posterior | None, Sequence[str]]:
    """A posterior, if it is there and whole, and what there is to tell people about it."""
    says: list[str] = []
    restore = METHODS[method].restore
    assert restore is not None
    load = partial(load_posterior, source=source, restore=restore)
    return find(store, load, posterior_path(identity), says.append), says


def stored_integration(
    store: Store, identity: str, source: str, posterior: str
) -> tuple[Integration | None, Mapping[str, Any], Sequence[str]]:
    """An integration of this posterior, if it is there and whole; what it cost, and what there is to tell."""
    says: list[str] = []
    found = find(store, partial(load_integration, source=source), integration_path(identity), says.append)
    if found is None or found.record["posterior"] != posterior:
        return None, {}, says
    return found.integration, found.record["about"], says


def convergence_is_there(store: Store, identity: str, source: str) -> bool:
    """Whether a convergence run is there and whole."""
    load = partial(load_convergence, source=source)
    return find(store, load, convergence_path(identity), lambda says: None) is not None


def make_posteriors(
    posteriors: Sequence[PlannedPosterior], plan: Plan, work: Work, at_once: int, **follow: Any
) -> Ended:
    """A sweep: fit and integrate these posteriors. `follow`: see `run_trials`."""
    heads = {one.identity: one.config.head.used() for one in plan.networks}
    cells = [config_of(one, heads[one.digest.network]) for one in posteriors]
    return run_trials(posterior_trial, work, cells, partial(_need, work), at_once, **follow)


def search_posteriors(
    posteriors: Sequence[PlannedPosterior], asked: Search, work: Work, at_once: int, **follow: Any
) -> Ended:
    """A search: some of these posteriors, by one of Tune's searchers. `follow`: see `run_trials`."""
    space = space_of(posteriors)
    strategy = _strategy(asked, at_once)
    return run_trials(posterior_trial, work, space, partial(_need, work), at_once, strategy=strategy, **follow)


def _need(work: Work, config: Config) -> dict[str, float]:
    gpus = work.gpus[str(config["method"])]
    return {"CPU": work.cpus, **({"GPU": gpus} if gpus else {})}


def space_of(posteriors: Sequence[PlannedPosterior]) -> dict[str, Any]:
    """The posteriors of a plan as a space to search: a method, one of its networks, and its axes."""
    values: dict[str, dict[Any, None]] = {}
    for one in posteriors:
        digest = one.digest
        own = {"network": digest.network, **digest.digest_spec.used(), **one.prior.used(), **one.fit.used()}
        values.setdefault("method", {})[digest.method] = None
        for axis, value in own.items():
            values.setdefault(f"{digest.method}.{axis}", {})[value] = None
    return {name: tune.choice(list(some)) for name, some in values.items()}


def _strategy(asked: Search, at_once: int) -> dict[str, Any]:
    """Tune's searcher and scheduler."""
    found: dict[str, Any] = {"num_samples": asked.samples}
    if asked.searcher == "optuna":
        # Imported here: nobody who does not search should wait for it.
        import optuna
        from ray.tune.search.optuna import OptunaSearch

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=0)
        found["search_alg"] = OptunaSearch(metric="certificate", mode="min", sampler=sampler)
        found["max_concurrent_trials"] = at_once or None
    else:
        found["search_alg"] = BasicVariantGenerator(random_state=0, max_concurrent=at_once)
    if asked.scheduler == "asha":
        limits = {"time_attr": "fit_steps", "max_t": MOST_STEPS, "grace_period": 2}
        found["scheduler"] = ASHAScheduler(metric="surrogate", mode="min", **limits)
    return found
