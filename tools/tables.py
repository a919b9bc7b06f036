"""Two runs of one suite have the same tables, apart from times and hosts."""

from __future__ import annotations

from pathlib import Path

import pandas

OF_THE_RUN = ("seconds", "finished", "peak_bytes", "images_per_second", "host", "hosts", "retries")
"""Columns, endings of columns, and series of curves that say when, where and how fast."""


def comparable(path: Path) -> pandas.DataFrame:
    """What must be equal, in an order that does not depend on the run."""
    frame = pandas.read_parquet(path)
    frame = frame[[name for name in frame.columns if not name.endswith(OF_THE_RUN)]]
    if "series" in frame:
        frame = frame[~frame["series"].isin(OF_THE_RUN)]
    text = frame.astype("string").fillna("")
    return frame.iloc[text.sort_values(list(text.columns)).index.map(frame.index.get_loc)].reset_index(drop=True)


def same(one: Path, other: Path) -> int:
    """Compare both tables of two result folders to the last bit; returns the number of rows of results."""
    for name in ("results.parquet", "curves.parquet"):
        left, right = comparable(one / name), comparable(other / name)
        pandas.testing.assert_frame_equal(left, right, check_exact=True, obj=name)
    results = pandas.read_parquet(one / "results.parquet")
    assert results["error"].isna().all()
    assert (results["commit"].str.len() >= 12).all(), "The commit did not travel along."
    return len(results)
