"""Ways to a claim, honest or with one mistake. A mistake changes the plan, what is certified, or what is claimed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from typing import Any, NamedTuple

import torch

from ldaf_bench.plan import Plan
from ldaf_bench.report.names import percent
from ldaf_bench.results.certificates import Certifiable, Certifier, mixture
from ldaf_bench.theory.integrate.sampling import FORWARD_MC, MC, QMC, SHARED_MC
from tools.simulate.scenarios import (
    CHOICE,
    EVERYTHING,
    EXCESS,
    FEW_SEEDS,
    FIXED,
    LARGE,
    LAYER,
    MANY_SEEDS,
    NOISE,
    ONE_POINT,
    SHARED,
    WEIGHTS,
    Made,
    Scenario,
)

Row = Mapping[str, Any]


class Claim(NamedTuple):
    """Something that is claimed, and whether it turned out wrong."""

    name: str
    failed: bool


def every_row(rows: Sequence[Row]) -> Iterator[Claim]:
    """Each certificate by itself."""
    for row in rows:
        about = "mean classifier" if row["integrator"] is None else row["integrator"]
        unfitted = ", unfitted" if row["classifier"] == "prior" else ""
        yield Claim(f"{row['bound']} / {about}{unfitted}", row["value"] < row["truth"])


def _by_bound(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row["bound"] == name] for name in dict.fromkeys(row["bound"] for row in rows)}


def the_best(rows: Sequence[Row]) -> Iterator[Claim]:
    """The smallest certificate of each bound, as if it were the only one."""
    for bound, own in _by_bound(rows).items():
        best = min(own, key=lambda row: row["value"])
        yield Claim(f"{bound}, the best of {len(own)}", best["value"] < best["truth"])


def together(rows: Sequence[Row]) -> Iterator[Claim]:
    """All certificates of a bound at once, as their mean claims them."""
    for bound, own in _by_bound(rows).items():
        yield Claim(f"{bound}, all {len(own)} at once", any(row["value"] < row["truth"] for row in own))


def mixtures(rows: Sequence[Row]) -> Iterator[Claim]:
    """The mixture over seeds."""
    for bound, own in _by_bound(rows).items():
        truth = sum(row["truth"] for row in own) / len(own)
        yield Claim(f"{bound}, mixture of {len(own)}", own[0]["mixture"] < truth)


def excess_for_free(rows: Sequence[Row]) -> Iterator[Claim]:
    """The mean classifier's certificate plus the excess that was seen."""
    mean = next(row for row in rows if row["classifier"] == "mean")
    for row in rows:
        if row["classifier"] != "mean":
            claimed = mean["value"] + row["risk"] - mean["risk"]
            yield Claim(f"{mean['bound']} and the excess seen", claimed < row["truth"])


def printed(rows: Sequence[Row]) -> Iterator[Claim]:
    """What the report prints."""
    for row in rows:
        yield Claim(f"{row['bound']}, as printed", float(percent(row["value"], up=True)) < 100 * row["truth"])


def printed_down(rows: Sequence[Row]) -> Iterator[Claim]:
    """The same with the last digits cut off."""
    for row in rows:
        shown = Decimal(100 * row["value"]).quantize(Decimal("0.01"), ROUND_FLOOR)
        yield Claim(f"{row['bound']}, cut off", float(shown) < 100 * row["truth"])


def asks(**changes: Any) -> Callable[[Plan], Plan]:
    """A plan with other words in the suite's section `certificates`."""

    def change(plan: Plan) -> Plan:
        section = plan.suite.certificates.model_copy(update=changes)
        return dataclasses.replace(plan, suite=plan.suite.model_copy(update={"certificates": section}))

    return change


def _counted_as_fresh(one: Certifiable) -> Certifiable:
    """A point that all data share, counted as a draw of its own for each of them."""
    (integration,) = one.integrations
    draws = torch.ones(one.num_data, dtype=torch.int64)
    return one._replace(integrator=MC.name, integrations=(integration._replace(draws=draws),))


def certificates(plan: Plan, found: Sequence[Made]) -> Iterator[dict[str, Any]]:
    """All certificates, each with that of its mixture over seeds."""
    certifier, groups = Certifier(plan), dict[str, list[Certifiable]]()
    names = [f"{made.columns['setting']}, {made.one.integrator}, {made.one.num_data}" for made in found]
    for number, (made, name) in enumerate(zip(found, names, strict=True)):
        certifier.add(str(number), made.one)
        groups.setdefault(name, []).append(made.one)
    if plan.suite.certificates.report == "all":
        for name, members in groups.items():
            certifier.add(name, mixture(members))
    for number, (made, name) in enumerate(zip(found, names, strict=True)):
        yield from certifier.rows(str(number), name, made.columns)


