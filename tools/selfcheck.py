"""Does this machine compute what it should? `python -m tools.selfcheck [FILE.npz …] [--device cuda]`

Reads float64 ground truth, computes every quantity in it with the package's own code in float64 and float32, and
prints the worst relative errors. Exit code 0: all within tolerance; 1: one beyond it; 2: nothing was checked.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ldaf_bench.theory.gaussian import DiagonalRankOne, kl_divergence
from ldaf_bench.theory.integrate import evaluate
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.pushforward import class_factor, logit_factor, push

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}

KEYS = (
    "n", "c", "T", "omega", "features", "labels", "prior_d", "prior_q", "posterior_d", "posterior_q",
    "mean_logits", "mean_v", "cov", "cov_prior", "kl", "z", "ce", "err",
)  # fmt: skip
"""What a file of ground truth holds; `tools/fixtures/README.md` says in which shapes."""


class BadFixtureError(ValueError):
    """A file that is not ground truth in the fixtures' format."""


def read(path: Path) -> dict[str, Tensor]:
    """The arrays of one file. Refuses pickled content, missing keys and unreadable files."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            missing = [key for key in KEYS if key not in archive]
            if missing:
                raise BadFixtureError(f"{path} lacks {', '.join(missing)}.")
            arrays = {key: np.asarray(archive[key]) for key in KEYS}
    except OSError as error:
        raise BadFixtureError(f"{path} cannot be read: {error.strerror or error}.") from error
    except BadFixtureError:
        raise
    except (ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:  # pickles are never loaded
        raise BadFixtureError(f"{path} is not an .npz archive of plain arrays.") from error
    return check(path, arrays)


def check(path: Path, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    """The arrays as tensors, after refusing shapes, types and values that no ground truth has."""
    for key, array in arrays.items():
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise BadFixtureError(f"{path}: {key} must hold finite real numbers.")
    if arrays["features"].ndim != 3 or arrays["z"].ndim != 2:
        raise BadFixtureError(f"{path}: features must be of shape (batch, n, c), and z of shape (points, c−1).")
    (m, n, c), points = arrays["features"].shape, len(arrays["z"])
    k = n * (c - 1)
    shapes = {
        "n": (), "c": (), "T": (), "kl": (), "omega": (n, c, n, c), "labels": (m,), "prior_d": (k,), "prior_q": (k,),
        "posterior_d": (k,), "posterior_q": (k,), "mean_logits": (m, c), "mean_v": (m, c), "cov": (m, c, c),
        "cov_prior": (m, c, c), "z": (points, c - 1), "ce": (m,), "err": (m,),
    }  # fmt: skip
    for key, shape in shapes.items():
        if arrays[key].shape != shape:
            raise BadFixtureError(f"{path}: {key} must be of shape {shape}, but is of shape {arrays[key].shape}.")
    return {key: torch.as_tensor(array.astype(np.float64)) for key, array in arrays.items()}


def relative_error(found: Tensor, truth: Tensor) -> float:
    """The worst over data of max|found − truth| / max|truth|; where the truth is 0, the absolute error."""
    found, truth = found.detach().cpu().double().reshape(truth.shape), truth.double()
    rows = (max(1, truth.shape[0] if truth.ndim else 1), -1)
    gap, size = (found - truth).abs().reshape(rows).amax(-1), truth.abs().reshape(rows).amax(-1)
    return float((gap / torch.where(size > 0, size, torch.ones_like(size))).max())


def kronecker_part(omega: Tensor) -> Tensor | None:
    """W if Ω = W ⊗ I_c, so that the S-flow is checked as well; `None` otherwise."""
    weight = omega[:, 0, :, 0]
    product = torch.einsum("ij,kl->ikjl", weight, torch.eye(omega.shape[1], dtype=omega.dtype))
    return weight.contiguous() if torch.equal(product, omega) else None


def errors(truth: Mapping[str, Tensor], flow: str, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Relative error of every quantity in the file, computed along the package's own path."""
    omega = truth["omega"] if flow == "daf" else kronecker_part(truth["omega"])
    assert omega is not None
    features = truth["features"].to(device, dtype)
    pushed = push(flow, omega.to(device, dtype), features, float(truth["T"]))
    posterior, prior = (
        DiagonalRankOne(truth[f"{name}_d"].to(device), truth[f"{name}_q"].to(device)) for name in ("posterior", "prior")
    )
    integrals = problem(pushed, posterior, truth["labels"].long().to(device))
    points = truth["z"].T.contiguous()

    def node_covariance(gaussian: DiagonalRankOne) -> Tensor:
        factor = class_factor(logit_factor(pushed, gaussian))
        return factor @ factor.mT

    found = {
        "mean_logits": pushed.mean,
        "mean_v": pushed.mean - features[:, 0],
        "cov": node_covariance(posterior),
        "cov_prior": node_covariance(prior),
        "kl": kl_divergence(posterior, prior),
        "ce": evaluate(integrals, points, "cross_entropy"),
        "err": evaluate(integrals, points, "zero_one"),
    }
    return {key: relative_error(value, truth[key]) for key, value in found.items()}


