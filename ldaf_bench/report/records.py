"""What a report is made from: results.parquet, curves.parquet and, if they are there, plan.json and seal.json."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from ldaf_bench.columns import Column
from ldaf_bench.report.names import arm, column
from ldaf_bench.results import record
from ldaf_bench.suite import Published

AGAIN = "make it again with `python -m ldaf_bench.run`"
PLAN_FILE, SEAL_FILE = "plan.json", "seal.json"
MOST_JSON_BYTES = 20_000_000
"""A larger JSON file is not read: no suite needs it, and the page has to be opened by somebody."""
REQUIRED = (*record.IDENTITY, *record.DATA, *record.RISK, *record.CERTIFICATE, *record.COST, *record.PROVENANCE)
"""What every results.parquet has. All other columns are those of methods, and methods come and go."""
LARGEST = 1e12
SLACK = 1e-9
"""Rounding that a risk of 0 or 1 may have."""
NAMED = ("flow", "covariance", "scale")
"""Columns of methods that figures ask for by name, whether a method has them or not."""
ZERO_IS_NONE = ("num_points", "delta", "total")
"""Columns in which 0 says that there is none."""


class ReportError(Exception):
    """There is nothing to report on; the message is one sentence."""


class Source(NamedTuple):
    """A file that the report was made from."""

    path: str
    rows: int
    sha256: str


class Document(NamedTuple):
    """A JSON file of one folder, its plan or its seal: any JSON value, or the sentence that says why it is not here."""

    folder: str
    content: Any
    problem: str = ""


class Records(NamedTuple):
    """All rows of all folders."""

    results: pd.DataFrame
    curves: pd.DataFrame
    plans: tuple[Document, ...] = ()
    sources: tuple[Source, ...] = ()
    seals: tuple[Document, ...] = ()
    """One for each folder, whether it has a seal or not."""


def read(folders: Sequence[Path]) -> Records:
    """Everything in the folders; a `ReportError` if a Parquet file is missing, damaged or of another schema."""
    # The same folder twice would count every seed twice.
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    if not distinct:
        raise ReportError("There is no folder to report on: name one that holds results.parquet.")
    sources: list[Source] = []
    results = [_table(folder / "results.parquet", REQUIRED, sources) for folder in distinct]
    curves = [_table(folder / "curves.parquet", record.CURVES, sources) for folder in distinct]
    plans = [_json(folder / PLAN_FILE) for folder in distinct if (folder / PLAN_FILE).is_file()]
    seals = [_json(folder / SEAL_FILE) for folder in distinct]
    frame = results_frame(results)
    return Records(frame, _frame(curves, record.CURVES), tuple(plans), tuple(sources), tuple(seals))


def results_frame(tables: Sequence[pa.Table]) -> pd.DataFrame:
    """Tables of results as a frame: every certificate once, and its arm in `_arm`.

    What does not say how often it may fail is not certified, whatever else it says.
    """
    frame = _frame(tables, record.record_columns())
    for name in ZERO_IS_NONE:
        frame[name] = frame[name].mask(frame[name].eq(0))
    frame["certified"] = frame["certified"].eq(True) & frame["total"].notna()
    frame = frame.assign(**{name: "" for name in NAMED if name not in frame})
    pairs = zip(frame["method"], frame["flow"], strict=True)
    return _named_apart(_once(frame.assign(_arm=[arm(*pair) for pair in pairs])))


def _table(path: Path, required: tuple[Column, ...], sources: list[Source]) -> pa.Table:
    if not path.is_file():
        raise ReportError(f"{path} is not there: name a folder that a run has written its results to.")
    try:
        # One file at a time, so that no name of a folder can be taken for a partition.
        with pq.ParquetFile(path) as file:
            table = file.read()
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise ReportError(f"{path} cannot be read as Parquet ({reason}): {AGAIN}.") from error
    for field in record.schema(required):
        if field.name not in table.schema.names:
            raise ReportError(f"{path} has no column {field.name!r}, so another version wrote it: {AGAIN}.")
    columns = record.CURVES if required is record.CURVES else record.record_columns()
    known = {field.name: field.type for field in record.schema(columns)}
    for field in table.schema:
        wanted = known.get(field.name)
        if field.name.startswith("_") or table.schema.names.count(field.name) > 1:
            raise ReportError(f"{path} has a column {field.name!r} that no method can write: {AGAIN}.")
        if field.type != wanted and (wanted is not None or field.type not in record.ARROW.values()):
            belongs = f"where {wanted} belongs" if wanted else "which no record has"
            raise ReportError(f"{path} has {field.type} in column {field.name!r}, {belongs}: {AGAIN}.")
    _refuse_nonsense(path, table)
    with path.open("rb") as file:
        sources.append(Source(str(path), table.num_rows, hashlib.file_digest(file, "sha256").hexdigest()))
    return table


def _refuse_nonsense(path: Path, table: pa.Table) -> None:
    """No run writes a certificate above 1 or a number beyond LARGEST, and no axis could show it."""
    for name in [field.name for field in table.schema if field.type == pa.float64()]:
        low, high = (0.0, 1.0) if column(name).unit == record.PERCENT else (-LARGEST, LARGEST)
        known = table[name].drop_null().to_numpy()
        wrong = known[np.isfinite(known) & ((known < low - SLACK) | (known > high + SLACK))]
        if len(wrong):
            raise ReportError(f"{path} has {name} = {wrong[0]:g}, which is not in [{low:g}, {high:g}]: {AGAIN}.")


def _frame(tables: Sequence[pa.Table], columns: Sequence[Column]) -> pd.DataFrame:
    """With one way to say that something is missing: text is empty, everything else is null.

    Columns of methods that a table was written without are null in it. Columns of methods that are unknown here stay.
    """
    empty = record.schema(columns).remove_metadata().empty_table()
    bare = [pa.table(table.columns, names=table.schema.names) for table in tables]
    try:
        whole = pa.concat_tables([empty, *bare], promote_options="default")
    except pa.ArrowException as error:
        raise ReportError("The folders hold columns of one name and several types: report on one at a time.") from error
    # A seed does not survive being a float.
    frame = whole.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    for field in whole.schema:
        if field.type == pa.float64():
            frame[field.name] = frame[field.name].where(np.isfinite(frame[field.name]))
        elif field.type == pa.string() and field.name != "error":
            frame[field.name] = frame[field.name].fillna("").astype(str)
    return frame.drop_duplicates(ignore_index=True)


def _once(results: pd.DataFrame) -> pd.DataFrame:
    """Every certificate once, though several folders hold it; a `ReportError` if they do not agree on it."""
    identity = ["plan", "integration", "bound", "guess", "epsilon"]
    outcome = ["value", "risk", "test_risk", "mean_test_error"]
    known = results[results["value"].notna() & results[identity].ne("").all(axis=1) & results["epsilon"].notna()]
    again = known.duplicated(identity)
    differs = known.drop_duplicates([*identity, *outcome]).duplicated(identity)
    if differs.any():
        suite = known.loc[differs.index[differs], "suite"].iloc[0]
        raise ReportError(
            f"The folders hold certificates of the suite {suite!r} twice and with other values in their "
            "results.parquet: report on one of them at a time."
        )
    return results.drop(index=known.index[again]).reset_index(drop=True)


def _named_apart(results: pd.DataFrame) -> pd.DataFrame:
    """With the beginning of the plan's hash in the name of a suite that several plans share."""
    several = results.groupby("suite", dropna=False)["plan"].transform("nunique").gt(1)
    pairs = zip(results["suite"], results["plan"], several, strict=True)
    return results.assign(suite=[f"{suite} ({plan[:6]})" if apart else suite for suite, plan, apart in pairs])


