"""What is said to people: nothing that comes from a file may act on their terminal, and nobody reads a traceback."""

from __future__ import annotations

import re

from rich.console import Console

ESCAPE_CODE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""A colour or a movement of the cursor."""
WRITTEN = re.compile(r"\\+(n|r|t|x1b|u001b|033)")
"""A control character that became text on its way: errors of workers are quoted inside errors, level by level."""
MEANT = {"n": "\n", "r": "\n", "t": " "}
LONGEST = 300


def printable(text: str) -> str:
    """The text with all escaped that could move a cursor, hide text or fail to print: names may hold anything."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def clean_reason(error: BaseException) -> str:
    """Why something failed on another machine, in one line, without colours.

    Ray's errors may hold tracebacks of several processes, each inside the other: what was raised stands in the last
    line. Without a traceback, the first line says it, and details follow.
    """
    text = ESCAPE_CODE.sub("", WRITTEN.sub(lambda found: MEANT.get(found[1], "\x1b"), str(error)))
    lines = [_unquoted(" ".join(line.split())) for line in text.splitlines()]
    said = [line for line in lines if any(character.isalnum() for character in line)] or [type(error).__name__]
    line = printable(said[-1 if any(line.startswith('File "') for line in said) else 0])
    return line if len(line) <= LONGEST else f"{line[:LONGEST]} …"


def _unquoted(line: str) -> str:
    """The line without quotation marks and closing brackets of what it was quoted in."""
    line = line.strip("\\'\" ")
    while line.endswith((")", "]", "}")) and line.count(line[-1]) > line.count("([{"[")]}".index(line[-1])]):
        line = line[:-1].rstrip("\\'\" ")
    return line


def say(console: Console, sentence: str) -> None:
    """A sentence on a line of its own, as it is."""
    console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """1:02:03, or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(count: int, word: str) -> str:
    """1 network, 2 networks; 1 call to the store, 2 calls to the store."""
    first, space, rest = word.partition(" to ")
    return f"{count} {word}" if count == 1 else f"{count} {first}s{space}{rest}"
