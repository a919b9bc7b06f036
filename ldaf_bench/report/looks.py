"""What seal.json says: how often a certificate part has been looked at, beside what the plan paid for; and retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ldaf_bench.messages import counted
from ldaf_bench.report.names import text
from ldaf_bench.report.records import LARGEST, SEAL_FILE, Records

COUNTS = {"looks": "time", "plans": "plan", "networks": "trained network", "priors": "prior"}
"""What the ledger counts for a part, and what one of it is called."""
FEW = 3
"""Suites or certificate parts that the page names in sentences; of more there is a table."""
MOST_PARTS = 20
"""Certificate parts of one folder that are named: a plan has one for each split."""
ONE_LOOK = "for one look and for "
"""How it begins what a plan paid for."""
UNCOVERED = "Choosing between looks is not covered by any certificate."


Look = tuple[dict[str, int], str]
"""What one plan's store had counted for a part, and what the plan paid for."""


def looked_at(records: Records) -> tuple[dict[str, list[Look]], list[str]]:
    """Each certificate part with the plans that looked at it, and what is not known, in sentences.

    The files may hold anything, so nothing in them is trusted.
    """
    parts: dict[str, list[Look]] = {}
    said: dict[str, None] = {}
    for seal in records.seals if not records.results.empty else ():
        content = seal.content if isinstance(seal.content, dict) else {}
        found = content.get("looks")
        known = {str(part): _counts(counts) for part, counts in found.items()} if isinstance(found, dict) else {}
        if not known or not all(known.values()):
            reason = seal.problem or f"{SEAL_FILE} in {seal.folder} does not say it."
            said[text(f"It is not known how often the certificate part has been looked at: {reason}")] = None
            continue
        paid = paid_for(records.results[records.results["plan"].eq(str(content.get("plan")))])
        for part, counts in list(known.items())[:MOST_PARTS]:
            parts.setdefault(part, []).append((counts, paid))
        if len(known) > MOST_PARTS:
            said[f"The seal has {len(known) - MOST_PARTS} more certificate parts."] = None
    return parts, list(said)


def largest(looks: list[Look]) -> dict[str, int]:
    """The largest count of a part. Stores that do not know of each other count apart."""
    return max((counts for counts, _ in looks), key=lambda counts: counts["looks"])


def ways(looks: list[Look]) -> str:
    """What the plans that looked at a part paid for, each way once."""
    return ", or ".join(dict.fromkeys(paid for _, paid in looks))


def looks_sentences(records: Records) -> list[str]:
    """A sentence for each certificate part; if there are many, one that leads to the table of them."""
    parts, said = looked_at(records)
    if len(parts) > FEW:
        return [f"These suites use {len(parts)} certificate parts, listed below. {UNCOVERED}", *said]
    return [_sentence(text(part, 13), looks) for part, looks in parts.items()] + said


def _sentence(part: str, looks: list[Look]) -> str:
    times, *others = _words(largest(looks), COUNTS)
    ledger = f"had been looked at {times} when this was written ({', '.join(others)})"
    if len(looks) == 1:
        return f"Certificate part {part} {ledger}; this plan paid {ways(looks)}. {UNCOVERED}"
    return (
        f"Certificate part {part} is that of {len(looks)} plans of this page. By the largest count of their stores it "
        f"{ledger}. Each plan paid {ways(looks)}. {UNCOVERED}"
    )


RETRIES = {"networks": "training", "posteriors": "posterior", "store": "call to the store"}
"""What a run counts as begun again, and what one of it is called."""


def retry_sentences(records: Records) -> list[str]:
    """What was lost and begun again while the results were made; nothing if nothing was."""
    seals = [seal.content for seal in records.seals if isinstance(seal.content, dict)]
    counts = [_counts(content.get("retries"), RETRIES) for content in seals]
    sums = {name: sum(found.get(name, 0) for found in counts) for name in RETRIES}
    words = ", ".join(_words({name: count for name, count in sums.items() if count}, RETRIES))
    return (
        [f"Begun again because a process, a machine or the store was away: {words}. No number depends on it."]
        if words
        else []
    )


def _counts(found: Any, words: Mapping[str, str] = COUNTS) -> dict[str, int]:
    """The counts of one part; empty if they are no counts."""
    if not isinstance(found, Mapping):
        return {}
    numbers = {name: found.get(name) for name in words}
    good = {name: value for name, value in numbers.items() if type(value) is int and 0 <= value <= LARGEST}
    return good if len(good) == len(words) else {}


def _words(counts: Mapping[str, int], words: Mapping[str, str]) -> list[str]:
    return [counted(count, words[name]) for name, count in counts.items()]


def paid_for(rows: pd.DataFrame) -> str:
    """What the plan of these rows paid for: a choice among events and integrations, or none."""
    if rows.empty:
        return "for what is not in these records"
    events, integrations = (int(rows[name].fillna(1).max()) for name in ("num_events", "num_integrations"))
    if max(events, integrations) == 1:
        return f"{ONE_LOOK}no choice (K = 1, J = 1)"
    return f"{ONE_LOOK}a choice among K = {events} events and J = {integrations} guarantees of integrations"
