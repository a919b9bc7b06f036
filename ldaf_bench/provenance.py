"""What computed a result: versions and commit, written where it is computed and never restamped."""

from __future__ import annotations

import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

from ldaf_bench import __version__

LIBRARIES = ("ray", "torch", "torchvision")


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
    """The commit of the source, if it is a git checkout; with a + if files were changed."""
    try:
        name = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return name.stdout.strip()
