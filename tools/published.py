"""Tables of README.md, results/README.md and results/tables.md, from the published Parquet files.

`python -m tools.published` writes them. Each stands between `<!-- NAME -->` and `<!-- /NAME -->`. Certificates are
rounded up in decimal arithmetic, without the report's own functions. A `*` marks a
mean of certificates that hold one by one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from typing import NamedTuple, Protocol

import pandas

TOP = Path(__file__).parents[1]
FILES = (TOP / "README.md", TOP / "results" / "README.md", TOP / "results" / "tables.md")
PUBLISHED = TOP / "results" / "published"
NONE = "–"
Wanted = Mapping[str, object]
"""Values that rows have in some columns."""


def up(values: Sequence[float] | pandas.Series) -> str:
    """The mean of stored values in percent, rounded up."""
    exact = sum((Decimal(repr(float(value))) for value in values), Decimal()) / len(values)
    return str((100 * exact).quantize(Decimal("0.01"), ROUND_CEILING))


def where(frame: pandas.DataFrame, **wanted: object) -> pandas.DataFrame:
    """Rows with these values; None for what is not set."""
    for name, value in wanted.items():
        frame = frame[frame[name].isna() if value is None else frame[name].eq(value)]
    return frame


def best_integrated(rows: pandas.DataFrame) -> pandas.DataFrame:
    """Of each bound, the rows of the integrator that certifies with most draws; `bonferroni` is shown elsewhere."""
    rows = rows[rows["certified"] & ~rows["integrator"].isin(["bonferroni"])]
    return rows[rows["num_points"].fillna(0).eq(rows["num_points"].fillna(0).max())]


def certificate(rows: pandas.DataFrame, bound: str, total: float) -> str:
    """A certificate over seeds: that of the mixture where there is one."""
    rows = best_integrated(where(rows, bound=bound)[lambda some: some["total"].round(12).eq(total)])
    if rows.empty:
        return NONE
    assert rows["seed"].is_unique, (bound, len(rows))
    if len(rows) == 1:
        return up(rows["value"])
    return up(rows["mixture"].head(1)) if rows["mixture"].notna().all() else f"{up(rows['value'])} *"


def measured(rows: pandas.DataFrame, column: str, digits: int = 2, factor: float = 100.0) -> str:
    """A mean over seeds."""
    values = rows.drop_duplicates("seed")[column].dropna()
    return f"{factor * values.mean():.{digits}f}" if len(values) else NONE


class Table(Protocol):
    """What makes a table of the published rows of some suites."""

    @property
    def suites(self) -> tuple[str, ...]: ...

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str: ...


class Comparison(NamedTuple):
    """Classifiers down, bounds across."""

    suites: tuple[str, ...]
    lines: Mapping[str, Wanted]
    bounds: tuple[str, ...]
    total: float

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        frame = pandas.concat([frames[suite] for suite in self.suites])
        header = ["classifier", "test risk", "KL", *(f"`{bound}`" for bound in self.bounds)]
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        for name, wanted in self.lines.items():
            rows = where(frame, **wanted)
            assert len(rows), name
            mean = rows["classifier"].eq("mean").all()
            risk = measured(rows, "mean_test_error" if mean else "test_risk")
            cells = [certificate(rows, bound, self.total) for bound in self.bounds]
            lines.append([name, risk, NONE if mean else measured(rows, "kl_divergence", factor=1.0), *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Times(NamedTuple):
    """Ways to a certificate down, seconds of the stages across."""

    suites: tuple[str, ...]
    lines: Mapping[str, Wanted]

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        frame = pandas.concat([frames[suite] for suite in self.suites])
        stages = ("train", "digest", "fit", "integrate")
        header = ["way", *(f"{stage} (s)" for stage in stages), "all (s)", "training's share", "integration adds"]
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        for name, wanted in self.lines.items():
            rows = where(frame, **wanted).sort_values("risk_upper").drop_duplicates("integration")
            seconds = [rows[f"{stage}_seconds"].fillna(0).median() for stage in stages]
            share = f"{100 * seconds[0] / sum(seconds):.1f} %"
            adds = (rows["risk_upper"] - rows["risk"]).where(rows["integrator"].ne("bonferroni")).median()
            shown = [f"{value:.1f}" if value else NONE for value in (*seconds, sum(seconds))]
            lines.append([name, *shown, share, NONE if pandas.isna(adds) else f"{100 * adds:.3f} points"])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Grid(NamedTuple):
    """One bound along two axes; behind a fitted posterior's certificate its KL."""

    suites: tuple[str, ...]
    lines: Mapping[str, Wanted]
    across: Mapping[str, Wanted]
    bound: str
    total: float

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        frame = pandas.concat([frames[suite] for suite in self.suites])
        lines = [["", *self.across], ["---", *["---:"] * len(self.across)]]
        for name, wanted in self.lines.items():
            cells = []
            for more in self.across.values():
                rows = where(frame, **wanted, **more)
                kl = rows["kl_divergence"].max()
                cells.append(certificate(rows, self.bound, self.total) + (f" ({kl:.2f})" if kl > 0 else ""))
            lines.append([name, *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Networks(NamedTuple):
    """Networks down; errors, certificates of what is made of them and seconds across. One seed each."""

    suites: tuple[str, ...]
    lines: Mapping[str, Wanted]
    total: float

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        frame = pandas.concat([frames[suite] for suite in self.suites])
        header = ["", "error, certificate part", "error, test part", "`test_set`, mean classifier"]
        for scale in NETWORK_SCALES:
            header += [f"σ = {scale}, unfitted, `chernoff`", f"σ = {scale}, fitted, `catoni` (KL)"]
        header += ["train (s)", "digest (s)"]
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        for name, wanted in self.lines.items():
            rows = where(frame, **wanted)
            mean = where(rows, classifier="mean")
            cells = [measured(mean, "mean_error"), measured(mean, "mean_test_error")]
            cells.append(certificate(mean, "test_set", self.total))
            for scale in NETWORK_SCALES:
                posterior = where(rows, **fitted("zero_one", scale=scale))
                cells.append(certificate(where(rows, **unfitted(scale=scale)), "chernoff", self.total))
                divergence = measured(posterior, "kl_divergence", factor=1.0)
                cells.append(f"{certificate(posterior, 'catoni', self.total)} ({divergence})")
            cells += [measured(mean, f"{stage}_seconds", digits=0, factor=1.0) for stage in ("train", "digest")]
            lines.append([name, *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Errors(NamedTuple):
    """Integrators down, points per datum across: root mean square error, and seconds of one integration."""

    suites: tuple[str, ...]
    kind: str
    integrators: tuple[str, ...]
    points: tuple[int, ...]

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        (suite,) = self.suites
        curves = pandas.read_parquet(PUBLISHED / suite / "curves.parquet")
        lines = [["", *(f"{points:,}" for points in self.points)], ["---", *["---:"] * len(self.points)]]
        for name in self.integrators:
            rows = where(curves, kind=self.kind, series=name).set_index("x")
            cells = [f"{100 * rows['y'][points]:.5f} ({rows['seconds'][points]:.2f} s)" for points in self.points]
            lines.append([f"`{name}`", *cells])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Prices(NamedTuple):
    """Stochastic classifiers and draws per datum down; what integration costs and gives across."""

    suites: tuple[str, ...]
    lines: Mapping[str, Wanted]
    draws: tuple[int, ...]
    bounds: tuple[str, ...]
    total: float

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        frame = pandas.concat([frames[suite] for suite in self.suites])
        costs = ["draws per datum", "integrate (s)", "integration adds"]
        header = ["classifier", "test risk", "KL", *costs, *(f"`{bound}`" for bound in self.bounds)]
        lines = [header, ["---", *["---:"] * (len(header) - 1)]]
        for name, wanted in self.lines.items():
            for draws in self.draws:
                rows = where(frame, **wanted, num_points=draws)
                if rows.empty:  # too many for what runs the network for every draw
                    continue
                adds = (rows["risk_upper"] - rows["risk"]).dropna().iloc[0]
                cost = [f"{draws:,}", f"{rows['integrate_seconds'].iloc[0]:.1f}", f"{100 * adds:.3f} points"]
                known = [measured(rows, "test_risk"), measured(rows, "kl_divergence", factor=1.0)]
                lines.append([name, *known, *cost, *(certificate(rows, bound, self.total) for bound in self.bounds)])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Headline(NamedTuple):
    """Data sets across; what was measured and what was certified down. One seed each."""

    suites: tuple[str, ...]
    measured: Mapping[str, tuple[str, Wanted]]
    certificates: Mapping[str, tuple[str, Wanted]]
    total: float
    quoted: Mapping[str, tuple[str, ...]]
    """Lines that somebody else reports, as they are."""

    def text(self, frames: Mapping[str, pandas.DataFrame]) -> str:
        parts = [frames[suite] for suite in self.suites]
        names = [DATA[part["dataset"].iloc[0]] for part in parts]
        lines = [["", *names], ["---", *["---:"] * len(parts)]]
        for name, (column, wanted) in self.measured.items():
            lines.append([name, *(measured(where(part, **wanted), column) for part in parts)])
        for name, (bound, wanted) in self.certificates.items():
            lines.append([name, *(certificate(where(part, **wanted), bound, self.total) for part in parts)])
        lines += [[name, *values] for name, values in self.quoted.items()]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


DATA = {"cifar10": "CIFAR-10", "fashionmnist": "FashionMNIST"}


def unfitted(**wanted: object) -> Wanted:
    """Rows of a prior."""
    return {"classifier": "prior", **wanted}


def fitted(objective: str, **wanted: object) -> Wanted:
    """Rows of a posterior."""
    return {"classifier": "posterior", "objective": objective, **wanted}


def comparison_lines() -> dict[str, Wanted]:
    """Both flows and the last layer, at both scales."""
    lines = {}
    for name, wanted in {
        "LDAF, DAF": {"method": "ldaf", "flow": "daf"},
        "LDAF, S-flow": {"method": "ldaf", "flow": "sflow"},
        "last layer": {"method": "last_layer"},
    }.items():
        for scale in (0.1, 0.3):
            lines[f"{name}, σ = {scale}, unfitted"] = unfitted(**wanted, scale=scale)
            lines[f"{name}, σ = {scale}, fitted"] = fitted("zero_one", **wanted, scale=scale)
        lines[f"{name}, mean classifier"] = {"classifier": "mean", **wanted}
    return lines


BOUNDS = ("kl", "kl_exact", "catoni", "split_kl", "chernoff", "betting", "test_set")
WAYS: dict[str, Wanted] = {
    "LDAF, DAF, unfitted, `mc`, q = 16,384": unfitted(method="ldaf", flow="daf", integrator="mc", num_points=16384),
    "LDAF, DAF, fitted, `mc`, q = 16,384": fitted(
        "zero_one", method="ldaf", flow="daf", integrator="mc", num_points=16384
    ),
    "LDAF, DAF, fitted, `mc`, q = 4": fitted("zero_one", method="ldaf", flow="daf", integrator="mc", num_points=4),
    "LDAF, DAF, fitted, `bonferroni`": fitted("zero_one", method="ldaf", flow="daf", integrator="bonferroni"),
    "LDAF, S-flow, fitted, `mc`, q = 16,384": fitted(
        "zero_one", method="ldaf", flow="sflow", integrator="mc", num_points=16384
    ),
    "last layer, fitted, `mc`, q = 16,384": fitted("zero_one", method="last_layer", integrator="mc", num_points=16384),
    "plain network, counted": {"method": "deterministic", "classifier": "mean"},
}
SMALL = {"method": "ldaf", "scale": 0.1}
RATE = 0.003
HEADLINE = Headline(
    ("cifar_wide", "fashion_headline"),
    {
        "mean classifier, test error": ("mean_test_error", {"method": "ldaf", "classifier": "mean"}),
        "unfitted prior, test risk": ("test_risk", unfitted(**SMALL)),
        "fitted posterior, test risk": ("test_risk", fitted("zero_one", **SMALL, learning_rate=RATE)),
    },
    {
        "certificate, unfitted prior: `betting`": ("betting", unfitted(**SMALL)),
        "certificate, unfitted prior: `chernoff`": ("chernoff", unfitted(**SMALL)),
        "certificate, fitted posterior: `catoni`": ("catoni", fitted("zero_one", **SMALL, learning_rate=RATE)),
        "certificate, fitted posterior: `kl_exact`": ("kl_exact", fitted("zero_one", **SMALL, learning_rate=RATE)),
        "certificate, mean classifier: `test_set`": ("test_set", {"method": "ldaf", "classifier": "mean"}),
    },
    0.02,
    {"the paper's certificate (ε = 0.01; ResNet18, GPU; integration not paid for)": ("6.36", "6.07")},
)


def headline_lines(last_layer: bool, rates: Sequence[float] = (0.003, 0.03)) -> dict[str, Wanted]:
    """LDAF at each learning rate of the fit, and the last layer where there is one."""
    lines = {}
    for scale in (0.1, 0.3):
        lines[f"LDAF, DAF, σ = {scale}, unfitted"] = unfitted(method="ldaf", scale=scale)
        for rate in rates:
            at = f" at rate {rate}" if len(rates) > 1 else ""
            lines[f"LDAF, DAF, σ = {scale}, fitted{at}"] = fitted(
                "zero_one", method="ldaf", scale=scale, learning_rate=rate
            )
    lines["LDAF, DAF, mean classifier"] = {"method": "ldaf", "classifier": "mean"}
    others = {name: wanted for name, wanted in comparison_lines().items() if name.startswith("last layer")}
    return lines | (others if last_layer else {})


RIVALS = {
    f"{name}, {how}": {**wanted, **which}
    for name, which in {
        "LDAF, DAF": {"method": "ldaf", "integrator": "mc"},
        "last layer": {"method": "last_layer", "integrator": "mc"},
        "PBB": {"method": "pbb", "integrator": "forward_mc"},
    }.items()
    for how, wanted in {"unfitted": {"classifier": "prior"}, "fitted": {"classifier": "posterior"}}.items()
}
PRICED = ("kl_exact", "catoni", "chernoff", "betting")


def objective_lines() -> dict[str, Wanted]:
    """What a fit minimizes, and whether it moves the mean, of both methods."""
    lines = {}
    for name, method, fixed in (("LDAF", "ldaf", "zero"), ("last layer", "last_layer", "fixed")):
        lines[f"{name}, unfitted"] = unfitted(method=method)
        for objective in ("cross_entropy", "zero_one"):
            for mean, said in ((fixed, "covariance"), ("fitted", "mean and covariance")):
                lines[f"{name}, `{objective}`, {said}"] = fitted(objective, method=method, mean=mean)
    return lines


INTEGRATORS = ("mc", "qmc", "rqmc", "conditional")
ABLATED = ("kl_exact", "catoni", "chernoff")
NETWORK_SCALES = (0.1, 0.3)
FLOWS = {name: {"flow": flow} for name, flow in (("DAF", "daf"), ("S-flow", "sflow"), ("linear map", "linear"))}
NODES = {f"n = {nodes}": {"num_nodes": nodes} for nodes in (10, 50, 100)}
HORIZONS = {f"T = {horizon:g}": {"horizon": horizon} for horizon in (0.3, 1.0, 3.0)}
SPLITS = {
    f"{60_000 - certify:,} train, {certify:,} certify": {"num_certificate": certify}
    for certify in (30_000, 18_000, 10_000)
}

WIDE = ("cifar_wide", "cifar_wide_linear")
"""Two heads on one backbone and split."""

TABLES: dict[str, Table] = {
    "headline": HEADLINE,
    "cifar-wide": Comparison(WIDE, headline_lines(True, rates=(0.003,)), BOUNDS, 0.02),
    "cifar-wide-0.06": Comparison(WIDE, headline_lines(True, rates=(0.003,)), BOUNDS, 0.06),
    "cifar-wide-times": Times(WIDE, {name: way for name, way in WAYS.items() if "S-flow" not in name}),
    "cifar": Comparison(("cifar_headline",), headline_lines(False), BOUNDS, 0.02),
    "cifar-0.06": Comparison(("cifar_headline",), headline_lines(False), BOUNDS, 0.06),
    "cifar-times": Times(
        ("cifar_headline",), {name: way for name, way in WAYS.items() if name.startswith("LDAF, DAF")}
    ),
    "cifar-short": Comparison(("cifar_cpu",), comparison_lines(), BOUNDS, 0.02),
    "cifar-short-0.06": Comparison(("cifar_cpu",), comparison_lines(), BOUNDS, 0.06),
    "cifar-short-times": Times(("cifar_cpu",), WAYS),
    "cifar-rivals": Prices(("cifar_rivals",), RIVALS, (1, 16384), PRICED, 0.02),
    "fashion-long": Comparison(("fashion_headline",), headline_lines(True), BOUNDS, 0.02),
    "fashion-rivals": Prices(("fashion_rivals",), RIVALS, (2, 16384), PRICED, 0.02),
    "integrators": Errors(("integration",), "integration", INTEGRATORS, (16, 256, 1024, 4096, 16384)),
    "integrators-each": Errors(("integration_data",), "integration_each", INTEGRATORS, (16, 256, 1024, 4096, 16384)),
    "objective": Comparison(("ablation_objective",), objective_lines(), ABLATED, 0.02),
    "points": Grid(
        ("ablation_qmc",),
        {f"`mc`, q = {points:,}": {"integrator": "mc", "num_points": points} for points in (64, 1024, 16384)},
        {
            f"{points:,} points in the fit, {said}": {"fit_points": points, "tolerance": tolerance}
            for tolerance, said in ((None, "exact flow"), (0.1, "tolerance 0.1"))
            for points in (16, 128, 1024)
        },
        "catoni",
        0.02,
    ),
    "covariance": Grid(
        ("ablation_covariance",),
        {f"`{name}`": {"covariance": name} for name in ("constant", "isotropic", "paper", "code", "dense")},
        {
            f"σ = {scale:g}, {how}": {"classifier": classifier, "scale": scale}
            for scale in (0.1, 0.3, 1.0)
            for how, classifier in (("unfitted", "prior"), ("fitted", "posterior"))
        },
        "catoni",
        0.02,
    ),
    "flow": Networks(("ablation_flow",), FLOWS, 0.02),
    "nodes": Networks(("ablation_nodes",), NODES, 0.02),
    "horizon": Networks(("ablation_horizon",), HORIZONS, 0.02),
    "split": Networks(("ablation_split",), SPLITS, 0.02),
    "fashion": Comparison(("fashion_cpu",), comparison_lines(), BOUNDS, 0.02),
    "fashion-0.06": Comparison(("fashion_cpu",), comparison_lines(), BOUNDS, 0.06),
    "fashion-times": Times(("fashion_cpu",), WAYS),
    "pooled": Comparison(("fashion_pooled",), comparison_lines(), BOUNDS, 0.02),
    "pooled-0.06": Comparison(("fashion_pooled",), comparison_lines(), BOUNDS, 0.06),
    "pooled-times": Times(("fashion_pooled",), WAYS),
}


def read(suite: str) -> pandas.DataFrame:
    """The published rows of a suite."""
    return pandas.read_parquet(PUBLISHED / suite / "results.parquet")


def tables() -> dict[str, str]:
    """The text of every table."""
    frames = {suite: read(suite) for table in TABLES.values() for suite in table.suites}
    return {name: table.text(frames) for name, table in TABLES.items()}


def written() -> dict[str, str]:
    """The tables as they stand in the files."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
    return dict(re.findall(r"<!-- ([a-z0-9.-]+) -->\n(.*?)\n<!-- /\1 -->", text, re.DOTALL))


def replaced(text: str, name: str, table: str) -> str:
    """The text with this table in the place of that name."""
    return re.sub(rf"(?<=<!-- {name} -->\n).*?(?=\n<!-- /{name} -->)", lambda _: table, text, flags=re.DOTALL)


def main() -> None:
    """Write every table into its place."""
    made = tables()
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        for name, table in made.items():
            text = replaced(text, name, table)
        path.write_text(text, encoding="utf-8")
    assert written().items() >= made.items(), f"no place for {made.keys() - written().keys()}"


if __name__ == "__main__":
    main()
