"""The whole way: `python -m ldaf_bench.run suites/digits.yaml` runs suite, plan, train, digest, sweep, collect, report.

Whatever is in the store is not made again: a run that was stopped resumes, and a suite that was extended costs only
what is new. Exit code 0 if all is well, 1 if results failed (the table says why), 2 if nothing could be started.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ldaf_bench.artifacts import ArtifactError, exclusive, file_sha256, whole_file
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import DATASETS, load, summarize
from ldaf_bench.data.splits import PARTS, SplitError, require_different_images
from ldaf_bench.messages import printable, say
from ldaf_bench.pipeline import Run
from ldaf_bench.plan import PLAN_FILE, SEAL_FILE, Plan, make_plan
from ldaf_bench.report.folder import report
from ldaf_bench.report.records import ReportError
from ldaf_bench.report.terminal import show_results
from ldaf_bench.results.collect import TABLE_FILES, collect
from ldaf_bench.stages.session import RayError, ResourceError, fitted, ray_is_there, ray_session
from ldaf_bench.stages.train import ConfigError, check
from ldaf_bench.store.ledger import commit_plan, looks_of
from ldaf_bench.store.networks import network_path
from ldaf_bench.store.posteriors import integration_path, posterior_path
from ldaf_bench.suite import Suite, SuiteError, read_suite

UNCERTIFIED = "No integrator of the suite fits {}: its posteriors get no certificate."


def show_plan(plan: Plan, store: Path, console: Console) -> None:
    """What would be done, what is there already, and what it costs in confidence."""
    asked = plan.suite.certificates
    table = Table(title=f"Plan of the suite {plan.suite.suite}", box=box.SIMPLE)
    for heading in ("what", "all", "found"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, paths in (
        ("networks", [network_path(store, network.identity) for network in plan.networks]),
        ("posteriors", [posterior_path(store, posterior.identity) for posterior in plan.posteriors]),
        ("integrations", [integration_path(store, one.identity) for one in plan.integrations]),
    ):
        table.add_row(what, str(len(paths)), str(sum(path.is_dir() for path in paths)))
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
    lines += [
        f"No integrator of the suite fits {name}: its posteriors get no certificate." for name in plan.uncertified
    ]
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
        lines.append(f"Resources of {stage}: workers {have.workers}, GPUs per worker {have.gpus_per_worker:g}.")
    own = plan.suite.resources.posteriors
    many = f"{own.at_once} processes" if own.at_once else "as many processes as fit"
    lines.append(f"Resources of posteriors: {many}, {own.cpus} cores each.")
    for line in lines:
        say(console, line)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.run", description=__doc__.split("\n")[0])
    parser.add_argument("suite", type=Path, help="a suite file, as in suites/")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where artifacts go (default: store)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where results go (default: results)")
    parser.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or a local one)")
    parser.add_argument("--dry-run", action="store_true", help="print the plan and end")
    parser.add_argument("--verbose", action="store_true", help="show what Ray logs")
    return parser.parse_args(arguments)


def plan_of(options: argparse.Namespace) -> Plan:
    """The plan of the suite file, after checking all that can be checked before anything starts."""
    suite = read_suite(options.suite)
    summary = summarize(suite.data.dataset, options.root)
    try:
        plan = make_plan(suite, summary)
        for network in plan.networks:
            check(network.config, plan.summary, suite.resources.train.workers)
    except SplitError as error:
        raise SuiteError(f"{options.suite}, data.certificate or data.test: {error}") from error
    except ConfigError as error:
        raise SuiteError(f"{options.suite}, networks or methods: {error}") from error
    return plan


def missing_gpus(suite: Suite, options: argparse.Namespace) -> str:
    """A sentence if the suite asks for GPUs that this machine does not have and no cluster is named."""
    if options.address or os.environ.get("RAY_ADDRESS") or ray_is_there():
        return ""
    here = torch.cuda.device_count()
    for stage in ("train", "digest"):
        asked = getattr(suite.resources, stage)
        wanted = asked.workers * asked.gpus_per_worker
        if wanted > here:
            return (
                f"{options.suite}, resources.{stage}.gpus_per_worker: the suite asks for {wanted:g} GPUs and this "
                f"machine has {here}. Set it to 0, or join a cluster with --address."
            )
    return ""


def write_plan(plan: Plan, store: Path, folder: Path) -> None:
    """Commit to the plan before anything runs: in the store's ledger, and as plan.json, which results never touch."""
    when = {part: commit_plan(store, part, plan.identity, plan.suite.suite) for part in plan.certificate_parts}
    content = json.dumps({**plan.describe(), "planned": when}, indent=1) + "\n"
    path = folder / PLAN_FILE
    if not path.is_file() or path.read_text(encoding="utf-8") != content:
        with whole_file(path) as temporary:
            temporary.write_text(content, encoding="utf-8")


