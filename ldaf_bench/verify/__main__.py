"""Do the certificates hold up? `python -m ldaf_bench.verify results/digits [--store store] [--root data]`

Instead of a results folder it takes an archive that `python -m ldaf_bench.pack` made, and then needs no store.

Reads plan, Parquet and artifacts, checks every checksum, makes the plan again from the suite, and computes KL, bounds,
risks and some of the pushforward once more along a slow dense path in float64. Exit code 0 if all agrees, 1 with a
sentence if not, 2 if the store does not answer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.progress import track

from ldaf_bench.artifacts import ArtifactError, StoreError
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import load
from ldaf_bench.messages import counted, printable, say
from ldaf_bench.pipeline import check_images
from ldaf_bench.plan import PLAN_FILE, SEAL_FILE, DigestOf, Plan, PlannedIntegration
from ldaf_bench.results.collect import (
    TABLE_FILES,
    Posteriors,
    Sources,
    Tables,
    collect,
    mistakes_of,
    wanted_integrations,
)
from ldaf_bench.store.archive import unpack
from ldaf_bench.store.ledger import looks_of, planned_when, read_ledger
from ldaf_bench.store.posteriors import StoredIntegration
from ldaf_bench.store.store import Store, open_store
from ldaf_bench.theory.integrate import INTEGRATORS, Integration
from ldaf_bench.verify.checks import (
    VerifyError,
    check_integration,
    check_mixture,
    check_posterior,
    check_row,
    estimate_risk,
    without_twin,
)
from ldaf_bench.verify.folder import read_plan, read_rows, read_sources
from ldaf_bench.verify.methods import METHOD_TWINS
from ldaf_bench.verify.price import Price, budget_of, recount


def check_price(plan: Plan, content: Mapping[str, Any]) -> Price:
    """K and J, counted by other code."""
    price = recount(content["suite"])
    if plan.suite.certificates.report == "best":
        paid = content["budget"]["paid"]
        said = (paid["mean"]["num_events"], paid["stochastic"]["num_events"], paid["stochastic"]["num_integrations"])
        if said != (price.mean_events, price.stochastic_events, max(1, price.integrations)):
            raise VerifyError(f"The plan pays for {said} events and integrations, but there are {tuple(price)}.")
    return price


def check_ledger(plan: Plan, content: Mapping[str, Any], store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
    """plan.json was written down before the results; results that are older belong to an earlier look."""
    for part in plan.certificate_parts:
        when = planned_when(store, part, plan.identity)
        if when is None or content.get("planned", {}).get(part) != when:
            raise VerifyError(f"The ledger of {store.name} does not know this plan, or knows it from another time.")
        first = min(str(entry.get("planned") or entry["collected"]) for entry in read_ledger(store, part))
        for row in rows:
            if row["certificate_hash"] == part and row["integrator"] is not None and row["error"] is None:
                finished = row["finished"].isoformat(timespec="microseconds")
                if finished < first:
                    raise VerifyError(
                        f"Integration {row['integration']} was finished before any plan was written down: the plan was "
                        "made after its results."
                    )


def check_integrations(
    integrations: Sequence[PlannedIntegration], store: Store, sources: Mapping[DigestOf, Sources], archived: bool
) -> dict[str, Integration]:
    """Every posterior and every integration; returns the integrations by name."""
    found: dict[str, Integration] = {}
    posteriors, estimates = Posteriors(store, sources), dict[str, float]()
    for planned in track(integrations, "Verifying", transient=True, disable=not sys.stdout.isatty()):
        digest, posterior = planned.posterior.digest, posteriors.get(planned.posterior)
        name = planned.posterior.identity
        if name not in estimates:
            check_posterior(planned.posterior, posterior, sources[digest])
            estimates[name] = estimate_risk(planned.posterior, posterior, sources[digest])
        stored = posteriors.integration(planned)
        device = drawn_on(planned, stored)
        check_integration(planned, posterior, stored.integration, sources[digest], estimates[name], device, archived)
        found[planned.identity] = stored.integration
    return found


def drawn_on(planned: PlannedIntegration, stored: StoredIntegration) -> torch.device:
    """Where the same seeds give the same draws."""
    device = stored.record["about"].get("integrate_device", "cpu")
    if device == "cpu" or not INTEGRATORS[planned.integrator].chance:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise VerifyError(f"Integration {planned.identity} was drawn on a GPU: verify it on a machine that has one.")
    return torch.device("cuda")


LAST_BITS = 1e-12
"""Processors differ in the last bits of a square root of a vector, and so of a bound."""
TIMES = {"finished", "seconds", "train_seconds", "digest_seconds", "fit_seconds", "integrate_seconds", "peak_bytes"}
"""Columns that tell the time: a network that was trained again has the same weights, but took another time."""


def _comparable(table: pa.Table, archived: bool) -> pa.Table:
    """What has to agree: everything but times.

    Of an archive, digests were computed again, so that the estimate of their error may differ. Which rows have the same
    setting must agree, but not its name: a version with more settings makes another one.
    """
    left_out = TIMES | {"digest_error"} if archived else TIMES
    table = table.drop_columns([name for name in table.column_names if name in left_out])
    if archived and "setting" in table.column_names:
        groups = table["setting"].combine_chunks().dictionary_encode().indices
        table = table.set_column(table.column_names.index("setting"), "setting", groups)
    if "series" in table.column_names:
        table = table.filter(pc.not_equal(table["series"], "images_per_second"))
    return table


def check_tables(folder: Path, tables: Tables, archived: bool = False) -> None:
    """The Parquet files hold what the artifacts say, row by row, but for times."""
    for name, expected in zip(TABLE_FILES, tables, strict=True):
        try:
            stored = pq.read_table(folder / name)
        except (OSError, pa.ArrowException) as error:
            raise VerifyError(f"{folder / name} cannot be read ({error}): run the suite again.") from error
        if stored.column_names != expected.column_names:
            raise VerifyError(f"{folder / name} has other columns than a record has.")
        stored, expected = _comparable(stored, archived), _comparable(expected, archived)
        for column in expected.column_names:
            if not _equal(stored[column], expected[column], LAST_BITS if archived else 0.0):
                raise VerifyError(f"{folder / name}: the column {column} is not what the artifacts say.")


def _equal(stored: pa.ChunkedArray, expected: pa.ChunkedArray, allowed: float) -> bool:
    """Whether two columns hold the same, or numbers that differ by no more than is allowed."""
    if stored.equals(expected):
        return True
    if not allowed or stored.type != expected.type or not pa.types.is_floating(stored.type):
        return False
    gaps = pc.fill_null(pc.abs(pc.subtract(stored, expected)), 0.0)
    return stored.is_null().equals(expected.is_null()) and pc.all(pc.less_equal(gaps, allowed)).as_py()


SAME_SETTING = ("setting", "integrator", "num_points", "num_certificate", "bound", "guess", "epsilon")
"""Columns in which the rows of a mixture's seeds agree."""


