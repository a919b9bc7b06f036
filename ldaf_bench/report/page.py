"""One page to read: a single HTML file that needs no network, no server and, for reading, no JavaScript."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from ldaf_bench import __version__
from ldaf_bench.report.cells import Table
from ldaf_bench.report.comparison import headlines
from ldaf_bench.report.grouping import applies, below_test, done, failed, with_test
from ldaf_bench.report.looks import looks_sentences, retry_sentences
from ldaf_bench.report.names import heading, label, probability, text
from ldaf_bench.report.records import Records, rehearsals
from ldaf_bench.report.selection import best_sentences
from ldaf_bench.report.tables import provenance

MOST_ROWS = 4000
"""Rows of a table on the page: a browser has to hold them all. The files in tables/ hold every row."""
SUMMARY = ("suites", "looks")
"""Tables that stand at the top, in place of sentences."""
MOST_CHILDREN = 100
"""Entries of one list of a plan that are shown."""
DEEPEST = 12
"""Levels of a plan that are shown."""


class Picture(NamedTuple):
    """A figure of the page."""

    name: str
    title: str
    caption: str
    png: bytes

    @property
    def size(self) -> tuple[int, int]:
        """Width and height in pixels, so that the page does not jump while it loads: bytes 16 to 24 of any PNG."""
        return int.from_bytes(self.png[16:20]), int.from_bytes(self.png[20:24])

    @property
    def source(self) -> str:
        """The image itself as an address."""
        return f"data:image/png;base64,{base64.b64encode(self.png).decode()}"


class Node(NamedTuple):
    """A value of a plan: a leaf has text, everything else has children."""

    name: str
    text: str
    children: tuple[Node, ...] = ()


def tree(name: str, value: Any, depth: int = 0) -> Node:
    """A JSON value as nodes, no deeper and no longer than a page can bear."""
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(value)]
        if all(not isinstance(item, list | Mapping) for item in value) and len(value) <= MOST_CHILDREN:
            return Node(text(name), ", ".join(_leaf(item) for item in value) or "none")
    else:
        return Node(text(name), _leaf(value))
    summary = f"{len(items)} {'entry' if len(items) == 1 else 'entries'}"
    if depth >= DEEPEST or not items:
        return Node(text(name), summary)
    children = [tree(key, item, depth + 1) for key, item in items[:MOST_CHILDREN]]
    if len(items) > MOST_CHILDREN:
        children.append(Node("…", f"and {len(items) - MOST_CHILDREN} more in plan.json"))
    return Node(text(name), summary, tuple(children))


def _leaf(value: Any) -> str:
    return "none" if value is None else text(value)


def page(records: Records, pictures: Sequence[Picture], tables: Mapping[str, Table]) -> str:
    """The whole file. Everything that comes from records is escaped by the template; no script ever sees it as code."""
    room = files("ldaf_bench.report")
    style, script = (room.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(room.joinpath("page.html").read_text(encoding="utf-8"))
    return template.render(
        title=_title(records),
        policy=_policy(style, script),
        # Our own files, the only text that is not escaped: neither holds an end tag (a test looks).
        style=Markup(style),
        script=Markup(script),
        facts=_facts(records),
        num_failed=failed(records.results)["integration"].nunique(),
        num_broken=len(below_test(with_test(records.results))),
        rehearsals=rehearsals(records.plans),
        headlines=[_with_code(sentence) for sentence in headlines(records.results)],
        best=[_with_code(sentence) for sentence in best_sentences(records.results)],
        looks=looks_sentences(records) + retry_sentences(records),
        pictures=pictures,
        tables=tables,
        summary=SUMMARY,
        most_rows=MOST_ROWS,
        plans=[(plan.folder, tree("plan", plan.content), plan.problem) for plan in records.plans],
        provenance=provenance(records.results),
        sources=records.sources,
        version=__version__,
    )


def _with_code(sentence: str) -> Markup:
    """Escaped, except that what stands in backquotes is code."""
    parts = sentence.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 and index + 1 < len(parts) else escape(part)
        for index, part in enumerate(parts)
    )


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy under which nothing is loaded and nothing runs but what this package wrote."""
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _title(records: Records) -> str:
    suites = records.results["suite"].dropna().unique().tolist()
    if not suites:
        return "No results"
    shown = ", ".join(label(suite, 40) for suite in suites[:3])
    return shown if len(suites) <= 3 else f"{shown} and {len(suites) - 3} more"


def _facts(records: Records) -> list[tuple[str, str]]:
    results = records.results
    finished = done(results)
    totals = [probability(total) for total in sorted(finished["total"].dropna().unique())]
    return [
        ("certificates", f"{int(finished['certified'].eq(True).sum()):,}"),
        ("estimates", f"{int(finished['certified'].ne(True).sum()):,}"),
        ("integrations done", f"{finished['integration'].nunique():,}"),
        ("failed", f"{failed(results)['integration'].nunique():,}"),
        ("networks", f"{results['network'][applies(results['network'])].nunique():,}"),
        ("data sets", ", ".join(label(name) for name in results["dataset"].dropna().unique()[:5]) or "none"),
        (heading("total"), ", ".join(dict.fromkeys(totals)) or "nothing is certified"),
    ]