def write_seal(plan: Plan, store: Path, folder: Path) -> None:
    """After the results: checksums of all files, and how often the certificate parts have been looked at."""
    files = {name: file_sha256(folder / name) for name in (PLAN_FILE, *TABLE_FILES)}
    looks = {part: looks_of(store, part)._asdict() for part in plan.certificate_parts}
    with whole_file(folder / SEAL_FILE) as temporary:
        text = json.dumps({"plan": plan.identity, "files": files, "looks": looks}, indent=1)
        temporary.write_text(text + "\n", encoding="utf-8")


def execute(options: argparse.Namespace, console: Console) -> int:
    """Do what the command line asks for; returns the exit code."""
    plan = plan_of(options)
    suite, cannot = plan.suite, missing_gpus(plan.suite, options)
    if options.dry_run:
        show_plan(plan, options.store, console)
        if cannot:
            say(console, f"This machine cannot run it: {cannot}")
        return 0
    if cannot:
        raise SuiteError(cannot)
    dataset = load(suite.data.dataset, options.root)
    if DATASETS[suite.data.dataset].sha256 is None:  # nobody has looked through people's own data
        for splits in {network.splits.hash("certificate"): network.splits for network in plan.networks}.values():
            require_different_images(dataset, splits)
    folder = options.results / suite.suite
    with ExitStack() as stack:
        stack.enter_context(exclusive(options.store / f"{suite.suite}.lock", "Another process is running this suite"))

        def start_ray() -> None:
            if not ray_is_there():
                console.print("Starting Ray …" if not options.address else "Joining Ray …")
                stack.enter_context(ray_session(options.address, verbose=options.verbose))
                for resources in (suite.resources.train, suite.resources.digest):
                    fitted(resources)

        for name in plan.uncertified:
            say(console, UNCERTIFIED.format(name))
        write_plan(plan, options.store, folder)
        run = Run(plan, dataset, options.store, console, start_ray)
        run.train_and_digest()
        run.sweep()
        tables = collect(plan, options.store, run.sources, run.failures)
        tables.write(folder)
        run.note_looks()
        write_seal(plan, options.store, folder)
        page = report([folder], folder)
    show_results(tables.results, console)
    for part in plan.certificate_parts:
        run.say(looks_of(options.store, part).sentence(part))
    run.say(f"Written to {folder}: {', '.join(TABLE_FILES)}, {page.name}.")
    if run.failures:
        print(f"{len(run.failures)} results failed; the column `error` says why.", file=sys.stderr)
    for trouble in run.troubles:
        print(printable(trouble), file=sys.stderr)
    return 1 if run.failures or run.troubles else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite; returns the exit code."""
    options = parse(arguments)
    console = Console()
    try:
        return execute(options, console)
    except (SuiteError, ConfigError, DataError, ArtifactError, ResourceError, ReportError, OSError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    except RayError as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = printable(lines[-1]) if lines else type(error).__name__
        print(f"Ray failed ({reason}). Run the same command again to resume.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. Run the same command again to resume.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
