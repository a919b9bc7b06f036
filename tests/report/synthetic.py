"""Records that no run made: exact in their schema, plausible in their numbers, and with names from a bad dream."""

import itertools
import json
import math
import zlib
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ldaf_bench.results.record import CURVES, record_columns, schema
from ldaf_bench.theory.bounds import BOUNDS as ALL_BOUNDS

NASTY = (
    "</script><script>window.injected=1</script>",
    "a_b%$&#{x}^~\\|*`[l](u)",
    '"><img src=x onerror=window.injected=1>',
)
UNICODE = "Größe 数据 \u202e\x1b[31m\n$\\frac{"
EPSILONS = (0.01, 0.05)
BOUNDS = ("kl", "kl_exact", "quad", "catoni")
"""Four of them, because every row costs the tests time."""
CERTIFIES = {"mc", "bonferroni"}
CHANCE = {"mc"}
DELTA = 0.01
MEAN_BOUNDS = ("test_set", "chernoff")
START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def name(*parts):
    """A stand-in for a hash, the same in every run."""
    return f"{zlib.crc32(repr(parts).encode()):08x}{zlib.adler32(repr(parts).encode()):08x}"


def bound_value(bound, risk, kl, m, epsilon):
    """In the proved order of the bounds, though not their true values."""
    c = (kl + math.log(2 * math.sqrt(m) / epsilon)) / m
    quad = (math.sqrt(risk + c / 2) + math.sqrt(c / 2)) ** 2
    factor = {"kl_exact": 0.93, "kl": 0.95, "quad": 1, "lambda": 1, "catoni": 0.97}
    return min(1.0, risk + math.sqrt(c / 2) if bound == "classic" else factor.get(bound, 1.0) * quad)


def event(bound):
    """What the bound rests on; a bound that nobody knows rests on itself."""
    return ALL_BOUNDS[bound].event if bound in ALL_BOUNDS else f"event of {bound}"


