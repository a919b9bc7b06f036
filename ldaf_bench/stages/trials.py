r"""trials: a run of Ray Tune, with which all networks are trained and all posteriors swept.

The store is the truth: a trial first looks whether what it is to make is there, and Tune's own state is not kept. What
cannot be made is reported as a failure and stops nobody else. A process that is lost is started again by Tune.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.tune.search import BasicVariantGenerator
from ray.tune.search.sample import Domain

from ldaf_bench.artifacts import StoreError, store_error
from ldaf_bench.data.splits import LeakError
from ldaf_bench.messages import clean_reason
from ldaf_bench.stages.session import RayError

MAX_LOSSES = 3
"""Times that a trial whose process was lost is started again."""
NO_AXIS = "-"
"""In a configuration: the trial's method has no such axis, or it has no effect beside the others."""
FATAL = {error.__name__: error for error in (StoreError, LeakError)}
"""What ends the whole run, whichever trial finds it."""
Config = Mapping[str, Any]
See = Callable[[Config, Mapping[str, Any]], object]


def failure_of(error: Exception) -> dict[str, Any]:
    """What a trial reports when its work cannot be done. A lost process is raised again, for Tune to start another."""
    if isinstance(error, RayError) and not isinstance(error, ray.exceptions.RayTaskError):
        raise error
    cause: BaseException = store_error(error) or getattr(error, "cause", None) or error
    name = type(cause).__name__
    if name in FATAL:
        return {"fatal": name, "message": str(cause)}
    return {"failure": f"{name}: {' '.join(str(cause).split())[:500]}"}


@dataclass
class Ended:
    """What became of the trials that did not end well."""

    failures: list[tuple[Config, str]] = field(default_factory=list)
    losses: int = 0
    """Processes that were lost and started again."""


class _Watch(tune.Callback):  # type: ignore[misc]
    """Sees every report in the driver. Tune pickles callbacks, and this one has nothing to take along."""

    def __init__(self, ended: Ended, see: See, at_end: Callable[[Config], object]) -> None:
        self.ended, self.see, self.at_end = ended, see, at_end

    def __reduce__(self) -> tuple[type[tune.Callback], tuple[()]]:
        return tune.Callback, ()

    def on_trial_result(self, iteration, trials, trial, result, **_: Any) -> None:  # type: ignore[no-untyped-def]
        if "failure" in result:
            self.ended.failures.append((trial.config, result["failure"]))
        self.see(trial.config, result)

    def on_trial_complete(self, iteration, trials, trial, **_: Any) -> None:  # type: ignore[no-untyped-def]
        self.at_end(trial.config)

    def on_trial_recover(self, iteration, trials, trial, **_: Any) -> None:  # type: ignore[no-untyped-def]
        self.ended.losses += 1

    def on_trial_error(self, iteration, trials, trial, **_: Any) -> None:  # type: ignore[no-untyped-def]
        error = trial.get_error()
        why = clean_reason(error) if error is not None else "its process was lost"
        told = {"failure": f"Lost {MAX_LOSSES + 1} times: {why}"}
        self.ended.failures.append((trial.config, told["failure"]))
        self.see(trial.config, told)
        self.at_end(trial.config)


class _StopAtFatal(tune.Stopper):  # type: ignore[misc]
    """Ends all trials once one has found that no other can succeed."""

    def __init__(self) -> None:
        self.found: Mapping[str, Any] | None = None

    def __call__(self, trial_id: str, result: Mapping[str, Any]) -> bool:
        if "fatal" in result:
            self.found = result
        return False

    def stop_all(self) -> bool:
        return self.found is not None


def run_trials(
    trainable: Callable[..., None],
    work: Any,
    cells: Sequence[Config] | Mapping[str, Any],
    need: Callable[[Config], Mapping[str, float]],
    at_once: int,
    *,
    see: See = lambda config, result: None,
    at_end: Callable[[Config], object] = lambda config: None,
    callbacks: Sequence[tune.Callback] = (),
    notes: Path | None = None,
    strategy: Mapping[str, Any] | None = None,
) -> Ended:
    """Run `trainable(config, work=work)` for every configuration, so many at a time, and return when all have ended.

    `cells` are the configurations themselves; or a space, of which `strategy` (Tune's searcher, scheduler and number of
    samples) tries some. `at_once` 0: as many as the cluster has places for, also on machines that join later. Then some
    trials wait, for which Tune keeps processes; else it would end one of two that are done together. `need` says what a
    trial's process needs. `see` gets every report, `at_end` the configuration of every trial that has ended. Callbacks
    are those of other people; what they write beside a trial's results goes below `notes`, which stays.
    """
    ended, stopper = Ended(), _StopAtFatal()
    if not isinstance(cells, Mapping):
        names = dict.fromkeys(name for cell in cells for name in cell)
        points = [{name: cell.get(name, NO_AXIS) for name in names} for cell in cells]
        generator = BasicVariantGenerator(points_to_evaluate=points, max_concurrent=at_once)
        strategy = {"num_samples": len(points), "search_alg": generator}
        cells = {name: _Given() for name in names}
    scratch = Path(tempfile.mkdtemp(prefix="ldaf_bench_tune_"))
    try:
        tune.Tuner(
            tune.with_resources(
                tune.with_parameters(trainable, work=work),
                lambda config: tune.PlacementGroupFactory([dict(need(config))]),
            ),
            param_space=dict(cells),
            tune_config=tune.TuneConfig(
                reuse_actors=True,
                trial_dirname_creator=_folder_of,
                **(strategy or {}),
            ),
            run_config=tune.RunConfig(
                name=trainable.__name__,
                storage_path=str((notes or scratch).resolve()),
                verbose=0,
                stop=stopper,
                failure_config=tune.FailureConfig(max_failures=MAX_LOSSES),
                callbacks=[_Watch(ended, see, at_end), *callbacks],
            ),
        ).fit()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if stopper.found is not None:
        raise FATAL[stopper.found["fatal"]](stopper.found["message"])
    return ended


class _Given(Domain):  # type: ignore[misc]
    """The domain of an axis whose every value is given: nothing is drawn, and nothing copied with every trial."""

    def is_valid(self, value: Any) -> bool:
        return True


def _folder_of(trial: Any) -> str:
    return str(trial.trial_id)
