"""What the ledger says in seal.json: how often a certificate part has been looked at, beside what the plan paid for."""

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


def _counts(found: Any) -> dict[str, str]:
    """The counts of one part in words; empty if they are no counts."""
    if not isinstance(found, Mapping):
        return {}
    numbers = {name: found.get(name) for name in COUNTS}
    if not all(type(value) is int and 0 <= value <= LARGEST for value in numbers.values()):
        return {}
    return {name: f"{value} {COUNTS[name]}{'' if value == 1 else 's'}" for name, value in numbers.items()}


def paid_for(rows: pd.DataFrame) -> str:
    """What the plan of these rows paid for: a choice among events and integrations, or none."""
    if rows.empty:
        return "for what is not in these records"
    events, integrations = (int(rows[name].fillna(1).max()) for name in ("num_events", "num_integrations"))
    if max(events, integrations) == 1:
        return "for one look and for no choice (K = 1, J = 1)"
    return f"for one look and for a choice among K = {events} events and J = {integrations} integrations"
