"""One prior, trained and pushed forward: `python -m ldaf_bench.prior CONFIG.yaml [--root DIR] [--store DIR]`

Trains the prior of the YAML file on Ray, pushes it forward on the certificate and the test part, and says the error of
its mean classifier. Whatever is in the store already is not made again; a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from rich.console import Console

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import load
from ldaf_bench.data.splits import split
from ldaf_bench.methods.config import PriorConfig
from ldaf_bench.methods.store import load_prior
from ldaf_bench.methods.training import DivergenceError
from ldaf_bench.stages.progress import duration
from ldaf_bench.stages.push import load_pushed, push
from ldaf_bench.stages.session import ResourceError, Resources, ray_session
from ldaf_bench.stages.train import TrainingError, train


class PriorFile(BaseModel):
    """The YAML file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prior: PriorConfig
    resources: Resources = Resources()


def read_file(path: Path) -> PriorFile:
    """The file's content; `ValueError` with one sentence about the first thing that is wrong."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
        return PriorFile.model_validate(content)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise ValueError(f"{path}, {where}: {first['msg']}.") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, push, say what came out; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.prior", description=__doc__.split("\n")[2])
    parser.add_argument("file", type=Path, help="a YAML file with `prior` and, if you like, `resources`")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    parser.add_argument("--store", type=Path, default=Path("store"), help="where artifacts go (default: store)")
    parser.add_argument("--address", help="a running Ray cluster (default: RAY_ADDRESS, or a local one)")
    parser.add_argument("--verbose", action="store_true", help="show what Ray logs")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        file = read_file(options.file)
        dataset = load(file.prior.dataset, options.root)
        parts = file.prior.split
        splits = split(dataset, seed=parts.seed, certificate=parts.certificate, test=parts.test)
        with ray_session(options.address, verbose=options.verbose):
            path = train(file.prior, dataset, splits, options.store, file.resources, console)
            prior = load_prior(path)
            spent = prior.record["training"]["seconds"]
            console.print(f"Prior {prior.identity}: trained for {duration(spent)} on {len(splits.prior)} images.")
            for part in ("certificate", "test"):
                pushed = load_pushed(push(prior, dataset, splits, part, options.store, file.resources, console))
                console.print(
                    f"Mean classifier: {pushed.mean_error:.2%} error on the {part} part of {len(pushed.labels)}."
                )
    except (ValueError, DataError, ArtifactError, ResourceError, DivergenceError, TrainingError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Stopped. Start it again to go on from the last checkpoint.", file=sys.stderr)
        return 130
    console.print(f"Written to {options.store}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