@dataclass(frozen=True)
class Chain:
    """One way to a claim."""

    about: str
    scenario: Scenario
    claims: Callable[[Sequence[Row]], Iterator[Claim]] = every_row
    plan: Callable[[Plan], Plan] = lambda plan: plan
    found: Callable[[Certifiable], Certifiable] = lambda one: one
    keep: Callable[[Certifiable], bool] = lambda one: True
    leak: bool = False
    honest: bool = True
    share: float = 1.0
    """Of the repeats that are asked for; a mistake that fails often is caught by fewer."""

    def run(self, seed: int) -> list[Claim]:
        """One data set."""
        made = self.scenario.classifiers(self.scenario, seed, self.leak)
        changed = [one._replace(one=self.found(one.one)) for one in made if self.keep(one.one)]
        rows = list(certificates(self.plan(self.scenario.plan), changed))
        return list(self.claims(rows))

    def repeats(self, asked: int) -> int:
        """How many data sets, if so many are asked for."""
        return max(1, math.ceil(self.share * asked))


CHAINS: dict[str, Chain] = {
    "honest": Chain("the whole way, nothing broken", EVERYTHING),
    "last layer": Chain("a Gaussian last layer, nothing broken", LAYER, share=0.5),
    "weights": Chain("weights drawn afresh or shared, nothing broken", WEIGHTS, share=0.5),
    "excess": Chain("an excess over the mean classifier", EXCESS, share=0.2),
    "choice paid for": Chain("the best of many seeds, each at ε/K", MANY_SEEDS, the_best),
    "mixture": Chain("the certificate that is printed for several seeds", FEW_SEEDS, mixtures),
    "KL paid for": Chain("the luckiest of many networks, with its KL", CHOICE),
    "rounded up": Chain("what the report prints", LARGE, printed),
    "one draw charged": Chain(
        "one draw per datum, charged", ONE_POINT, keep=lambda one: one.integrator == MC.name, share=0.2
    ),
    "ε ignored": Chain("bounds at ε = 0.98", FIXED, plan=asks(epsilon=(0.98,)), honest=False),
    "KL dropped": Chain("KL taken for 0", CHOICE, found=lambda one: one._replace(kl=0.0), honest=False, share=0.2),
    "K not paid": Chain(
        "the best of many seeds, each at ε", MANY_SEEDS, the_best, plan=asks(report="all"), honest=False, share=0.2
    ),
    "m wrong": Chain(
        "m a hundred times too large",
        FIXED,
        found=lambda one: one._replace(num_data=100 * one.num_data),
        honest=False,
        share=0.2,
    ),
    "leak": Chain("the network saw the certificate part", NOISE, leak=True, honest=False, share=0.2),
    "integration not paid": Chain(
        "one Sobol point for all data, taken for exact",
        ONE_POINT,
        keep=lambda one: one.integrator == QMC.name,
        honest=False,
        share=0.2,
    ),
    "shared draws": Chain(
        "one point for all data, charged as if each had its own",
        ONE_POINT,
        found=_counted_as_fresh,
        keep=lambda one: one.integrator == QMC.name,
        honest=False,
        share=0.2,
    ),
    "shared weights": Chain(
        "one draw of the weights for all data, counted as m draws",
        SHARED,
        found=lambda one: one._replace(integrator=FORWARD_MC.name),
        keep=lambda one: one.integrator == SHARED_MC.name,
        honest=False,
        share=0.2,
    ),
    "excess not paid": Chain(
        "the excess over the mean classifier taken as it is", EXCESS, excess_for_free, honest=False, share=0.2
    ),
    "best of seeds": Chain("the best of several seeds shown as one", FEW_SEEDS, the_best, honest=False, share=0.2),
    "seeds together": Chain("a mean over seeds claimed for all", FEW_SEEDS, together, honest=False, share=0.2),
    "rounded down": Chain("what is printed cut off after two digits", LARGE, printed_down, honest=False),
}
"""Honest ways first, then each mistake in a world that is tight enough to show it."""


def run_chain(name: str, seed: int) -> list[Claim]:
    """One data set of one chain; importable, so that other processes can run it."""
    torch.set_num_threads(1)
    return CHAINS[name].run(seed)