def check_certificates(
    rows: Sequence[Mapping[str, Any]],
    content: Mapping[str, Any],
    price: Price,
    integrations: Mapping[str, Integration],
    mistakes: Mapping[str, torch.Tensor],
) -> None:
    """Every certificate, and those of mixtures over seeds; `mistakes` has an entry where there is a mean classifier."""
    suite, members = content["suite"], dict[tuple[Any, ...], list[Mapping[str, Any]]]()
    asked = suite["certificates"]

    def sources(some: Sequence[Mapping[str, Any]]) -> tuple[list[Integration], list[torch.Tensor]]:
        names = [row["integration"] for row in some]
        own = [integrations[row["integration"]] for row in some if row["integrator"] is not None]
        return own, [mistakes[name] for name in names if name in mistakes]

    for row in rows:
        if row["epsilon"] not in asked["epsilon"] or row["guess"] not in [None, *asked["guess"]]:
            raise VerifyError(f"A row is at ε = {row['epsilon']}, guess {row['guess']}, which is not in the plan.")
        check_row(row, *sources([row]), budget_of(row, suite, price), asked["delta"])
        members.setdefault(tuple(row[column] for column in SAME_SETTING), []).append(row)
    for seeds in members.values():
        check_mixture(seeds, *sources(seeds), budget_of(seeds[0], suite, price), asked["report"])


