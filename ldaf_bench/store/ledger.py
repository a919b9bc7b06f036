"""The ledger of looks: every plan that was committed to on a certificate part, and every time its results were seen.

No K covers a choice after looking. So the store remembers, for each certificate part, which plans were written down and
when, and each time results were collected: on which networks with which weights (a network that was trained again has
the same name and other weights), and with how many priors. The ledger finds forgetfulness; it is no signature.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from ldaf_bench.artifacts import ArtifactError, fingerprint, read_manifest, write_manifest
from ldaf_bench.messages import counted
from ldaf_bench.store.store import Store, load_from

MANIFEST = "look.json"


class Looks(NamedTuple):
    """What a certificate part has been used for."""

    plans: int
    """Plans whose results were collected on it."""
    looks: int
    """Times that results were seen: a plan with other weights is another look."""
    networks: int
    """Different trained weights."""
    priors: int
    """Priors, added up over all looks."""

    def sentence(self, part: str) -> str:
        """For people."""
        of_plans, of_networks = counted(self.plans, "plan"), counted(self.networks, "trained network")
        what = f"{of_plans}, {of_networks} and {counted(self.priors, 'prior')} in all"
        said = f"Certificate part {part[:12]} has been looked at {counted(self.looks, 'time')}"
        return f"{said} ({what}). Choosing between looks is not covered by any certificate."


def _part(part: str) -> str:
    return f"ledger/{part[:16]}"


def _entry(path: Path) -> dict[str, Any]:
    return read_manifest(path, MANIFEST, ())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


def commit_plan(store: Store, part: str, plan: str, suite: str) -> str:
    """Write down that a plan is about to be run, unless it is written down already; returns when that was."""
    key = f"{_part(part)}/{plan}-planned"
    if not store.exists(key):
        with store.put(key) as directory:
            write_manifest(directory, MANIFEST, {"part": part, "plan": plan, "suite": suite, "planned": _now()})
    return str(load_from(store, _entry, key)["planned"])


def note_look(store: Store, part: str, plan: str, suite: str, weights: Mapping[str, str], num_priors: int) -> None:
    """Write down that results of a plan were collected on these weights; the same look is written once."""
    key = f"{_part(part)}/{plan}-{fingerprint(dict(weights))}"
    if not store.exists(key):
        content = {"part": part, "plan": plan, "suite": suite, "weights": dict(weights), "num_priors": num_priors}
        with store.put(key) as directory:
            write_manifest(directory, MANIFEST, {**content, "collected": _now()})


def ledger_keys(store: Store, part: str) -> list[str]:
    """The keys of all entries of a certificate part."""
    return [f"{_part(part)}/{name}" for name in store.children(_part(part))]


def read_ledger(store: Store, part: str) -> list[dict[str, Any]]:
    """All entries of a certificate part, the oldest first."""
    entries = [load_from(store, _entry, key) for key in ledger_keys(store, part)]
    for entry in entries:
        if entry.get("part") != part:
            raise ArtifactError(f"The ledger of certificate part {part[:12]} has an entry of another part.")
    return sorted(entries, key=lambda entry: str(entry.get("planned") or entry["collected"]))


def looks_of(store: Store, part: str) -> Looks:
    """How often this certificate part has been looked at."""
    seen = [entry for entry in read_ledger(store, part) if "collected" in entry]
    weights = {value for entry in seen for value in entry["weights"].values()}
    priors = sum(int(entry["num_priors"]) for entry in seen)
    return Looks(len({entry["plan"] for entry in seen}), len(seen), len(weights), priors)


def planned_when(store: Store, part: str, plan: str) -> str | None:
    """When a plan was written down; None if it never was."""
    times = [entry["planned"] for entry in read_ledger(store, part) if entry["plan"] == plan and "planned" in entry]
    return str(times[0]) if times else None
