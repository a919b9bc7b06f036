"""How many data are worked on at once: as many as keep temporaries small, whatever n, c, m and q."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 1 << 20
"""Numbers in one temporary of a chunk: 4 to 8 MB. Larger ones gain nothing, and leave the cache."""


def chunk_length(numbers_per_datum: int, total: int | None = None) -> int:
    """The number of data whose temporaries together hold about `total` (or `NUMBERS`) numbers; at least one."""
    return max(1, (total or NUMBERS) // max(1, numbers_per_datum))


def chunks(num_data: int, numbers_per_datum: int, total: int | None = None) -> Iterator[slice]:
    """Consecutive slices of that length that cover all data."""
    length = chunk_length(numbers_per_datum, total)
    for begin in range(0, num_data, length):
        yield slice(begin, min(begin + length, num_data))
