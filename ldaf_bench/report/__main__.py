"""Figures, tables and one page: `python -m ldaf_bench.report FOLDER [MORE FOLDERS] [--out DIR]`

Each folder holds results.parquet and curves.parquet of a run. Nothing is computed again, and it takes seconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ldaf_bench.messages import printable
from ldaf_bench.report.folder import report
from ldaf_bench.report.records import ReportError


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report and say where it is; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.report", description=__doc__.split("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="where a run left its Parquet files")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the report goes (default: the first folder)")
    options = parser.parse_args(arguments)
    try:
        path = report(options.folders, options.out or options.folders[0])
    except ReportError as error:
        print(printable(" ".join(str(error).split())), file=sys.stderr)
        return 2
    print(printable(f"The report is {path}; figures and tables are beside it."))
    return 0


if __name__ == "__main__":
    sys.exit(main())
