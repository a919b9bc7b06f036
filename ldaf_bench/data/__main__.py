"""Fetch, verify and describe a data set: `python -m ldaf_bench.data NAME --root DIR [--source SOURCE]`

Exit code 0 if the data are there and right, 2 with one sentence if not.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.datasets import DATASETS
from ldaf_bench.data.fetch import Fetched, fetch
from ldaf_bench.messages import printable


def sentences(fetched: Fetched, known: bool) -> Iterator[str]:
    """What there is to say about a data set."""
    dataset = fetched.dataset
    yield f"{dataset.name}: {fetched.source}."
    channels, height, width = dataset.images.shape[1:]
    test = f"the last {dataset.num_test} are the official test set" if dataset.num_test else "without a test set"
    yield f"{len(dataset)} images of {channels} × {height} × {width} (channels, height, width); {test}."
    yield f"Images per class: {counts(dataset)}."
    yield f"sha256 {dataset.sha256}, {'as it must be' if known else 'for you to note, as these data are your own'}."
    if fetched.path is not None:
        there = "The file is" if fetched.source == "already there" else "Written to"
        yield f"{there} {fetched.path} ({fetched.path.stat().st_size / 1e6:.0f} MB)."


def counts(dataset: Dataset, most: int = 20) -> str:
    """The classes and how many images each has, at most so many of them by name."""
    number = np.bincount(dataset.labels, minlength=dataset.num_classes)
    named = [f"{name} {count}" for name, count in zip(dataset.classes[:most], number[:most], strict=True)]
    rest = dataset.num_classes - len(named)
    return ", ".join([*named, *([f"and {rest} classes more"] if rest else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch and report; returns the exit code."""
    about = "; ".join(f"{name}: {entry.about}" for name, entry in DATASETS.items())
    parser = argparse.ArgumentParser(
        prog="python -m ldaf_bench.data", description=f"Fetch, verify and describe a data set. {about}."
    )
    parser.add_argument("name", choices=DATASETS, help="which data set")
    parser.add_argument(
        "--root", type=Path, default=Path("data"), help="where it is kept; for folder, what to read (default: data)"
    )
    parser.add_argument(
        "--source", default="auto", help="auto, torchvision, mirror, or a directory with the files (default: auto)"
    )
    options = parser.parse_args(arguments)

    def say(sentence: str) -> None:
        print(printable(sentence), flush=True)

    try:
        fetched = fetch(options.name, options.root, options.source, say)
        for sentence in sentences(fetched, DATASETS[options.name].sha256 is not None):
            say(sentence)
    except (DataError, OSError) as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; nothing half-written was left behind.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    # A polite kill takes the same way out as Ctrl-C, past all the cleaning up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
