"""The whole way: `python -m ldaf_bench.run suites/digits.yaml` — suite, plan, train, push, sweep, collect, report.

Whatever is in the store already is not made again: a run that was stopped goes on where it was, and a suite that was
widened costs what is new. Exit code 0 if all is well, 1 if cells failed (the results say why), 2 if nothing could be
started.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table

from ldaf_bench.artifacts import ArtifactError, exclusive, if_valid
from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.datasets import load, summarize
from ldaf_bench.data.splits import Part
from ldaf_bench.messages import printable
from ldaf_bench.methods.pushed import Pushed, load_pushed, origin_of, pushed_path
from ldaf_bench.methods.store import Prior, load_prior, prior_path
from ldaf_bench.methods.training import DivergenceError
from ldaf_bench.models.classifier import LDAFClassifier
from ldaf_bench.plan import Plan, PlannedPosterior, PlannedPrior, make_plan
from ldaf_bench.report.folder import report
from ldaf_bench.report.records import ReportError
from ldaf_bench.results.collect import (
    CURVES_FILE,
    RESULTS_FILE,
    Sources,
    collect,
    convergence_names,
    tolerance_of,
    write_table,
)
from ldaf_bench.results.store import (
    cell_path,
    convergence_path,
    load_cell,
    load_convergence,
    load_posterior,
    load_search,
    posterior_hash,
    posterior_path,
    save_search,
    search_path,
)
from ldaf_bench.stages.certify import Flow
from ldaf_bench.stages.push import push
from ldaf_bench.stages.session import ResourceError, fitted, ray_is_there, ray_session
from ldaf_bench.stages.sweep import Job, Key, Shared, Space, share, sweep
from ldaf_bench.stages.train import ConfigError, TrainingError, check, train
from ldaf_bench.suite import SuiteError, read_suite

PRIOR_DATA = 2000
"""So many prior points are enough to choose the scale of the covariance `scaled`."""


@dataclass
class Run:
    """One run of a plan: loads what is there, makes what is missing, and starts Ray only if something is."""

    plan: Plan
    dataset: Dataset
    store: Path
    console: Console
    start_ray: Callable[[], None]
    sources: dict[tuple[str, float | None], Sources] = field(default_factory=dict)
    prior_data: dict[tuple[str, float | None], Pushed] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """Why a cell is not there."""

    def say(self, sentence: str) -> None:
        """Something to a person."""
        self.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def train_and_push(self) -> None:
        """All priors and their pushforwards; what fails costs its own cells only."""
        for number, planned in enumerate(self.plan.priors, 1):
            try:
                prior = self._prior(planned, number)
                for tolerance in self.plan.suite.pushforwards.tolerance:
                    self._sources(planned, prior, tolerance)
            except (DivergenceError, TrainingError) as error:
                self.say(f"Prior {planned.identity} failed: {error}")
                for cell in self.plan.cells:
                    if cell.prior == planned.identity:
                        self.failures[cell.identity] = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"

    def _prior(self, planned: PlannedPrior, number: int) -> Prior:
        prior = if_valid(load_prior, prior_path(self.store, planned.identity), self.say)
        if prior is not None:
            return prior
        self.start_ray()
        config = planned.config
        kind = (
            f"{config.backbone} with {config.flow}" if config.method == "ldaf" else f"{config.backbone}, deterministic"
        )
        self.say(f"Training prior {number} of {len(self.plan.priors)}: {kind}, seed {config.seed}.")
        return train(config, self.dataset, self.store, self.plan.suite.resources.train, self.console)

    def _sources(self, planned: PlannedPrior, prior: Prior, tolerance: float | None) -> None:
        key = (planned.identity, tolerance)
        certificate, test = (self._pushed(planned, prior, part, tolerance) for part in ("certificate", "test"))
        self.sources[key] = Sources(prior, certificate, test)
        if prior.config.method == "ldaf" and "scaled" in self.plan.suite.posteriors.covariance:
            self.prior_data[key] = self._pushed(planned, prior, "prior", tolerance, PRIOR_DATA)

    def _pushed(
        self, planned: PlannedPrior, prior: Prior, part: Part, tolerance: float | None, at_most: int | None = None
    ) -> Pushed:
        origin = origin_of(prior, planned.splits, part, tolerance, at_most)
        found = if_valid(load_pushed, pushed_path(self.store, origin), self.say)
        if found is not None:
            return found
        self.start_ray()
        resources = self.plan.suite.resources.push
        return push(
            prior, self.dataset, part, self.store, resources, self.console, tolerance=tolerance, at_most=at_most
        )

    def jobs(self) -> list[Job]:
        """What the sweep has to do: posteriors and cells that are not there."""
        owners: list[tuple[str, PlannedPosterior | None]] = [(prior.identity, None) for prior in self.plan.priors]
        owners += [(posterior.prior, posterior) for posterior in self.plan.posteriors]
        found = (self._job(*owner) for owner in owners)
        return [job for job in found if job is not None]

    def _job(self, prior: str, posterior: PlannedPosterior | None) -> Job | None:
        cells = self.plan.cells_of(posterior, prior)
        if not cells or cells[0].identity in self.failures:
            return None
        tolerance = tolerance_of(cells[0], self.plan)
        source = self.sources[prior, tolerance].certificate.path.name
        stored, run = None, None
        if posterior is not None:
            path = posterior_path(self.store, posterior.identity)
            stored = if_valid(lambda path: load_posterior(path, source), path, self.say)
            for name in convergence_names(self.plan, posterior):
                path = convergence_path(self.store, name)
                asked = self.plan.suite.convergence
                if asked and if_valid(lambda path: load_convergence(path, source), path, self.say) is None:
                    run = (name, asked)
        there = {}
        for cell in cells:
            path = cell_path(self.store, cell.identity)
            record = if_valid(lambda path: load_cell(path, source), path, self.say)
            if record is not None:
                there[cell.identity] = str(record["posterior"])
        right = "" if posterior is None else posterior_hash(stored.start, stored.gaussian) if stored else None
        complete = run is None and right is not None and all(there.get(cell.identity) == right for cell in cells)
        return Job((prior, tolerance), source, cells, there, complete, posterior, stored, run)

    def shared(self, jobs: Sequence[Job]) -> dict[Key, Shared]:
        """What the jobs need, put into the object store once."""
        found = {}
        for key in dict.fromkeys(job.key for job in jobs):
            prior, certificate, test = self.sources[key]
            data = self.prior_data.get(key)
            model, flow = prior.model(), None
            if isinstance(model, LDAFClassifier):
                flow = Flow(model.flow, model.flow_parameter.detach(), model.horizon)
            found[key] = Shared(share(certificate), share(test), None if data is None else share(data), flow)
        return found

    def sweep(self) -> None:
        """All posteriors and cells that are not there; those that a search comes by, if there is to be one."""
        jobs = self.jobs()
        if self.plan.suite.search is None:
            self._sweep([job for job in jobs if not job.complete])
            return
        tried = if_valid(load_search, search_path(self.store, self.plan), self.say)
        if tried is None:
            fits = [job for job in jobs if job.posterior is not None]
            numbers = {job.posterior.identity: number for number, job in enumerate(fits) if job.posterior is not None}
            self._sweep(fits, Space(self.plan, numbers))
            jobs = self.jobs()
            failed = {cell.posterior for cell in self.plan.cells if cell.identity in self.failures}
            ended = failed | {job.posterior for job in jobs if job.complete}
            tried = frozenset(posterior.identity for posterior in ended if posterior is not None)
            save_search(self.store, self.plan, tried)
        missing = [job for job in jobs if not job.complete]
        self._sweep([job for job in missing if job.posterior is None or job.posterior.identity in tried])

    def _sweep(self, jobs: list[Job], space: Space | None = None) -> None:
        if not jobs:
            return
        self.start_ray()
        if space is None:
            self.say(f"Fitting and certifying: {len(jobs)} posteriors and mean classifiers.")
        else:
            self.say(f"Searching: {space.asked.samples} times among {len(jobs)} posteriors.")
        resources, shared = self.plan.suite.resources.cells, self.shared(jobs)
        for failure in sweep(jobs, shared, self.store, resources, self.console, space):
            job = jobs[failure.job]
            for cell in job.cells:
                path = cell_path(self.store, cell.identity)
                if if_valid(lambda path, job=job: load_cell(path, job.source), path, self.say) is None:  # type: ignore[misc]
                    self.failures[cell.identity] = failure.message


def show_plan(plan: Plan, store: Path, console: Console) -> None:
    """What would be done, and what is there already."""
    asked = plan.suite.certificates
    stochastic = [cell for cell in plan.cells if cell.posterior is not None]
    table = Table(title=f"Plan of the suite {plan.suite.suite}", box=box.SIMPLE)
    for heading in ("what", "all", "there already"):
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
    if asked.report == "best" and stochastic:
        k, integrations = stochastic[0].num_priors, stochastic[0].num_integrations
        lines.append(
            f"The best may be reported: every bound is taken at ε/{k}, every integration at δ′/{integrations}."
        )
    else:
        lines.append("Nothing is chosen by its certificate (report: all), so that nothing has to be paid for choosing.")
    if plan.suite.search is not None:
        lines.append(
            f"Search: {plan.suite.search.searcher} is asked {plan.suite.search.samples} times for one of the "
            f"{len(plan.posteriors)} posteriors; all of them are paid for."
        )
    for stage in ("train", "push"):
        have = getattr(plan.suite.resources, stage)
        lines.append(f"Resources to {stage}: {have.workers} workers, {have.gpus_per_worker:g} GPUs each.")
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


def execute(options: argparse.Namespace, console: Console) -> int:
    """Do what the command line asks for; returns the exit code."""
    suite = read_suite(options.suite)
    plan = make_plan(suite, summarize(suite.data.dataset, options.root))
    for prior in plan.priors:
        check(prior.config, plan.summary, suite.resources.train.workers)
    if options.dry_run:
        show_plan(plan, options.store, console)
        return 0
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
    (folder / "plan.json").write_text(json.dumps(plan.describe(), indent=1) + "\n", encoding="utf-8")
    page = report([folder], folder)
    show_results(results, console)
    run.say(f"Written to {folder}: {RESULTS_FILE}, {CURVES_FILE}, {page.name}.")
    if run.failures:
        print(f"{len(run.failures)} of {len(plan.cells)} cells failed; the column `error` says why.", file=sys.stderr)
        return 1
    return 0


def show_results(results: pa.Table, console: Console) -> None:
    """The certificates at the first ε: a line for every classifier, a column for every bound."""
    frame = results.to_pandas()
    frame = frame[frame["error"].isna() & frame["certified"].fillna(False).astype(bool)]
    if frame.empty:
        return
    epsilon = frame["epsilon"].iloc[0]
    frame = frame[frame["epsilon"] == epsilon].assign(
        test=frame["test_risk"].fillna(frame["mean_test_error"]),
        classifier=frame["flow"].where(frame["method"] == "ldaf", frame["method"]),
        covariance=frame["covariance"].fillna("mean"),
    )
    bounds = list(dict.fromkeys(frame["bound"]))
    table = Table(
        title=f"Certified at ε = {epsilon:g}, and error on the test part; in %, mean over seeds and other settings",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("flow", no_wrap=True)
    table.add_column("covar.", no_wrap=True)
    for heading in ("test", *bounds):
        table.add_column(heading, justify="right", overflow="fold")
    for keys, rows in frame.groupby(["classifier", "covariance"], sort=False):
        means = rows.groupby("bound")["value"].mean().to_dict()
        values = [rows["test"].mean(), *(means.get(bound) for bound in bounds)]
        table.add_row(*keys, *("" if value is None else f"{100 * value:.2f}" for value in values))
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite; returns the exit code."""
    options = parse(arguments)
    console = Console()
    try:
        return execute(options, console)
    except (SuiteError, ConfigError, DataError, ArtifactError, ResourceError, ReportError, OSError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Start it again to go on with what is missing.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
