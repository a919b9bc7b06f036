"""`--rehearse`: a suite from beginning to end in minutes, before a cluster is paid for.

Every method and every value of an axis comes once, with the first seed, one epoch and the smallest counts. The points
that stand in for certificate and test part come from the prior part, so no look at either is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ldaf_bench.data.dataset import Summary
from ldaf_bench.data.splits import split
from ldaf_bench.suite import Suite

NAME = "-rehearsal"
MOST_POINTS = 300
"""Of the prior part that stand in for the certificate part, and as many for the test part."""
MOST_SHARE = 0.5
"""Of the prior part at most that stands in for both."""
LEAST_WARMUP = 0.2
"""Share of the one epoch in which the learning rate rises."""
QUICK = {"fit_epochs": 1, "max_alternations": 2}
"""Axes that say how long a fit may take, whichever methods have them."""
SAMPLES = 4
"""Of a search."""


def rehearsed(suite: Suite, summary: Summary) -> Suite:
    """The rehearsal of a suite: a suite itself, whose results go to `<suite>-rehearsal`."""
    content = suite.model_dump(mode="json")
    data, networks, risks = content["data"], content["networks"], content["risks"]
    data["certificate"] = data["certificate"][0]
    whole = split(summary, seed=data["split_seed"], certificate=data["certificate"], test=data["test"])
    data["validation"] = min(data["validation"] or MOST_SHARE, MOST_SHARE, 2 * MOST_POINTS / len(whole.prior))
    networks["seed"] = networks["seed"][0]
    recipe = networks["recipe"]
    # A share of one epoch is too short to rise in, if it was meant of many.
    recipe.update(epochs=1, warmup=max(LEAST_WARMUP, recipe["warmup"]))
    for name in ("num_points", "num_draws"):
        risks[name] = min(risks[name])
    if (curve := content["convergence"]) is not None:
        few = sorted(curve["num_points"])[:2]
        curve.update(num_points=few, repeats=2, reference_points=min(curve["reference_points"], 4 * few[-1]))
    if content["search"] is None:
        content["methods"] = {name: _rows(section) for name, section in content["methods"].items()}
    else:
        content["search"]["samples"] = min(SAMPLES, content["search"]["samples"])
    name = suite.suite[: 64 - len(NAME)] + NAME
    return Suite.model_validate({**content, "suite": name, "rehearsal": True})


def _rows(section: Mapping[str, Any]) -> dict[str, Any]:
    """A method's grids with every value once, in place of all combinations: as many points as the longest axis has."""
    first = {name: value for name, value in section.items() if name != "also"}
    every = [point for grid in (first, *section.get("also", ())) for point in _once(grid)]
    points = [point for number, point in enumerate(every) if point not in every[:number]]
    return {**points[0], "also": points[1:]} if len(points) > 1 else points[0]


def _once(grid: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    values = {axis: value if isinstance(value, list) else [value] for axis, value in grid.items()}
    for number in range(max((len(value) for value in values.values()), default=1)):
        point = {axis: value[number % len(value)] for axis, value in values.items()}
        yield {axis: min(QUICK[axis], value) if axis in QUICK else value for axis, value in point.items()}
