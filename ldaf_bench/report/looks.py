"""What seal.json says: how often a certificate part has been looked at, beside what the plan paid for; and retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from ldaf_bench.report.names import text
from ldaf_bench.report.records import LARGEST, SEAL_FILE, Document, Records

COUNTS = {"looks": "time", "plans": "plan", "networks": "trained network", "priors": "prior"}
"""What the ledger counts for a part, and what one of it is called."""
MOST_PARTS = 20
"""Certificate parts of one folder that are named: a plan has one for each split."""
UNCOVERED = "Choosing between looks is not covered by any certificate."


def looks_sentences(records: Records) -> list[str]:
    """A sentence for each certificate part of each folder. The file may hold anything, so nothing in it is trusted."""
    if records.results.empty:
        return []
    return list(dict.fromkeys(sentence for seal in records.seals for sentence in _sentences(seal, records)))


RETRIES = {"networks": "training", "posteriors": "posterior", "store": "call to the store"}
"""What a run counts as begun again, and what one of it is called."""


def retry_sentences(records: Records) -> list[str]:
    """What was lost and begun again while the results were made; nothing if nothing was."""
    counts = [_counts(seal.content.get("retries"), RETRIES) for seal in records.seals if isinstance(seal.content, dict)]
    some = [", ".join(word for word in found.values() if not word.startswith("0 ")) for found in counts]
    return [
        f"Begun again because a process, a machine or the store was away: {words}. No number depends on it."
        for words in some
        if words
    ]


def _sentences(seal: Document, records: Records) -> list[str]:
    content = seal.content if isinstance(seal.content, dict) else {}
    parts = content.get("looks")
    known = {str(part): _counts(found) for part, found in parts.items()} if isinstance(parts, dict) else {}
    if not known or not all(known.values()):
        reason = seal.problem or f"{SEAL_FILE} in {seal.folder} does not say it."
        return [text(f"It is not known how often the certificate part has been looked at: {reason}")]
    plan = str(content.get("plan"))
    paid = paid_for(records.results[records.results["plan"].eq(plan)])
    said = [
        f"Certificate part {text(part, 13)} had been looked at {counts['looks']} when this was written "
        f"({counts['plans']}, {counts['networks']}, {counts['priors']}); this plan paid {paid}. {UNCOVERED}"
        for part, counts in list(known.items())[:MOST_PARTS]
    ]
    return said + (
        [f"The seal has {len(known) - MOST_PARTS} more certificate parts."] if len(known) > MOST_PARTS else []
    )


def _counts(found: Any, words: Mapping[str, str] = COUNTS) -> dict[str, str]:
    """The counts of one part in words; empty if they are no counts."""
    if not isinstance(found, Mapping):
        return {}
    numbers = {name: found.get(name) for name in words}
    if not all(type(value) is int and 0 <= value <= LARGEST for value in numbers.values()):
        return {}
    return {name: f"{value} {_plural(words[name], value)}" for name, value in numbers.items()}


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