def _json(path: Path) -> Document:
    folder = str(path.parent)
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            return Document(folder, None, f"{path} is larger than {MOST_JSON_BYTES // 10**6} MB and is not shown.")
        return Document(folder, json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Document(folder, None, f"{path} is not there.")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        return Document(folder, None, f"{path} cannot be read as JSON ({reason}), so it is not shown.")


def suites_of(plans: Sequence[Document]) -> list[dict[str, Any]]:
    """The suites as the plans have them, as far as they are what a suite is."""
    found = [plan.content.get("suite") for plan in plans if isinstance(plan.content, dict)]
    return [suite for suite in found if isinstance(suite, dict)]


def searches(plans: Sequence[Document]) -> list[str]:
    """The names of the suites whose plan has a search, which shows fewer rows than it pays for."""
    return list(dict.fromkeys(str(suite.get("suite")) for suite in suites_of(plans) if suite.get("search")))


def rehearsals(plans: Sequence[Document]) -> list[str]:
    """The names of the suites that are rehearsals."""
    return list(dict.fromkeys(str(suite.get("suite")) for suite in suites_of(plans) if suite.get("rehearsal")))


def published(plans: Sequence[Document]) -> pd.DataFrame:
    """Published numbers that suites name, one row each."""
    rows = []
    for suite in suites_of(plans):
        listed = suite.get("reference")
        with contextlib.suppress(ValidationError):
            every = [Published.model_validate(one) for one in (listed if isinstance(listed, list) else ())]
            data = suite.get("data")
            dataset = data.get("dataset") if isinstance(data, dict) else None
            rows += [{"dataset": str(dataset), **one.model_dump()} for one in every]
    return pd.DataFrame(rows, columns=["dataset", *Published.model_fields]).drop_duplicates()
