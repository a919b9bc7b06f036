"""One file that anybody can check: `python -m ldaf_bench.pack results/digits [--store store] [--out digits.tar]`

Holds plan, tables, networks, posteriors, integrations and the ledger of looks. Digests are large, so that it holds only
the logits of mean classifiers: `python -m ldaf_bench.verify digits.tar` computes the rest again from weights and data.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ldaf_bench.artifacts import ArtifactError, StoreError
from ldaf_bench.data.dataset import DataError
from ldaf_bench.messages import printable, say
from ldaf_bench.pipeline import digests_of
from ldaf_bench.plan import PLAN_FILE, SEAL_FILE, Plan
from ldaf_bench.results.collect import TABLE_FILES
from ldaf_bench.store.archive import write_archive
from ldaf_bench.store.digests import MANIFEST, digest_key, digest_path, load_digest, logits_array
from ldaf_bench.store.ledger import ledger_keys
from ldaf_bench.store.networks import load_network, network_path
from ldaf_bench.store.posteriors import convergence_path, integration_path, posterior_path, search_path
from ldaf_bench.store.store import Store, load_from, open_store
from ldaf_bench.verify.checks import VerifyError
from ldaf_bench.verify.folder import archived_logits, archived_record, read_plan


def keys_of(plan: Plan, store: Store) -> Iterator[str]:
    """Every artifact that the results of a plan rest on, digests apart."""
    yield from (network_path(network.identity) for network in plan.networks)
    yield from (posterior_path(posterior.identity) for posterior in plan.posteriors)
    yield from (integration_path(integration.identity) for integration in plan.integrations)
    curves = (plan.convergence_of(posterior) for posterior in plan.posteriors)
    yield from (convergence_path(name) for name in curves if name is not None)
    yield search_path(plan.identity)
    for part in plan.certificate_parts:
        yield from ledger_keys(store, part)


def files_of(folder: Path, store: Store, plan: Plan) -> dict[str, Path]:
    """All files of the archive, by their names in it. What failed or was not tried is not there."""
    files = {f"results/{name}": folder / name for name in (PLAN_FILE, SEAL_FILE, *TABLE_FILES)}
    for key in keys_of(plan, store):
        if store.exists(key):
            files |= {f"store/{key}/{file.name}": file for file in store.get(key).iterdir()}
    for planned in plan.digests:
        if not store.exists(network_path(planned.network)):
            continue
        network = load_from(store, load_network, network_path(planned.network))
        for part, at_most in digests_of(plan, planned):
            splits = plan.network[planned.network].splits
            digest = digest_key(network, splits, planned.method, planned.spec, part, at_most)
            if not store.exists(digest_path(digest)):
                continue
            found = load_from(store, load_digest, digest_path(digest))
            files[archived_record(digest)] = found.path / MANIFEST
            array = logits_array(planned.entry, found.tensors)
            if array is not None and part != "prior":
                files[archived_logits(digest)] = found.path / f"{array}.npy"
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Pack a results folder; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.pack", description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a results folder, like results/digits")
    parser.add_argument("--store", default="store", help="where the artifacts are: a folder or a URI (default: store)")
    parser.add_argument("--root", type=Path, default=Path("data"), help="where the data are (default: data)")
    parser.add_argument("--out", type=Path, help="the archive (default: the suite's name with .tar, here)")
    options = parser.parse_args(arguments)
    try:
        plan, _ = read_plan(options.folder, options.root)
        out = options.out or Path(f"{plan.suite.suite}.tar")
        files = files_of(options.folder, open_store(options.store), plan)
        write_archive(out, files)
    except (VerifyError, ArtifactError, StoreError, DataError, OSError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    size = out.stat().st_size / 1e6
    say(Console(), f"{len(files)} files are in {out} ({size:.1f} MB). Check it with python -m ldaf_bench.verify {out}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
