"""The record: one row of results.parquet per certificate, and the long table of curves. The schema's one place.

Columns of a method's axes and outcomes come from the method itself. An integration that failed is one row with its
identity, its `error`, and nulls.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ldaf_bench.columns import Column, Kind
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import Method
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.integrate import INTEGRATORS

ARROW: dict[Kind, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: pa.timestamp("us", "UTC"),
}
PERCENT = "%"
SECONDS = "s"
CLASSIFIERS = ("posterior", "prior", "mean")

IDENTITY = (
    Column("suite", str, "name of the suite"),
    Column("plan", str, "hash of the plan: of all that the suite asks for and pays for"),
    Column("setting", str, "hash of all that determines the classifier but its seed: what may be averaged over seeds"),
    Column("integration", str, "hash of all that determines the integration, or the mean classifier"),
    Column("posterior", str, "hash of all that determines the posterior; null for a mean classifier"),
    Column("prior", str, "hash of all that determines the prior; null for a mean classifier"),
    Column("network", str, "hash of all that determines the network"),
    Column("dataset", str, "entry of DATASETS", "data set", names=lambda: tuple(DATASETS)),
    Column("num_classes", int, "c", "c"),
    Column("seed", int, "seed of the network's weights, order and augmentation, and of its posteriors"),
    Column("split_seed", int, "seed of the split"),
    Column(
        "certificate_fraction", float, "certificate points over all points outside the test part",
        axis="data.certificate",
    ),
    Column(
        "backbone", str, "entry of BACKBONES", axis="networks.backbone", prefer="first", names=lambda: tuple(BACKBONES)
    ),
    Column("method", str, "entry of METHODS", axis="methods", prefer="first", names=lambda: tuple(METHODS)),
)  # fmt: skip
DATA = (
    Column("num_prior", int, "points that the network was trained on", "prior points"),
    Column("num_certificate", int, "m: points that certify", "m"),
    Column("num_test", int, "points that test", "test points"),
    Column("prior_hash", str, "hash of the prior part's points"),
    Column("certificate_hash", str, "hash of the certificate part's points"),
    Column("test_hash", str, "hash of the test part's points"),
)
RISK = (
    Column("kl_divergence", float, "KL divergence of posterior from prior", "KL"),
    Column(
        "integrator", str, "entry of INTEGRATORS", axis="risks.integrator", prefer="first",
        names=lambda: tuple(INTEGRATORS),
    ),
    Column("num_points", int, "q: points per datum", "q", axis="risks.num_points", prefer="largest"),
    Column("num_evaluations", int, "(datum, point) pairs that were evaluated"),
    Column("risk", float, "Gibbs risk on the certificate part, as integrated", "risk, certificate part", PERCENT),
    Column("risk_upper", float, "its guaranteed upper end, if the bound takes that; null otherwise", unit=PERCENT),
    Column("integration_error", float, "standard error of `risk`; null if the integrator has none", unit=PERCENT),
    Column("prior_risk", float, "Gibbs risk of the prior on the certificate part", unit=PERCENT),
    Column("test_risk", float, "Gibbs risk of the posterior on the test part", "risk, test part", PERCENT),
    Column("prior_test_risk", float, "Gibbs risk of the prior on the test part", unit=PERCENT),
    Column("mean_error", float, "0-1 error of the mean classifier on the certificate part", unit=PERCENT),
    Column(
        "mean_test_error", float, "0-1 error of the mean classifier on the test part", "mean classifier, test", PERCENT
    ),
    Column(
        "vote_test_error", float, "0-1 error on the test part of the posterior's majority vote, the most probable "
        "class of every datum; no certificate is about it; null if the logits are not Gaussian",
        "majority vote, test", PERCENT,
    ),
    Column("digest_error", float, "largest estimated error of a digest's value; null if the method has no estimate"),
)  # fmt: skip
CERTIFICATE = (
    Column(
        "classifier", str, "what the certificate is about: the fitted `posterior` (Gibbs), the unfitted `prior` "
        "(Gibbs), or the deterministic `mean` classifier",
        names=lambda: CLASSIFIERS,
    ),
    Column(
        "bound", str, "entry of BOUNDS", axis="certificates.bound", prefer="first", names=lambda: tuple(BOUNDS)
    ),
    Column(
        "guess", float, "guess of the risk that the bound rests on; null if it rests on none", axis="certificates.guess"
    ),
    Column("event", str, "what may fail with probability ε; bounds of one event hold together"),
    Column(
        "epsilon", float, "ε: how often the bounds may fail", "ε", axis="certificates.epsilon", prefer="first"
    ),
    Column("level", float, "what the bound spends, before it is divided by K: ε, or ε + δ′ where δ′ is not needed"),
    Column("delta", float, "δ′: how often the integrations may fail; 0 where none is left to chance", "δ′"),
    Column("total", float, "ε + δ′: how often the certificate may fail; null if nothing is certified", "may fail"),
    Column("num_events", int, "K: events among which the best may be picked; the bound is evaluated at ε/K", "K"),
    Column(
        "num_integrations", int, "J: guarantees of integrations among which the best may be picked, each at δ′/J", "J"
    ),
    Column("value", float, "the certificate: the true risk is at most this; 1 at most", "certificate", PERCENT),
    Column(
        "mixture", float, "certificate of the uniform mixture over this setting's seeds, valid at the same total; null "
        "if the bound has none, or if the best result may be picked", unit=PERCENT,
    ),
    Column("certified", bool, "whether it rests on a guaranteed integration"),
)  # fmt: skip
COST = (
    Column("train_seconds", float, "training of the network", "train", SECONDS),
    Column("digest_seconds", float, "one pass over certificate and test part", "digest", SECONDS),
    Column("fit_seconds", float, "making the prior and fitting the posterior", "fit", SECONDS),
    Column("integrate_seconds", float, "this integration", "integrate", SECONDS),
    Column("peak_bytes", int, "peak memory so far of the process that integrated, which ran others before"),
    Column("device", str, "where the network was trained: cpu or cuda"),
    Column("integrate_device", str, "where the posterior was fitted and integrated: cpu or cuda"),
    Column("workers", int, "workers that trained the network"),
)
STAGES = [column.name for column in COST if column.unit == SECONDS]
"""Columns with the times of all stages, in order."""
PROVENANCE = (
    Column("ldaf_bench", str, "version"),
    Column("torch", str, "version"),
    Column("ray", str, "version"),
    Column("python", str, "version"),
    Column("commit", str, "of the source that integrated; empty if it is not known"),
    Column("finished", datetime, "when the integration was done"),
    Column("error", str, "why the integration failed; null if it did not"),
)

CURVES = (
    Column("suite", str, "name of the suite"),
    Column("network", str, "as in results.parquet"),
    Column("posterior", str, "as in results.parquet; empty for training curves"),
    Column("kind", str, "`training`, `fit`, `integration` (the whole part's risk), `integration_each` (each datum's)"),
    Column(
        "series", str, "what y is: loss, accuracy, images_per_second; a quantity of the fit; an integrator's name, or "
        "`reference` for the standard error of what integrators are compared with",
    ),
    Column("x", float, "epoch, step of the fit, or points per datum"),
    Column("y", float, "its value; for integrations, the root mean square error of the risk over seeds"),
    Column("low", float, "lower end of a band around y; null without one"),
    Column("high", float, "upper end"),
    Column("seconds", float, "time spent up to x, or for one integration", unit=SECONDS),
)  # fmt: skip
"""All columns of curves.parquet."""


def record_columns() -> tuple[Column, ...]:
    """All columns of results.parquet, in order; a column that several methods share comes once."""
    return _columns(tuple(METHODS.values()))


@lru_cache
def _columns(methods: tuple[Method, ...]) -> tuple[Column, ...]:
    own: dict[str, Column] = {}
    for column in (column for method in methods for column in method.columns()):
        own.setdefault(column.name, column)
    return (*IDENTITY, *own.values(), *DATA, *RISK, *CERTIFICATE, *COST, *PROVENANCE)


def columns_by_name() -> dict[str, Column]:
    """Columns of results.parquet by name."""
    return {column.name: column for column in record_columns()}


def schema(columns: Iterable[Column]) -> pa.Schema:
    """As Arrow has it, with what each column means as its metadata."""
    return pa.schema([pa.field(c.name, ARROW[c.kind], metadata={"about": c.about}) for c in columns])


AT_ONCE = 20_000
"""Rows that are Python's objects at a time: in Arrow they take a tenth of that."""


def table(columns: tuple[Column, ...], rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as a table: one builder per column, so that a value of a wrong type is refused where it comes in."""
    known, waiting = {column.name for column in columns}, iter(rows)
    parts = [_part(columns, ())]
    while some := list(itertools.islice(waiting, AT_ONCE)):
        for row in some:
            if unknown := row.keys() - known:
                raise AssertionError(f"The record has no column {', '.join(sorted(unknown))}: add it to `record`.")
        parts.append(_part(columns, some))
    return pa.concat_tables(parts)


def _part(columns: tuple[Column, ...], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    return pa.table({column.name: [row.get(column.name) for row in rows] for column in columns}, schema=schema(columns))
