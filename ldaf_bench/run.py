"""The whole way: `python -m ldaf_bench.run suites/digits.yaml` — suite, plan, train, push, sweep, collect, report.

Whatever is in the store already is not made again: a run that was stopped goes on where it was, and a suite that was
widened costs what is new. Exit code 0 if all is well, 1 if cells failed (the results say why), 2 if nothing could be
started.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import torch
from rich import box
from rich.console import Console
from rich.table import Table

from ldaf_bench.artifacts import ArtifactError, exclusive, file_sha256, whole_file
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import load, summarize
from ldaf_bench.data.splits import SplitError
from ldaf_bench.messages import printable
from ldaf_bench.methods.store import prior_path
from ldaf_bench.pipeline import Run
from ldaf_bench.plan import Plan, make_plan
from ldaf_bench.report.comparison import summary
from ldaf_bench.report.folder import report
from ldaf_bench.report.records import ReportError
from ldaf_bench.results.collect import CURVES_FILE, RESULTS_FILE, collect, write_table
from ldaf_bench.results.store import cell_path, posterior_path
from ldaf_bench.stages.session import RayError, ResourceError, fitted, ray_is_there, ray_session
from ldaf_bench.stages.train import ConfigError, check
from ldaf_bench.suite import Suite, SuiteError, read_suite


def show_plan(plan: Plan, store: Path, console: Console) -> None:
    """What would be done, and what is there already."""
    asked = plan.suite.certificates
    fixed = [cell for cell in plan.cells if cell.posterior is None]
    stochastic = [cell for cell in plan.cells if cell.posterior is not None]
    table = Table(title=f"Plan of the suite {plan.suite.suite}", box=box.SIMPLE)
    for heading in ("what", "all", "found"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for what, paths in (
        ("priors", [prior_path(store, prior.identity) for prior in plan.priors]),
        ("posteriors", [posterior_path(store, posterior.identity) for posterior in plan.posteriors]),
        ("cells", [cell_path(store, cell.identity) for cell in plan.cells]),
    ):
        table.add_row(what, str(len(paths)), str(sum(path.is_dir() for path in paths)))
    console.print(table)
    splits = plan.priors[0].splits
    sizes = ", ".join(f"{len(getattr(splits, part))} {part}" for part in ("prior", "certificate", "test"))
    lines = [
        f"Data: {plan.summary.name}, {sizes} points.",
        f"Confidence: ε = {', '.join(f'{epsilon:g}' for epsilon in asked.epsilon)} for the bounds, "
        f"δ′ = {asked.delta:g} for the integrations.",
    ]
    if asked.report == "best":
        for kind in (fixed, stochastic):
            if kind:
                who = "mean" if kind is fixed else "stochastic"
                lines.append(
                    f"The best of the {who} classifiers may be reported: every bound is taken at ε/{kind[0].num_priors}"
                    + (f", every integration at δ′/{kind[0].num_integrations}." if kind is stochastic else ".")
                )
    else:
        lines.append("Nothing is chosen by its certificate (report: all), so that nothing has to be paid for choosing.")
    if plan.suite.search is not None:
        lines.append(
            f"Search: {plan.suite.search.searcher} is asked {plan.suite.search.samples} times for one of the "
            f"{len(plan.posteriors)} posteriors; all of them are paid for."
        )
    idle = [bound for bound in asked.bound if bound not in {b for cell in plan.cells for b in cell.bounds}]
    if idle:
        lines.append(f"No classifier of this suite can be certified by {', '.join(idle)}: these have no effect.")
    for stage in ("train", "push"):
        have = getattr(plan.suite.resources, stage)
        lines.append(f"Resources to {stage}: workers {have.workers}, GPUs of each {have.gpus_per_worker:g}.")
    cells = plan.suite.resources.cells
    many = f"{cells.at_once} processes" if cells.at_once else "as many processes as fit"
    lines.append(f"Resources to fit and certify: {many}, {cells.cpus} cores each.")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


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
        for prior in plan.priors:
            check(prior.config, plan.summary, suite.resources.train.workers)
    except SplitError as error:
        raise SuiteError(f"{options.suite}, data.certificate or data.test: {error}") from error
    except ConfigError as error:
        raise SuiteError(f"{options.suite}, priors: {error}") from error
    return plan


def missing_gpus(suite: Suite, options: argparse.Namespace) -> str:
    """A sentence if the suite asks for GPUs that this machine does not have and no cluster is named."""
    if options.address or os.environ.get("RAY_ADDRESS") or ray_is_there():
        return ""
    here = torch.cuda.device_count()
    for stage in ("train", "push"):
        asked = getattr(suite.resources, stage)
        wanted = asked.workers * asked.gpus_per_worker
        if wanted > here:
            return (
                f"{options.suite}, resources.{stage}.gpus_per_worker: {wanted:g} GPUs are asked for and this machine "
                f"has {here}: set it to 0, or join a cluster with --address."
            )
    return ""


def execute(options: argparse.Namespace, console: Console) -> int:
    """Do what the command line asks for; returns the exit code."""
    plan = plan_of(options)
    suite, cannot = plan.suite, missing_gpus(plan.suite, options)
    if options.dry_run:
        show_plan(plan, options.store, console)
        if cannot:
            console.print(f"It would be refused here: {cannot}", markup=False, highlight=False, soft_wrap=True)
        return 0
    if cannot:
        raise SuiteError(cannot)
    dataset = load(suite.data.dataset, options.root)
    folder = options.results / suite.suite
    with ExitStack() as stack:
        stack.enter_context(exclusive(options.store / f"{suite.suite}.lock", "This suite is being run already"))

        def start_ray() -> None:
            if not ray_is_there():
                console.print("Starting Ray …" if not options.address else "Joining Ray …")
                stack.enter_context(ray_session(options.address, verbose=options.verbose))
                for resources in (suite.resources.train, suite.resources.push):
                    fitted(resources)

        run = Run(plan, dataset, options.store, console, start_ray)
        run.train_and_push()
        run.sweep()
        results, curves = collect(plan, options.store, run.sources, run.failures)
        write_table(results, folder / RESULTS_FILE)
        write_table(curves, folder / CURVES_FILE)
        with whole_file(folder / "plan.json") as path:
            files = {name: file_sha256(folder / name) for name in (RESULTS_FILE, CURVES_FILE)}
            path.write_text(json.dumps({**plan.describe(), "files": files}, indent=1) + "\n", encoding="utf-8")
        page = report([folder], folder)
    show_results(results, console)
    run.say(f"Written to {folder}: {RESULTS_FILE}, {CURVES_FILE}, {page.name}.")
    if run.failures:
        print(f"{len(run.failures)} of {len(plan.cells)} cells failed; the column `error` says why.", file=sys.stderr)
    for trouble in run.troubles:
        print(printable(trouble), file=sys.stderr)
    return 1 if run.failures or run.troubles else 0


def show_results(results: pa.Table, console: Console) -> None:
    """The certificates in short: a line for every classifier, a column for every bound, in percent."""
    lines, about = summary(results.to_pandas())
    if lines.empty:
        return
    table = Table(box=None, padding=(0, 1, 0, 0))
    numbers = set(lines.columns[list(lines.columns).index("test") :])
    for name in lines.columns:
        if name in numbers:  # narrow terminals break the heading, never a number
            table.add_column(name, justify="right", overflow="fold", min_width=5)
        else:
            table.add_column(name, no_wrap=True)
    for line in lines.to_dict("records"):
        shown = (f"{100 * value:.2f}" if name in numbers else str(value) for name, value in line.items())
        table.add_row(*(text.replace("nan", "").replace("mean classifier", "(mean)") for text in shown))
    console.print(table)
    console.print(about, markup=False, highlight=False)


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
        print(f"Ray failed ({reason}). Start it again to go on with what is missing.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. Start it again to go on with what is missing.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
