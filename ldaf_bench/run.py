"""The whole way: `python -m ldaf_bench.run suites/digits.yaml` runs suite, plan, train, digest, sweep, collect, report.

Whatever is in the store is not made again: a run that was stopped resumes, and a suite that was extended costs only
what is new. Exit code 0 if all is well, 1 if results failed (the table says why), 2 if nothing could be started.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ldaf_bench.artifacts import ArtifactError, StoreError, file_sha256, plain_if_full, store_error, whole_file
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import summarize
from ldaf_bench.data.fetch import fetch
from ldaf_bench.data.splits import PARTS, SplitError
from ldaf_bench.messages import clean_reason, printable, say
from ldaf_bench.pipeline import Run, check_images, placement_on
from ldaf_bench.plan import PLAN_FILE, SEAL_FILE, Plan, make_plan
from ldaf_bench.rehearsal import rehearsed
from ldaf_bench.report.folder import REPORT_FILES, report
from ldaf_bench.report.records import ReportError
from ldaf_bench.report.terminal import show_results
from ldaf_bench.resources import Resources
from ldaf_bench.results.collect import TABLE_FILES
from ldaf_bench.stages.progress import FetchView
from ldaf_bench.stages.session import (
    RayError,
    ResourceError,
    cluster_address,
    ray_is_there,
    ray_session,
    wait_for_nodes,
)
from ldaf_bench.stages.train import ConfigError, check
from ldaf_bench.store.ledger import commit_plan, looks_of
from ldaf_bench.store.store import Store, open_store
from ldaf_bench.suite import Suite, SuiteError, read_suite

NOTES = "tune"
"""In a results folder: what people's callbacks of Ray Tune write beside the results of trials."""
UNCERTIFIED = "No integrator of the suite fits {}: its posteriors get no certificate."


