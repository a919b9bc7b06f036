"""Do the certificates hold up? `python -m ldaf_bench.verify results/digits [--store store] [--root data]`

Reads plan, Parquet and artifacts, checks every checksum, makes the plan again from the suite, and computes KL, bounds,
risks and some of the pushforward once more along a slow dense path in float64. Exit code 0 if all agrees, 1 with a
sentence if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import ValidationError
from rich.console import Console
from rich.progress import track

from ldaf_bench.artifacts import ArtifactError, file_sha256
from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.datasets import load, summarize
from ldaf_bench.data.splits import Part
from ldaf_bench.messages import printable
from ldaf_bench.methods.pushed import load_pushed, origin_of, pushed_path
from ldaf_bench.methods.store import load_prior, prior_path
from ldaf_bench.plan import Plan, PlannedCell, PlannedPrior, make_plan
from ldaf_bench.results.collect import (
    CURVES_FILE,
    PRIOR_DATA,
    RESULTS_FILE,
    Sources,
    collect,
    needs_prior_part,
    tolerance_of,
    wanted_cells,
)
from ldaf_bench.results.store import cell_path, load_cell, load_posterior, posterior_hash, posterior_path
from ldaf_bench.suite import Suite, SuiteError
from ldaf_bench.verify.checks import (
    VerifyError,
    check_again,
    check_guarantee,
    check_mean,
    check_posterior,
    check_prior,
    check_pushforward,
    check_risk,
    check_row,
)

Key = tuple[str, float | None]
"""A prior and the Krylov tolerance of its pushforward."""


def read_plan(folder: Path, root: Path) -> Plan:
    """The plan, made again from the suite that was run; it must name the same cells."""
    try:
        content = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        plan = make_plan(Suite.model_validate(content["suite"]), summarize(content["suite"]["data"]["dataset"], root))
    except (OSError, ValueError, KeyError, TypeError, ValidationError, SuiteError) as error:
        raise VerifyError(
            f"{folder / 'plan.json'} is not a plan ({error}): name a folder like results/digits."
        ) from error
    for name in (RESULTS_FILE, CURVES_FILE):
        if not (folder / name).is_file() or file_sha256(folder / name) != content.get("files", {}).get(name):
            raise VerifyError(f"{folder / name} is missing or was changed: run the suite again.")
    if plan.describe() != {key: value for key, value in content.items() if key != "files"}:
        raise VerifyError(f"{folder / 'plan.json'} is not the plan that its suite makes.")
    return plan


def read_failures(folder: Path) -> dict[str, str]:
    """The cells that failed, and why: they claim nothing."""
    try:
        table = pq.read_table(folder / RESULTS_FILE, columns=["cell", "error"])
    except (OSError, pa.ArrowException) as error:
        raise VerifyError(f"{folder / RESULTS_FILE} cannot be read ({error}): run the suite again.") from error
    return {row["cell"]: row["error"] for row in table.to_pylist() if row["error"] is not None}


def read_sources(
    priors: Sequence[PlannedPrior], plan: Plan, store: Path, dataset: Dataset | None
) -> dict[Key, Sources]:
    """Every prior and pushforward, checked."""
    sources = {}
    for planned in priors:
        prior = load_prior(prior_path(store, planned.identity))
        check_prior(planned, prior)
        for tolerance in plan.suite.pushforwards.tolerance:
            wanted: list[tuple[Part, int | None]] = [("certificate", None), ("test", None)]
            if needs_prior_part(plan, planned):
                wanted.append(("prior", PRIOR_DATA))
            parts = []
            for part, at_most in wanted:
                pushed = load_pushed(pushed_path(store, origin_of(prior, planned.splits, part, tolerance, at_most)))
                check_pushforward(prior, pushed, dataset)
                parts.append(pushed)
            sources[planned.identity, tolerance] = Sources(prior, *parts)
    return sources


def _different(rows: Sequence[dict[str, Any]], columns: tuple[str, ...]) -> list[dict[str, Any]]:
    """One row for every combination of values in these columns."""
    return list({tuple(row[column] for column in columns): row for row in rows}.values())


def check_cells(cells: Sequence[PlannedCell], plan: Plan, store: Path, sources: Mapping[Key, Sources]) -> int:
    """Every certificate of these cells; returns how many."""
    count = 0
    checked: set[str] = set()
    for cell in track(cells, "Verifying cells", transient=True, disable=not sys.stdout.isatty()):
        found = sources[cell.prior, tolerance_of(cell, plan)]
        certificate = found.certificate
        record = load_cell(cell_path(store, cell.identity), found.content)
        if cell.posterior is None:
            for row in record["rows"]:
                check_mean(cell, row, certificate)
            check_again(cell, record["rows"], None, found)
        else:
            posterior = load_posterior(posterior_path(store, cell.posterior.identity), found.content)
            if cell.posterior.identity not in checked:
                check_posterior(cell.posterior, posterior, found)
                checked.add(cell.posterior.identity)
            if record["posterior"] != posterior_hash(posterior.start, posterior.gaussian):
                raise VerifyError(f"Cell {cell.identity} is of another posterior than the one there is.")
            for row in record["rows"]:
                check_row(cell, row, posterior, certificate)
            # The risk is one and the same in all rows; it takes longer to compute again.
            for row in _different(record["rows"], ("risk", "risk_upper", "num_evaluations")):
                check_risk(cell, row, posterior, certificate)
                check_guarantee(cell, row, posterior, certificate)
            check_again(cell, record["rows"], posterior, found)
        count += len(record["rows"])
    return count


TIMES = {"finished", "seconds", "train_seconds", "push_seconds", "fit_seconds", "integrate_seconds", "peak_bytes"}
"""Columns that tell the time: a prior that was made again has the same weights, but took another time."""


def _untimed(table: pa.Table) -> pa.Table:
    table = table.drop_columns([name for name in table.column_names if name in TIMES])
    if "series" in table.column_names:
        table = table.filter(pc.not_equal(table["series"], "images_per_second"))
    return table


def check_tables(folder: Path, results: pa.Table, curves: pa.Table) -> None:
    """The Parquet files hold what the artifacts say, row by row, but for times."""
    for name, expected in ((RESULTS_FILE, results), (CURVES_FILE, curves)):
        try:
            stored = pq.read_table(folder / name)
        except (OSError, pa.ArrowException) as error:
            raise VerifyError(f"{folder / name} cannot be read ({error}): run the suite again.") from error
        if stored.column_names != expected.column_names:
            raise VerifyError(f"{folder / name} has other columns than a record has.")
        stored, expected = _untimed(stored), _untimed(expected)
        for column in expected.column_names:
            if not stored[column].equals(expected[column]):
                raise VerifyError(f"{folder / name}: the column {column} is not what the artifacts say.")


def verify(folder: Path, store: Path, root: Path) -> str:
    """Check everything; returns a sentence about what was checked."""
    plan = read_plan(folder, root)
    try:
        dataset = load(plan.summary.name, root)
    except DataError:
        dataset = None
    failures = read_failures(folder)
    cells = [cell for cell in wanted_cells(plan, store) if cell.identity not in failures]
    resting_on = {cell.prior for cell in cells}
    priors = [prior for prior in plan.priors if prior.identity in resting_on]
    sources = read_sources(priors, plan, store, dataset)
    check_tables(folder, *collect(plan, store, sources, failures))
    count = check_cells(cells, plan, store, sources)
    sentence = f"{count} certificates of {len(cells)} cells and {len(priors)} priors agree."
    sentence += " (Figures, tables and page are drawn from these and were not looked at.)"
    if failures:
        sentence += f" {len(failures)} cells failed and claim nothing."
    if dataset is None:
        sentence += " The data are not here, so that labels and network were not checked."
    return sentence


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify a results folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.verify", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a results folder, like results/digits")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where the artifacts are (default: store)")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    options = parser.parse_args(arguments)
    try:
        sentence = verify(options.folder, options.store, options.root)
    except (VerifyError, ArtifactError, DataError) as error:
        print(f"NOT verified: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        if isinstance(error, ArtifactError):
            advice = "If it is, run the suite again: what is missing or damaged is made again."
            print(f"Is {options.store} the right --store? {advice}", file=sys.stderr)
        return 1
    Console().print(sentence, markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
