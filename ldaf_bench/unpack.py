"""Go on from somebody's archive: `python -m ldaf_bench.unpack digits.tar [--store store]`

Copies the networks, posteriors, integrations and looks of an archive into a store. What the store has already stays as
it is. No network is trained again. Posteriors and integrations rest on digests, which are computed anew; a processor of
another kind rounds them otherwise, and then `run` makes what rests on them again. To check what an archive claims, run
`verify` on it first.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ldaf_bench.artifacts import ArtifactError, StoreError
from ldaf_bench.messages import printable, say
from ldaf_bench.store.archive import unpack
from ldaf_bench.store.store import Store, open_store


def copy_artifacts(folder: Path, store: Store) -> list[str]:
    """Copy every artifact below a folder into a store, unless it is there; returns the keys of those copied."""
    keys = sorted({str(manifest.parent.relative_to(folder)) for manifest in folder.rglob("*.json")})
    missing = [key for key in keys if not store.exists(key)]
    for key in missing:
        with store.put(key) as directory:
            shutil.copytree(folder / key, directory, dirs_exist_ok=True)
    return missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Unpack an archive into a store; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.unpack", description=__doc__.split("\n")[0])
    parser.add_argument("archive", type=Path, help="an archive, like digits.tar")
    parser.add_argument("--store", default="store", help="where they go: a folder or a URI (default: store)")
    options = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="ldaf_bench_unpack_") as name:
            unpack(options.archive, Path(name))
            store = open_store(options.store)
            copied = copy_artifacts(Path(name) / "store", store)
    except (ArtifactError, StoreError, OSError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    networks = sum(key.startswith("networks/") for key in copied)
    say(Console(), f"New in {store.name}: {len(copied)} artifacts, networks among them: {networks}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