def show_plan(plan: Plan, store: Store, console: Console) -> None:
    """What would be done, what is there already, and what it costs in confidence."""
    asked = plan.suite.certificates
    table = Table(title=f"Plan of the suite {plan.suite.suite}", box=box.SIMPLE)
    for heading in ("what", "all", "found"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, planned in (
        ("networks", [network.identity for network in plan.networks]),
        ("posteriors", [posterior.identity for posterior in plan.posteriors]),
        ("integrations", [one.identity for one in plan.integrations]),
    ):
        found = set(store.children(what))
        table.add_row(what, str(len(planned)), str(sum(identity in found for identity in planned)))
    console.print(table)
    splits = plan.networks[0].splits
    sizes = ", ".join(f"{len(getattr(splits, part))} {part}" for part in PARTS)
    lines = [
        f"Data: {plan.summary.name}, {sizes} points.",
        f"Methods: {', '.join(plan.suite.methods)}.",
        f"Confidence: ε = {', '.join(f'{epsilon:g}' for epsilon in asked.epsilon)} for the bounds, "
        f"δ′ = {asked.delta:g} for the integrations; ε + δ′ = "
        f"{', '.join(f'{epsilon + asked.delta:g}' for epsilon in asked.epsilon)} in total.",
    ]
    lines += [UNCERTIFIED.format(name) for name in plan.uncertified]
    if asked.report == "best":
        for who, kind, there in (
            ("mean classifiers", plan.budgets("mean")[0], bool(plan.means)),
            ("stochastic classifiers", plan.budgets("posterior")[0], bool(plan.integrations)),
        ):
            if there:
                lines.append(
                    f"report: best. The best of the {who} may be reported: each bound is evaluated at "
                    f"ε/{kind.num_events}, each integration charged at δ′/{kind.num_integrations}."
                )
    else:
        lines.append("report: all. No result is selected by its certificate, so no confidence is spent on selection.")
    if (search := plan.suite.search) is not None:
        lines.append(
            f"Search: {search.searcher} tries {search.samples} of {len(plan.posteriors)} posteriors; the budget covers "
            f"all {len(plan.posteriors)}."
        )
    for stage in ("train", "digest"):
        have = getattr(plan.suite.resources, stage)
        lines.append(f"Resources of {stage}: workers {have.workers}, GPUs per worker {have.gpus_per_worker}.")
    own = plan.suite.resources.posteriors
    many = f"{own.at_once} processes" if own.at_once else "as many processes as fit"
    lines.append(f"Resources of posteriors: {many}, {own.cpus} cores and {own.gpus} GPUs each.")
    for line in lines:
        say(console, line)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.run", description=__doc__.split("\n")[0])
    parser.add_argument("suite", type=Path, help="a suite file, as in suites/")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    parser.add_argument("--store", default="store", help="where artifacts go: a folder or a URI (default: store)")
    parser.add_argument("--results", default="results", help="where results go: a folder or a URI (default: results)")
    parser.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or a local one)")
    parser.add_argument(
        "--wait",
        type=float,
        default=10,
        help="minutes to wait for a cluster to have what the suite asks for",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan and end")
    parser.add_argument(
        "--rehearse",
        action="store_true",
        help="the suite from beginning to end in minutes: one epoch, the smallest counts, and points of the prior part "
        "in the place of the certificate part; results go to <suite>-rehearsal",
    )
    parser.add_argument("--verbose", action="store_true", help="show what Ray logs")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan of the suite file, after checking all that can be checked before anything starts."""
    suite = read_suite(options.suite)
    summary = summarize(suite.data.dataset, options.root)
    try:
        if options.rehearse:
            suite = rehearsed(suite, summary)
        plan = make_plan(suite, summary)
        for network in plan.networks:
            workers = suite.resources.train.workers
            check(network.config, plan.summary, 1 if workers == "auto" else workers)
    except SplitError as error:
        raise SuiteError(f"{options.suite}, data.certificate or data.test: {error}") from error
    except ConfigError as error:
        raise SuiteError(f"{options.suite}, networks or methods: {error}") from error
    return plan


def missing_gpus(suite: Suite, options: argparse.Namespace) -> str:
    """A sentence if the suite asks for GPUs that this machine does not have and no cluster is named."""
    if cluster_address(options.address) or ray_is_there():
        return ""
    here, asked = torch.cuda.device_count(), suite.resources
    wanted = {f"{stage}.gpus_per_worker": (one.workers, one.gpus_per_worker)
              for stage, one in (("train", asked.train), ("digest", asked.digest))}  # fmt: skip
    for place, (workers, gpus) in {**wanted, "posteriors.gpus": (1, asked.posteriors.gpus)}.items():
        total = 0 if gpus == "auto" else gpus * (1 if workers == "auto" else workers)
        if total > here:
            return (
                f"{options.suite}, resources.{place}: the suite asks for {total:g} GPUs and this machine has {here}. "
                "Leave it out (auto), or join a cluster with --address."
            )
    return ""


def write_plan(plan: Plan, store: Store, folder: Path) -> None:
    """Commit to the plan before anything runs: in the store's ledger, and as plan.json, which results never touch."""
    when = {part: commit_plan(store, part, plan.identity, plan.suite.suite) for part in plan.certificate_parts}
    content = json.dumps({**plan.describe(), "planned": when}, indent=1) + "\n"
    path = folder / PLAN_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != content:
        with whole_file(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def retries_of(run: Run, folder: Path) -> dict[str, int]:
    """What was begun again: trainings, posteriors (in earlier runs of this plan too), and calls of this run's store."""
    trained = {found.network.identity: found.network for found in run.sources.values()}
    starts = [len(network.record["training"].get("starts", ())) for network in trained.values()]
    before = 0
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        seal = json.loads((folder / SEAL_FILE).read_text(encoding="utf-8"))
        before = int(seal["retries"]["posteriors"]) if seal["plan"] == run.plan.identity else 0
    networks = sum(max(0, count - 1) for count in starts)
    return {"networks": networks, "posteriors": before + run.retries, "store": run.store.retries}


def write_seal(run: Run, folder: Path) -> None:
    """After the results: checksums of all files, how often the certificate parts have been looked at, and retries."""
    plan, store = run.plan, run.store
    files = {name: file_sha256(folder / name) for name in (PLAN_FILE, *TABLE_FILES)}
    looks = {part: looks_of(store, part)._asdict() for part in plan.certificate_parts}
    with whole_file(folder / SEAL_FILE) as temporary:
        content = {"plan": plan.identity, "files": files, "looks": looks, "retries": retries_of(run, folder)}
        text = json.dumps(content, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def execute(options: argparse.Namespace, console: Console, callbacks: Sequence[Any] = ()) -> int:
    """Do what the command line asks for; returns the exit code."""
    plan = plan_of(options)
    store, results = open_store(options.store), open_store(options.results)
    suite, cannot = plan.suite, missing_gpus(plan.suite, options)
    if options.dry_run:
        show_plan(plan, store, console)
        if cannot:
            say(console, f"This machine cannot run it: {cannot}")
        return 0
    if cannot:
        raise SuiteError(cannot)
    with FetchView(console, suite.data.dataset, options.root) as view:
        dataset = fetch(suite.data.dataset, options.root, say=view.say).dataset
    check_images(plan, dataset)
    with ExitStack() as stack:
        stack.enter_context(store.lock(suite.suite, "Another process is running this suite"))

        joins = cluster_address(options.address) is not None

        def start_ray() -> None:
            if not ray_is_there():
                console.print("Joining Ray …" if joins else "Starting Ray …")
                stack.enter_context(ray_session(options.address, verbose=options.verbose))
                own = suite.resources.posteriors.gpus
                asked = (suite.resources.train, suite.resources.digest, Resources(workers=1, gpus_per_worker=own))
                wait = options.wait if joins else 0
                wait_for_nodes(lambda some: placement_on(some, plan), asked, wait, partial(say, console))

        for name in plan.uncertified:
            say(console, UNCERTIFIED.format(name))
        folder = results.fetch(suite.suite, [PLAN_FILE])
        write_plan(plan, store, folder)
        results.send(suite.suite, [PLAN_FILE])
        run = Run(plan, dataset, store, console, start_ray, joins, callbacks, folder / NOTES if callbacks else None)
        run.make()
        tables = run.collect()
        tables.write(folder)
        run.note_looks()
        write_seal(run, folder)
        page = report([folder], folder)
        results.send(suite.suite, [*TABLE_FILES, *REPORT_FILES, SEAL_FILE])
    show_results(tables.results, console)
    if run.retries:
        run.say(f"{run.retries} posteriors were begun again after their process or machine was lost.")
    for part in plan.certificate_parts:
        run.say(looks_of(store, part).sentence(part))
    if retries := store.retries + results.retries:
        run.say(f"The store did not answer at first; {retries} calls were repeated.")
    run.say(f"Written to {results.name}/{suite.suite}: {', '.join(TABLE_FILES)}, {page.name}.")
    if suite.rehearsal:
        run.say(
            "This was a rehearsal, on points of the prior part: no certificate part was touched, and no number counts."
        )
    if run.failures:
        print(f"{len(run.failures)} results failed; the column `error` says why.", file=sys.stderr)
    for trouble in run.troubles:
        print(printable(trouble), file=sys.stderr)
    return 1 if run.failures or run.troubles else 0


def run_suite(suite: str | Path, *arguments: str, callbacks: Sequence[Any] = ()) -> int:
    """Run a suite as the command does; returns the exit code.

    `arguments` are those of the command line. `callbacks` are Ray Tune's own kind (`ray.tune.Callback`, loggers for
    MLflow and others): they see the trials of networks and of posteriors, whose configurations hold the axes by their
    names in the suite, and whose reports hold losses, risks and certificates.
    """
    return main([str(suite), *arguments], callbacks)


def main(arguments: Sequence[str] | None = None, callbacks: Sequence[Any] = ()) -> int:
    """Run a suite; returns the exit code."""
    options = parse(arguments)
    console = Console()
    try:
        with plain_if_full(Path.cwd()):
            return execute(options, console, callbacks)
    except (
        SuiteError, ConfigError, DataError, ArtifactError, StoreError, ResourceError, ReportError, OSError,
    ) as error:  # fmt: skip
        print(printable(" ".join(str(store_error(error) or error).split())), file=sys.stderr)
        return 2
    except RayError as error:
        print(f"Ray failed ({clean_reason(error)}). Run the same command again to resume.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to resume.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
