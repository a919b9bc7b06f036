"""Everything that a report puts into a folder: figures/, tables/ and report.html."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from ldaf_bench.report.cells import Table
from ldaf_bench.report.comparison import meant
from ldaf_bench.report.figures import FIGURES, SPREAD
from ldaf_bench.report.grouping import SEEDS, done
from ldaf_bench.report.markup import to_latex, to_markdown
from ldaf_bench.report.names import held_fixed, may_fail
from ldaf_bench.report.page import Picture, page
from ldaf_bench.report.records import Records, ReportError, read
from ldaf_bench.report.style import THEME
from ldaf_bench.report.tables import TABLES

DPI = 200
"""A thousand pixels across, sharp on a phone and on paper."""
PAGE = "report.html"
IMAGES, TEXTS = ("png", "pdf"), (("md", to_markdown), ("tex", to_latex))
REPORT_FILES = [
    *(f"figures/{name}.{kind}" for name in FIGURES for kind in IMAGES),
    *(f"tables/{name}.{kind}" for name in TABLES for kind, _ in TEXTS),
    PAGE,
]
"""All that a report may write; what it has no data for is not there."""


def report(folders: Sequence[Path], out: Path) -> Path:
    """Figures, tables and the page of what is in the folders; returns the page's path.

    Only Parquet (and plan.json and seal.json, to be shown) is read, and nothing is computed again. What an earlier
    report left in `out` and this one has no data for is removed. A `ReportError` with one sentence if there is nothing
    to read or nowhere to write.
    """
    records = read(folders)
    try:
        pictures = _figures(records, out / "figures")
        tables = _tables(records, out / "tables")
        path = out / PAGE
        _write(path, page(records, pictures, tables).encode())
    except OSError as error:
        raise ReportError(
            f"The report cannot be written to {out} ({error}): choose another folder with --out."
        ) from error
    return path


def _figures(records: Records, folder: Path) -> list[Picture]:
    pictures = []
    single = len(done(records.results)[SEEDS].drop_duplicates()) == 1
    for name, entry in FIGURES.items():
        figure = entry.plot(records)
        paths = {kind: folder / f"{name}.{kind}" for kind in IMAGES}
        if figure is None:
            for path in paths.values():
                path.unlink(missing_ok=True)
            continue
        images = {kind: render(figure, kind) for kind in paths}
        for kind, path in paths.items():
            _write(path, images[kind])
        said = entry.caption.replace(SPREAD, "One seed.") if single else entry.caption
        drawn = entry.drawn(records)
        over = meant(drawn) if "_standing" in drawn else ""
        caption = " ".join(filter(None, (said, may_fail(drawn), over, held_fixed(entry.held(records)))))
        pictures.append(Picture(name, entry.title, caption, images["png"]))
    return pictures


def render(figure: Figure, kind: str) -> bytes:
    """The figure's file; the same bytes for the same figure, because no date is in it."""
    metadata = {"Software": None} if kind == "png" else {"CreationDate": None, "Creator": None, "Producer": None}
    buffer = io.BytesIO()
    with mpl.rc_context(THEME), warnings.catch_warnings():
        # Names may be written in scripts that the font does not have; a box in their place is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
        # The layout takes as long as the drawing, and is the same in every format.
        figure.set_layout_engine("none")
    return buffer.getvalue()


def _tables(records: Records, folder: Path) -> dict[str, Table]:
    tables = {}
    for name, make in TABLES.items():
        table = make(records)
        for kind, convert in TEXTS:
            path = folder / f"{name}.{kind}"
            if table is None:
                path.unlink(missing_ok=True)
            else:
                _write(path, convert(table).encode())
        if table is not None:
            tables[name] = table
    return tables


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