def results(
    *, suite="digits", dataset="digits", flows=("daf", "sflow"), seeds=(0, 1, 2),
    covariances=("code", "constant", "isotropic"), scales=(0.1, 0.3),
    fit_points=(256, 1024), integrators=("mc", "qmc", "bonferroni"), num_points=(256, 4096),
    bounds=BOUNDS, epsilons=EPSILONS, num_events=None, num_integrations=None, m=2000, recipe="tiny", **more,
):  # fmt: skip
    """Rows of results.parquet as a list of dictionaries, nothing failed; each network has its held-out bounds too.

    `recipe` stands for all that is no column, and `more` are columns of every row.
    """
    plan, asked = name("plan", suite, recipe), sorted(more.items())
    rng = np.random.default_rng(0)
    starts = len(flows) * len(seeds) * len(covariances) * len(scales)
    num_events = num_events or starts * len({event(bound) for bound in bounds})
    pairs = [(i, q) for i in integrators for q in ((None,) if i == "bonferroni" else num_points)]
    num_integrations = num_integrations or starts * len(fit_points) * len([p for p in pairs if p[0] in CHANCE]) or 1
    rows = []
    for flow, seed in itertools.product(flows, seeds):
        error = {"daf": 0.025, "sflow": 0.029, "linear": 0.04}.get(flow, 0.03) + 0.003 * rng.standard_normal()
        network = name(recipe, dataset, flow, seed, m, asked)
        shared = {
            "suite": suite, "plan": plan, "setting": name(recipe, dataset, flow, m, asked), "network": network,
            "method": "ldaf", "dataset": dataset, "backbone": "tinynet", "flow": flow,
            "num_nodes": 20, "num_classes": 10, "horizon": 1.0, "seed": seed, "split_seed": 0,
            "certificate_fraction": 0.2, "num_prior": 4 * m, "num_certificate": m, "num_test": m,
            "prior_hash": name("p", dataset), "certificate_hash": name("c", dataset), "test_hash": name("t", dataset),
            "mean_error": error, "mean_test_error": error + 0.001, "digest_error": 1e-7,
            "train_seconds": 20 + 2 * rng.random(), "digest_seconds": 3 + rng.random(), "peak_bytes": 2**30,
            "device": "cpu", "workers": 2, "ldaf_bench": "0.1.0", "torch": "2.13.0", "ray": "2.50.0",
            "python": "3.12.1", "commit": "0123abc", "finished": START + timedelta(seconds=len(rows)),
        }  # fmt: skip
        for bound, epsilon in itertools.product(MEAN_BOUNDS, epsilons):
            extra = (1.0 if bound == "test_set" else 1.3) * math.sqrt(2 * error * math.log(1 / epsilon) / m)
            rows.append(shared | {
                "integration": name(plan, network, "mean"), "classifier": "mean", "bound": bound,
                "event": event(bound), "epsilon": epsilon, "level": epsilon + DELTA, "delta": 0.0,
                "total": epsilon + DELTA, "num_events": len(flows) * len(seeds),
                "num_integrations": 1, "value": min(1.0, error + extra + 0.002), "certified": True,
            } | more)  # fmt: skip
        for covariance, scale, fit in itertools.product(covariances, scales, fit_points):
            noise = scale * (0.02 + 0.01 * covariances.index(covariance))
            kl = 6 + 20 * scale + rng.random()
            posterior = {
                "setting": name(shared["setting"], covariance, scale, fit), "covariance": covariance, "scale": scale,
                "posterior": name(plan, network, covariance, scale, fit), "classifier": "posterior",
                "prior": name(network, covariance, scale),
                "objective": "cross_entropy", "fit_points": fit, "optimizer": "adam", "fit_epochs": 5,
                "lam": 0.4 + 0.1 * rng.random(), "kl_divergence": kl, "alternations": 4, "converged": True,
                "fit_seconds": 0.5 + fit / 1024 + 0.1 * rng.random(),
            }  # fmt: skip
            for integrator, q in pairs:
                spread = 0.0 if integrator == "bonferroni" else 0.004 / math.sqrt(q)
                risk = error + noise + spread * rng.standard_normal() + (0.001 if integrator == "bonferroni" else 0)
                certified = integrator in CERTIFIES
                upper = risk + 3 * spread if certified else None
                integration = {
                    "integration": name(plan, network, covariance, scale, fit, integrator, q),
                    "integrator": integrator, "num_points": q, "num_evaluations": (q or 0) * m, "risk": risk,
                    "risk_upper": upper, "integration_error": spread or None, "prior_risk": risk + noise,
                    "test_risk": risk + 0.001, "prior_test_risk": risk + noise + 0.001, "num_events": num_events,
                    "delta": DELTA if integrator in CHANCE else 0.0, "num_integrations": num_integrations,
                    "certified": certified, "integrate_seconds": 0.02 + (q or 0) / 4096,
                }  # fmt: skip
                for bound, epsilon in itertools.product(bounds, epsilons):
                    value = bound_value(bound, upper or risk, kl, m, epsilon / num_events)
                    certificate = {"bound": bound, "event": event(bound), "epsilon": epsilon, "value": value,
                                   "level": epsilon + (DELTA if integrator not in CHANCE and certified else 0),
                                   "total": epsilon + DELTA if certified else None}  # fmt: skip
                    rows.append(shared | posterior | integration | certificate | more)
    return rows


FIT = ("fit_points", "optimizer", "fit_epochs", "lam", "alternations", "converged")


def unfitted(rows):
    """The priors of the rows' posteriors as classifiers of their own, with the bound on a fixed distribution too."""
    found = {}
    for row in rows:
        if row["classifier"] != "posterior":
            continue
        own = {"classifier": "prior", "objective": "unfitted", "kl_divergence": 0.0, **dict.fromkeys(FIT)}
        own |= {key: name(row[key], "unfitted") for key in ("setting", "posterior", "integration")}
        own |= {"risk": row["prior_risk"], "test_risk": row["prior_test_risk"], "value": row["value"] + 0.01}
        for bound in (row["bound"], "chernoff"):
            what = (row["network"], row["covariance"], row["scale"], row["integrator"], row["num_points"], bound)
            found.setdefault((*what, row["epsilon"]), row | own | {"bound": bound, "event": event(bound)})
    return list(found.values())


def plain(rows):
    """The mean classifiers of the rows' first flow as those of a network without a flow."""
    flow = rows[0]["flow"]
    own = {"method": "deterministic", "num_nodes": None, "horizon": None, "flow": None}
    hashes = ("setting", "network", "integration")
    means = [row for row in rows if row["classifier"] == "mean" and row["flow"] == flow]
    return [row | own | {key: name(row[key], "plain") for key in hashes} for row in means]


