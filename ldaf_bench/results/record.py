"""The record: one row of results.parquet per certificate, and the long table of curves. The schema's one place.

A cell that failed is one row with its identity, its `error`, and nulls. Rows of bounds for a fixed classifier
(`test_set`, `chernoff`) are about the mean classifier, all others about the stochastic one.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa


class Column(NamedTuple):
    """A column and what it means."""

    name: str
    type: pa.DataType
    about: str


TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()

IDENTITY = (
    Column("suite", TEXT, "name of the suite"),
    Column("plan", TEXT, "hash of the plan: of all that the suite asks for and pays for"),
    Column("setting", TEXT, "hash of all that determines the classifier but its seed: what may be averaged over seeds"),
    Column("cell", TEXT, "hash of all that determines the cell"),
    Column("prior", TEXT, "hash of all that determines the prior's network"),
    Column("method", TEXT, "entry of METHODS"),
    Column("dataset", TEXT, "entry of DATASETS"),
    Column("backbone", TEXT, "entry of BACKBONES"),
    Column("flow", TEXT, "entry of FLOWS; empty for the deterministic baseline"),
    Column("num_nodes", WHOLE, "n"),
    Column("num_classes", WHOLE, "c"),
    Column("horizon", REAL, "T"),
    Column("tolerance", REAL, "of the Krylov spaces in the pushforward; null: the precision's own"),
    Column("covariance", TEXT, "entry of COVARIANCES"),
    Column("scale", REAL, "scale of the covariance initialization; null for `scaled`, which finds its own"),
    Column("seed", WHOLE, "of weights, order and augmentation of the prior, and of its covariance"),
    Column("split_seed", WHOLE, "of the split"),
    Column("certificate_fraction", REAL, "certificate points over all points outside the test part"),
)
DATA = (
    Column("num_prior", WHOLE, "points that the prior saw"),
    Column("num_certificate", WHOLE, "m: points that certify"),
    Column("num_test", WHOLE, "points that test"),
    Column("prior_hash", TEXT, "of the prior part's points"),
    Column("certificate_hash", TEXT, "of the certificate part's points"),
    Column("test_hash", TEXT, "of the test part's points"),
)
POSTERIOR = (
    Column("objective", TEXT, "what the posterior minimizes; `prior`: it is the prior"),
    Column("fit_points", WHOLE, "Sobol points of the surrogate in training"),
    Column("optimizer", TEXT, "entry of OPTIMIZERS"),
    Column("prior_width", REAL, "root mean square of the prior's standard deviations, over all coordinates"),
    Column("lam", REAL, "λ at the end of the fit"),
    Column("kl", REAL, "KL divergence of posterior from prior"),
    Column("alternations", WHOLE, "alternations between covariance and λ"),
    Column("converged", TRUTH, "whether the bound had stopped moving"),
)
RISK = (
    Column("integrator", TEXT, "entry of INTEGRATORS"),
    Column("num_points", WHOLE, "q: points per datum"),
    Column("num_evaluations", WHOLE, "(datum, point) pairs that were evaluated"),
    Column(
        "risk", REAL, "Gibbs risk of the posterior on the certificate part, estimated; an upper bound by `bonferroni`"
    ),
    Column("risk_upper", REAL, "its guaranteed upper end; null without a guarantee"),
    Column("integration_error", REAL, "standard error of `risk`; null if the integrator has none"),
    Column("prior_risk", REAL, "Gibbs risk of the prior on the certificate part"),
    Column("test_risk", REAL, "Gibbs risk of the posterior on the test part"),
    Column("prior_test_risk", REAL, "Gibbs risk of the prior on the test part"),
    Column("mean_error", REAL, "0-1 error of the mean classifier on the certificate part"),
    Column("mean_test_error", REAL, "0-1 error of the mean classifier on the test part"),
    Column("flow_error", REAL, "largest estimated error of a logit or of a row of G on the certificate part"),
)
CERTIFICATE = (
    Column("bound", TEXT, "entry of BOUNDS"),
    Column("epsilon", REAL, "ε: how often the bounds may fail"),
    Column("delta", REAL, "δ′: how often the integrations may fail; 0 where none is left to chance"),
    Column("num_priors", WHOLE, "K: priors among which the best may be picked; the bound is evaluated at ε/K"),
    Column("num_integrations", WHOLE, "integrations among which the best may be picked; each was run at δ′ over this"),
    Column("value", REAL, "the certificate: the true risk is at most this; 1 at most"),
    Column("certified", TRUTH, "whether it rests on a guaranteed integration"),
)
COST = (
    Column("train_seconds", REAL, "training of the prior"),
    Column("push_seconds", REAL, "network and flow over certificate and test part"),
    Column("fit_seconds", REAL, "fitting the posterior"),
    Column("integrate_seconds", REAL, "this integration"),
    Column("peak_bytes", WHOLE, "peak memory so far of the process that ran the cell, which ran others before"),
    Column("device", TEXT, "cpu or cuda"),
    Column("workers", WHOLE, "that trained the prior"),
)
PROVENANCE = (
    Column("ldaf_bench", TEXT, "version"),
    Column("torch", TEXT, "version"),
    Column("ray", TEXT, "version"),
    Column("python", TEXT, "version"),
    Column("commit", TEXT, "of the source that computed the cell; empty if it is not known"),
    Column("finished", pa.timestamp("us", "UTC"), "when the cell was done"),
    Column("error", TEXT, "why the cell failed; null if it did not"),
)

RECORD = (*IDENTITY, *DATA, *POSTERIOR, *RISK, *CERTIFICATE, *COST, *PROVENANCE)
"""All columns of results.parquet, in order."""

CURVES = (
    Column("suite", TEXT, "name of the suite"),
    Column("prior", TEXT, "as in results.parquet"),
    Column("cell", TEXT, "as in results.parquet; empty for training curves"),
    Column("kind", TEXT, "`training`, `alternation` or `integration`"),
    Column(
        "series",
        TEXT,
        "what y is: loss, accuracy, images_per_second; cross_entropy, kl, lam, bound; an integrator's name, or "
        "`reference` for the standard error of what they are compared with",
    ),
    Column("x", REAL, "epoch, alternation, or points per datum"),
    Column("y", REAL, "its value; for integration, the root mean square error of the risk over seeds"),
    Column("low", REAL, "lower end of a band around y; null without one"),
    Column("high", REAL, "upper end"),
    Column("seconds", REAL, "time spent up to x, or for one integration"),
)
"""All columns of curves.parquet."""


def schema(columns: tuple[Column, ...]) -> pa.Schema:
    """As Arrow has it, with what each column means as its metadata."""
    return pa.schema([pa.field(column.name, column.type, metadata={"about": column.about}) for column in columns])