def verify(folder: Path, store: Store, root: Path, archive: Path | None = None) -> str:
    """Check everything; returns a sentence about what was checked. `archive`: where an archive was unpacked."""
    plan, content = read_plan(folder, root)
    price = check_price(plan, content)
    try:
        dataset = load(plan.summary.name, root)
    except DataError:
        if archive is not None:
            raise
        dataset = None
    if dataset is not None:
        check_images(plan, dataset)
    rows = read_rows(folder / TABLE_FILES[0])
    check_ledger(plan, content, store, rows)
    failures = {row["integration"]: row["error"] for row in rows if row["error"] is not None}
    wanted = [planned for planned in wanted_integrations(plan, store) if planned.identity not in failures]
    means = [digest for digest in plan.means if digest.mean not in failures]
    digests = list(dict.fromkeys([*means, *(planned.posterior.digest for planned in wanted)]))
    sources = read_sources(digests, plan, store, dataset, archive)
    check_tables(folder, collect(plan, store, sources, failures), archive is not None)
    integrations = check_integrations(wanted, store, sources, archive is not None)
    certificates = [row for row in rows if row["error"] is None]
    owners = {digest.mean: digest for digest in means} | {one.identity: one.posterior.digest for one in wanted}
    errors = {name: mistakes_of(sources[digest].certificate) for name, digest in owners.items()}
    mistakes = {name: wrong for name, wrong in errors.items() if wrong is not None}
    check_certificates(certificates, content, price, integrations, mistakes)
    networks = {digest.network for digest in digests}
    checked = f"{counted(len(certificates), 'certificate')} of {counted(len(wanted), 'integration')}"
    sentence = f"{checked} and {counted(len(networks), 'network')} agree."
    sentence += " (Figures, tables and page are drawn from these and were not looked at.)"
    if alone := without_twin({row["bound"] for row in certificates}):
        sentence += f" No second computation is known here for: {', '.join(alone)}."
    entries = {planned.posterior.digest.entry for planned in wanted}
    if alone := sorted(entry.name for entry in entries - METHOD_TWINS.keys()):
        sentence += f" Digests, KL and risks were computed again by the methods' own code only for: {', '.join(alone)}."
    if failures:
        sentence += f" {len(failures)} results failed and claim nothing."
    if dataset is None:
        sentence += " The data are not here, so labels and networks were not checked."
    for part in plan.certificate_parts:
        sentence += f" {looks_of(store, part).sentence(part)}"
    return sentence


def verify_archive(path: Path, root: Path) -> str:
    """Check an archive; returns a sentence about what was checked."""
    with tempfile.TemporaryDirectory(prefix="ldaf_bench_verify_") as name:
        folder = Path(name)
        unpack(path, folder)
        return verify(folder / "results", open_store(folder / "store"), root, folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify a results folder or an archive; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.verify", description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", help="a results folder, like results/digits, or its URI; or an archive, like digits.tar"
    )
    parser.add_argument("--store", default="store", help="where the artifacts are: a folder or a URI (default: store)")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    options = parser.parse_args(arguments)
    archived = Path(options.folder).is_file() or options.folder.endswith(".tar")
    try:
        if archived:
            sentence = verify_archive(Path(options.folder), options.root)
        else:
            folder = open_store(options.folder).fetch("", [PLAN_FILE, SEAL_FILE, *TABLE_FILES])
            sentence = verify(folder, open_store(options.store), options.root)
    except StoreError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except (VerifyError, ArtifactError, DataError) as error:
        print(f"NOT verified: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        if isinstance(error, ArtifactError) and not archived:
            advice = "If it is, run the suite again: it makes what is missing or damaged."
            print(f"Is {printable(options.store)} the right --store? {advice}", file=sys.stderr)
        return 1
    say(Console(), sentence)
    return 0


if __name__ == "__main__":
    sys.exit(main())