def failure(suite="digits", error="OutOfMemoryError: nothing left", **more):
    """A failed integration: its identity, its error, and nulls."""
    identity = {"suite": suite, "plan": name("plan", suite, "tiny"), "setting": name(suite, "setting"),
                "integration": name(suite, error), "posterior": name(suite, "dense"), "classifier": "posterior",
                "prior": name(suite, "dense prior"), "objective": "cross_entropy",
                "network": name("tiny", "digits", "daf", 0, 2000, []),
                "dataset": "digits", "method": "ldaf", "backbone": "tinynet", "flow": "daf", "covariance": "dense",
                "scale": 0.1, "seed": 0, "finished": START, "error": error}  # fmt: skip
    return identity | more


def curves(rows):
    """Training and fits of all that is in the rows, and the convergence of four integrators."""
    rng = np.random.default_rng(1)
    found = []
    networks = {row["network"]: row for row in rows if row.get("value") is not None}
    for network, row in networks.items():
        common = {"suite": row["suite"], "network": network, "posterior": "", "kind": "training"}
        for epoch in range(1, 16):
            loss = 2.3 * math.exp(-epoch / 3) + 0.05 + 0.02 * rng.random()
            for series, y in (("loss", loss), ("accuracy", 1 - loss / 2.6), ("images_per_second", 900.0)):
                found.append(common | {"series": series, "x": float(epoch), "y": y, "seconds": 1.5 * epoch})
    posteriors = {row["posterior"]: row for row in rows if row.get("lam") is not None}
    for posterior, row in posteriors.items():
        common = {"suite": row["suite"], "network": row["network"], "posterior": posterior, "kind": "fit"}
        for step in range(1, 3 + row["seed"] + 2):
            series = {"bound": 0.06 + 0.03 / step + 0.01 * (row["scale"] or 0.2), "cross_entropy": 0.1 + 0.05 / step,
                      "divergence": row["kl_divergence"] * (1 - 0.7**step), "lam": row["lam"] + 0.3 / step}  # fmt: skip
            found += [
                common | {"series": s, "x": float(step), "y": y, "seconds": 0.2 * step} for s, y in series.items()
            ]
    first = itertools.islice(networks.items(), 1)
    for (network, row), kind in itertools.product(first, ("integration", "integration_each")):
        common = {"suite": row["suite"], "network": network, "posterior": "", "kind": kind}
        rates = {
            "mc": (2e-3, -0.5, 1),
            "qmc": (2e-3, -0.8, 1.1),
            "rqmc": (1.8e-3, -0.85, 1.2),
            "conditional": (4e-4, -1, 3),
        }
        for series, (start, slope, cost) in rates.items():
            for q in 2 ** np.arange(4, 15, 2):
                y = start * (q / 16) ** slope * math.exp(0.1 * rng.standard_normal())
                point = {"x": float(q), "y": y, "low": 0.8 * y, "high": 1.25 * y, "seconds": cost * (0.01 + q / 8192)}
                found.append(common | {"series": series} | point)
        found.append(common | {"series": "reference", "x": 16384.0 * 16, "y": 2e-5, "low": 2e-5, "high": 2e-5,
                               "seconds": 200.0})  # fmt: skip
    return found


def results_table(rows):
    """As a run has them, without going through a file."""
    return pa.Table.from_pylist(rows, schema(record_columns()))


def write(folder, rows, lines=None, plan=None):
    """The two Parquet files, and a plan if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = curves(rows) if lines is None else lines
    pq.write_table(results_table(rows), folder / "results.parquet", compression="zstd")
    pq.write_table(pa.Table.from_pylist(lines, schema(CURVES)), folder / "curves.parquet", compression="zstd")
    if plan is not None:
        (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    return folder


def small(**changes):
    """A sweep of the same shape with few rows."""
    asked = {"covariances": ("code", "constant", "isotropic"), "scales": (0.1,), "fit_points": (256,),
             "integrators": ("mc", "qmc"), "num_points": (4096,)}  # fmt: skip
    return results(**(asked | changes))


def nasty():
    """Everything that a file may call things, with failures in between."""
    rows = small(suite=NASTY[0], dataset=NASTY[2], flows=(NASTY[1], UNICODE), covariances=(NASTY[0], "x" * 5000),
                 bounds=("kl_exact", "lambda", "classic", NASTY[1]), seeds=(0, 1))  # fmt: skip
    return [*rows, *(failure(suite=NASTY[0], error=text, dataset=text) for text in (*NASTY, UNICODE, "e" * 10**5))]
