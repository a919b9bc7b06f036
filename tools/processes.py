"""Processes of our own Ray, and of nobody else's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path


def ancestors(process: int) -> Iterator[int]:
    """The process, its parent, and so on."""
    while process > 1:
        yield process
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def workers(names: str) -> list[tuple[int, str]]:
    """(number, name) of Ray's workers below this process that do something of these names, a regular expression."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        number = int(path.parent.name)
        try:
            match = re.match(rf"ray::.*({names})".encode(), path.read_bytes())
            if match and os.getpid() in ancestors(number):
                found.append((number, match[1].decode()))
        except OSError:  # it ended meanwhile
            continue
    return sorted(found)


def workers_called(name: str) -> list[int]:
    """Process numbers of those that do this."""
    return [number for number, _ in workers(name)]
