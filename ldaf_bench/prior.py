"""One prior, trained and pushed forward: `python -m ldaf_bench.prior CONFIG.yaml [--root DIR] [--store DIR]`

Trains the prior of the YAML file on Ray, pushes it forward on the certificate and the test part, and says the error of
its mean classifier. Whatever is in the store already is not made again; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import load
from ldaf_bench.messages import printable
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.training import DivergenceError
from ldaf_bench.methods.yaml_file import FileError, explain, read_yaml
from ldaf_bench.resources import Resources
from ldaf_bench.stages.progress import duration
from ldaf_bench.stages.push import push
from ldaf_bench.stages.session import ResourceError, ray_session
from ldaf_bench.stages.train import ConfigError, TrainingError, check, train


class PriorFile(BaseModel):
    """The YAML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prior: PriorConfig
    resources: Resources = Resources()


def read_file(path: Path) -> PriorFile:
    """The file's content; a `ConfigError` with one sentence about the first thing that is wrong."""
    try:
        return PriorFile.model_validate(read_yaml(path))
    except FileError as error:
        raise ConfigError(str(error)) from error
    except ValidationError as error:
        raise ConfigError(f"{path}, {explain(error, PriorFile)}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, push, say what came out; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.prior", description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="a YAML file with `prior` and, if you like, `resources`")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where artifacts go (default: store)")
    parser.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or a local one)")
    parser.add_argument("--verbose", action="store_true", help="show what Ray logs")
    options = parser.parse_args(arguments)
    console = Console()

    def say(sentence: str) -> None:
        console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    try:
        file = read_file(options.file)
        dataset = load(file.prior.dataset, options.root)
        check(file.prior, dataset.summary, file.resources.workers)
        with ray_session(options.address, verbose=options.verbose):
            prior = train(file.prior, dataset, options.store, file.resources, console)
            seconds, points = prior.record["training"]["seconds"], prior.record["splits"]["prior"]["size"]
            say(f"Prior {prior.identity}: trained for {duration(seconds)} on {points} images.")
            # Nobody is told the certificate part's error: whoever chose among priors by it would have to pay.
            push(prior, dataset, "certificate", options.store, file.resources, console)
            test = push(prior, dataset, "test", options.store, file.resources, console)
            say(f"Mean classifier: {test.mean_error:.2%} error on the test part of {len(test.labels)}.")
    except (ConfigError, DataError, ArtifactError, ResourceError, DivergenceError, TrainingError, OSError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Start it again to go on from the last checkpoint.", file=sys.stderr)
        return 130
    say(f"Written to {options.store}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
