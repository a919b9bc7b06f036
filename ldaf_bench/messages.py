"""What is said to people: nothing that comes from a file may act on their terminal."""

from __future__ import annotations

from rich.console import Console


def printable(text: str) -> str:
    """The text with all escaped that could move a cursor, hide text or fail to print: names may hold anything."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def say(console: Console, sentence: str) -> None:
    """A sentence on a line of its own, as it is."""
    console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)
