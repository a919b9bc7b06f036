"""What seal.json says: how often a certificate part has been looked at, beside what the plan paid for; and retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ldaf_bench.report.names import text
from ldaf_bench.report.records import LARGEST, SEAL_FILE, Records

COUNTS = {"looks": "time", "plans": "plan", "networks": "trained network", "priors": "prior"}
"""What the ledger counts for a part, and what one of it is called."""
MOST_PARTS = 20
"""Certificate parts of one folder that are named: a plan has one for each split."""
UNCOVERED = "Choosing between looks is not covered by any certificate."


def looks_sentences(records: Records) -> list[str]:
    """A sentence for each certificate part. The files may hold anything, so nothing in them is trusted."""
    if records.results.empty:
        return []
    parts: dict[str, list[tuple[dict[str, int], str]]] = {}
    said: dict[str, None] = {}
    for seal in records.seals:
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
    return [_sentence(text(part, 13), looks) for part, looks in parts.items()] + list(said)


def _sentence(part: str, looks: list[tuple[dict[str, int], str]]) -> str:
    """One part, with what each plan that looked at it paid for. Stores that do not know of each other count apart."""
    most, paid = max(looks, key=lambda look: look[0]["looks"])
    times, *others = _words(most, COUNTS)
    ledger = f"had been looked at {times} when this was written ({', '.join(others)})"
    if len(looks) == 1:
        return f"Certificate part {part} {ledger}; this plan paid {paid}. {UNCOVERED}"
    ways = ", or ".join(dict.fromkeys(paid for _, paid in looks))
    return (
        f"Certificate part {part} is that of {len(looks)} plans of this page. By the largest count of their stores it "
        f"{ledger}. Each plan paid {ways}. {UNCOVERED}"
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
    return [f"{count} {_plural(words[name], count)}" for name, count in counts.items()]


def _plural(word: str, count: int | None) -> str:
    first, space, rest = word.partition(" to ")
    return word if count == 1 else f"{first}s{space}{rest}"


def paid_for(rows: pd.DataFrame) -> str:
    """What the plan of these rows paid for: a choice among events and integrations, or none."""
    if rows.empty:
        return "for what is not in these records"
    events, integrations = (int(rows[name].fillna(1).max()) for name in ("num_events", "num_integrations"))
    if max(events, integrations) == 1:
        return "for one look and for no choice (K = 1, J = 1)"
    return f"for one look and for a choice among K = {events} events and J = {integrations} guarantees of integrations"