def shipped() -> list[Path]:
    """The files of ground truth in this repository."""
    return sorted(Path(__file__).with_name("fixtures").glob("*.npz"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.selfcheck", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.npz", help="default: those in tools/fixtures")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, … (default: cpu)")
    options = parser.parse_args(arguments)
    console = Console()
    try:
        torch.zeros(1, device=options.device)
        truths = {path: read(path) for path in options.files or shipped()}
    except BadFixtureError as error:
        print(error, file=sys.stderr)
        return 2
    except (RuntimeError, AssertionError) as error:
        print(f"The device {options.device!r} cannot be used: {str(error).splitlines()[0]}", file=sys.stderr)
        return 2

    worst: dict[tuple[str, torch.dtype], tuple[float, str]] = {}
    failures = []
    for path, truth in truths.items():
        flows = ["daf"] if kronecker_part(truth["omega"]) is None else ["daf", "sflow"]
        for dtype, flow in itertools.product(TOLERANCE, flows):
            where = f"{path.stem} {flow}"
            try:
                found = errors(truth, flow, dtype, options.device)
            except (ValueError, ArithmeticError, RuntimeError) as error:
                failures.append(f"{path} with {flow} in {_name(dtype)} could not be computed: {error}")
                continue
            for quantity, value in found.items():
                worst[quantity, dtype] = max(worst.get((quantity, dtype), (-1.0, "")), (value, where))
                if not value <= TOLERANCE[dtype]:
                    failures.append(f"{path}: {quantity} with {flow} in {_name(dtype)} is off by {value:.1e}.")

    table = Table(title=f"Worst relative errors over {len(truths)} files on {options.device}", box=box.SIMPLE)
    table.add_column("quantity")
    for dtype, limit in TOLERANCE.items():
        table.add_column(f"{_name(dtype)}\n≤ {limit:.0e}", justify="right")
        table.add_column("worst in", style="dim", no_wrap=True)
    for quantity in dict.fromkeys(quantity for quantity, _ in worst):
        cells = []
        for dtype, limit in TOLERANCE.items():
            value, where = worst.get((quantity, dtype), (math.nan, "not computed"))
            cells += [f"{value:.1e}" if value <= limit else f"[bold red]{value:.1e}[/]", where]
        table.add_row(quantity, *cells)
    console.print(table)
    for line in failures:
        print(line, file=sys.stderr)
    if failures:
        print(f"{len(failures)} checks failed: do not trust results from this machine.", file=sys.stderr)
    else:
        console.print(f"All within tolerance, with torch {torch.__version__}.")
    return 1 if failures else 0


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


if __name__ == "__main__":
    sys.exit(main())
