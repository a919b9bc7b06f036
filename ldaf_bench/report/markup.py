"""Tables as Markdown and as LaTeX: whatever a record holds, it is text there and nothing else."""

from __future__ import annotations

from ldaf_bench.messages import printable
from ldaf_bench.report.cells import Table

LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': r"\textquotedbl{}", "`": r"\textasciigrave{}", "[": "{[}", "]": "{]}", "±": r"$\pm$",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "λ": r"$\lambda$", "′": "$'$", "·": r"$\cdot$", "–": "--", "−": "$-$",
    "†": r"$\dagger$", "…": r"\dots{}",
}  # fmt: skip
"""Brackets too, because one after a line's end would be an argument."""
LONG = 40
"""With more rows than this, a table has to break over pages."""


def escape_latex(text: str) -> str:
    """Text as it is to be read, for LaTeX; the few symbols of our own headings become formulas."""
    return "".join(LATEX.get(character, character) for character in _line(text))


def escape_markdown(text: str) -> str:
    """Text as it is to be read, for Markdown with tables, inline HTML and formulas."""
    return "".join(f"\\{character}" if character in "\\`*_[]<>|&~$#!@{}" else character for character in _line(text))


def _line(text: str) -> str:
    """On one line, and with nothing in it that cannot be seen."""
    return printable(" ".join(text.split()))


def to_markdown(table: Table) -> str:
    """With its title above and its note below."""
    lines = [f"# {escape_markdown(table.title)}", ""]
    lines.append(_row(table.header))
    lines.append(f"|{'|'.join('---:' if numeric else '---' for numeric in table.numeric)}|")
    lines += [_row([cell.text for cell in row]) for row in table.rows]
    if table.note:
        lines += ["", escape_markdown(table.note)]
    return "\n".join(lines) + "\n"


def _row(entries: tuple[str, ...] | list[str]) -> str:
    return f"| {' | '.join(escape_markdown(entry) for entry in entries)} |"


def to_latex(table: Table) -> str:
    r"""A `tabular` to be put into a document, a `longtable` if there are many rows; the note below as a paragraph."""
    long = len(table.rows) > LONG
    kind, package = ("longtable", "booktabs and longtable") if long else ("tabular", "booktabs")
    columns = "".join("r" if numeric else "l" for numeric in table.numeric)
    header = f"{' & '.join(escape_latex(name) for name in table.header)} \\\\"
    lines = [f"% Needs the packages {package}.", f"\\begin{{{kind}}}{{{columns}}}", r"\toprule", header, r"\midrule"]
    if long:
        lines.append(r"\endhead")
    # The empty group keeps a line that begins with a star or a bracket from being an argument of the one before.
    lines += [f"{{}}{' & '.join(escape_latex(cell.text) for cell in row)} \\\\" for row in table.rows]
    lines += [r"\bottomrule", f"\\end{{{kind}}}"]
    if table.note:
        lines += ["", rf"\par\smallskip\noindent {escape_latex(table.note)}"]
    return "\n".join(lines) + "\n"
