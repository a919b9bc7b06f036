"""What a column of the results is: heading, unit, meaning, axis or not. Stated once, read wherever it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Kind = type[str] | type[int] | type[float] | type[bool] | type[datetime]
Prefer = Literal["first", "largest", "smallest", "most"]
"""Which value of an axis stands for it where one has to be taken: the first of its registry (without one, of the suite
file), the largest, the smallest (a null is smaller than any number), or the one with most rows. The rule never looks at
a result."""


def _unordered() -> tuple[str, ...]:
    return ()


@dataclass(frozen=True)
class Column:
    """A column of results.parquet or curves.parquet."""

    name: str
    kind: Kind
    about: str
    """Its meaning, in one sentence; stored in the Parquet file."""
    heading: str = ""
    """As short as a phone needs it; empty: the name in plain words."""
    unit: str = ""
    axis: str = ""
    """Its place in a suite file, if a suite can sweep it; `*` stands for any method."""
    prefer: Prefer = "most"
    names: Callable[[], tuple[str, ...]] = _unordered
    """All names that it may hold, in the order of their registry; looked up when asked, because registries grow."""
    null_means: str = ""
    """What a null stands for, if it is a value of its own."""

    @property
    def title(self) -> str:
        """The heading, or the name in plain words."""
        return self.heading or self.name.replace("_", " ")
