"""What computed a result: versions and commit, written where it is computed and never restamped."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ldaf_bench import __version__

LIBRARIES = ("ray", "torch", "torchvision")
COMMIT = "LDAF_BENCH_COMMIT"
"""Environment variable: the commit, in processes of a cluster, whose copy of the package has no .git."""


def provenance() -> dict[str, str]:
    """Versions of what matters, and the commit of the source."""
    return {
        "ldaf_bench": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
        "commit": commit(),
    }


@cache
def commit() -> str:
    """The commit of the source, if it is a git checkout; with a + if files of the package were changed.

    On a cluster only the package, the suites and .git are there, maybe of another owner.
    """
    if given := os.environ.get(COMMIT):
        return given
    try:
        name = _git("rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(*arguments: str) -> str:
    command = ["git", "-c", "safe.directory=*", "--no-optional-locks", *arguments]
    place = Path(__file__).parent
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
