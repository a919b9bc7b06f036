"""Figures, tables and one page: `python -m ldaf_bench.report FOLDER [MORE FOLDERS] [--out DIR]`

Each folder holds results.parquet and curves.parquet of a run. Nothing is computed again, and it takes seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ldaf_bench.artifacts import StoreError
from ldaf_bench.messages import printable
from ldaf_bench.report.folder import REPORT_FILES, report
from ldaf_bench.report.records import PLAN_FILE, SEAL_FILE, ReportError
from ldaf_bench.store.store import open_store

READ = ["results.parquet", "curves.parquet", PLAN_FILE, SEAL_FILE]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and say where it is; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.report", description=__doc__.split("\n")[0])
    parser.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="where a run left its Parquet files: a folder or a URI"
    )
    parser.add_argument("--out", metavar="DIR", help="where the report goes: a folder or a URI (default: the first)")
    options = parser.parse_args(arguments)
    try:
        folders = [open_store(place).fetch("", READ) for place in options.folders]
        out = open_store(options.out or options.folders[0])
        path = report(folders, out.fetch("", []))
        out.send("", REPORT_FILES)
    except (ReportError, StoreError) as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    print(printable(f"The report is {out.name}/{path.name}; figures and tables are beside it."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
