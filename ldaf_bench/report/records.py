"""What a report is made from: results.parquet, curves.parquet and, if it is there, plan.json of some folders."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ldaf_bench.results.record import CURVES, RECORD, Column, schema

AGAIN = "make it again with `python -m ldaf_bench.run`"
MOST_PLAN_BYTES = 20_000_000
"""A larger plan.json is not read: no suite needs it, and the page has to be opened by somebody."""


FRACTIONS = frozenset({"value", "epsilon", "delta", "mean_error", "mean_test_error", "certificate_fraction"})
LARGEST = 1e12


class ReportError(Exception):
    """There is nothing to report on; the message is one sentence."""


class Source(NamedTuple):
    """A file that the report was made from."""

    path: str
    rows: int
    sha256: str


class Plan(NamedTuple):
    """The plan of one folder: any JSON value, or the sentence that says why it is not here."""

    folder: str
    content: Any
    problem: str = ""


class Records(NamedTuple):
    """All rows of all folders."""

    results: pd.DataFrame
    curves: pd.DataFrame
    plans: tuple[Plan, ...] = ()
    sources: tuple[Source, ...] = ()


def read(folders: Sequence[Path]) -> Records:
    """Everything in the folders; a `ReportError` if a Parquet file is missing, damaged or of another schema."""
    # The same folder twice would count every seed twice.
    distinct = list({folder.resolve(): folder for folder in folders}.values())
    if not distinct:
        raise ReportError("There is no folder to report on: name one that holds results.parquet.")
    sources: list[Source] = []
    results = [_table(folder / "results.parquet", RECORD, sources) for folder in distinct]
    curves = [_table(folder / "curves.parquet", CURVES, sources) for folder in distinct]
    plans = [plan for folder in distinct if (plan := _plan(folder)) is not None]
    return Records(named_apart(_once(_frame(results))), _frame(curves), tuple(plans), tuple(sources))


def _table(path: Path, columns: tuple[Column, ...], sources: list[Source]) -> pa.Table:
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
    expected = schema(columns)
    for field in expected:
        if field.name not in table.schema.names:
            raise ReportError(f"{path} has no column {field.name!r}, so another version wrote it: {AGAIN}.")
        found = table.schema.field(field.name).type
        if found != field.type:
            raise ReportError(f"{path} has {found} in column {field.name!r} where {field.type} belongs: {AGAIN}.")
    extra = sorted(set(table.schema.names) - set(expected.names))
    if extra:
        raise ReportError(f"{path} has a column {extra[0]!r} that no record has, so another version wrote it: {AGAIN}.")
    _refuse_nonsense(path, table, columns)
    with path.open("rb") as file:
        sources.append(Source(str(path), table.num_rows, hashlib.file_digest(file, "sha256").hexdigest()))
    return table.select(expected.names)


def _refuse_nonsense(path: Path, table: pa.Table, columns: tuple[Column, ...]) -> None:
    """No run writes a certificate above 1 or a number beyond LARGEST, and no axis could show it."""
    for name in [column.name for column in columns if column.type == pa.float64()]:
        low, high = (0.0, 1.0) if name in FRACTIONS else (-LARGEST, LARGEST)
        known = table[name].drop_null().to_numpy()
        wrong = known[np.isfinite(known) & ((known < low) | (known > high))]
        if len(wrong):
            raise ReportError(f"{path} has {name} = {wrong[0]:g}, which is not in [{low:g}, {high:g}]: {AGAIN}.")


def _frame(tables: Sequence[pa.Table]) -> pd.DataFrame:
    """With one way to say that something is missing: text is empty, numbers and errors are null."""
    whole = {pa.int64(): pd.Int64Dtype()}  # a seed does not survive being a float
    frame = pa.concat_tables(tables).to_pandas(types_mapper=whole.get)
    for name in frame.columns:
        if pd.api.types.is_float_dtype(frame[name]):
            frame[name] = frame[name].where(np.isfinite(frame[name]))
        elif name not in ("error", "certified", "converged") and not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name] if name == "finished" else frame[name].fillna("").astype(str)
    return frame.drop_duplicates(ignore_index=True)


def _once(results: pd.DataFrame) -> pd.DataFrame:
    """Every certificate once, though several folders hold it; a `ReportError` if they do not agree on it."""
    identity, outcome = ["plan", "cell", "bound", "epsilon"], ["value", "risk", "test_risk", "mean_test_error"]
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


def named_apart(results: pd.DataFrame) -> pd.DataFrame:
    """With the beginning of the plan's hash in the name of a suite that several plans share."""
    several = results.groupby("suite", dropna=False)["plan"].transform("nunique").gt(1)
    pairs = zip(results["suite"], results["plan"], several, strict=True)
    return results.assign(suite=[f"{suite} ({plan[:6]})" if apart else suite for suite, plan, apart in pairs])


def _plan(folder: Path) -> Plan | None:
    path = folder / "plan.json"
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MOST_PLAN_BYTES:
            return Plan(str(folder), None, f"{path} is larger than {MOST_PLAN_BYTES // 10**6} MB and is not shown.")
        return Plan(str(folder), json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        return Plan(str(folder), None, f"{path} cannot be read as JSON ({reason}), so the plan is not shown.")


def searches(plans: Sequence[Plan]) -> list[str]:
    """The names of the suites whose plan has a search, which shows fewer rows than it pays for."""
    suites = [plan.content.get("suite") for plan in plans if isinstance(plan.content, dict)]
    found = [str(suite.get("suite")) for suite in suites if isinstance(suite, dict) and suite.get("search")]
    return list(dict.fromkeys(found))
