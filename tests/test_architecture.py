"""Small policies: who may import whom, and files that one can hold in the head."""

import ast
from pathlib import Path

import ldaf_bench

PACKAGE = Path(ldaf_bench.__file__).parent
ORDER = [
    "arguments", "chunks", "seeds", "simplex", "krylov", "flows", "gaussian", "pushforward", "bounds", "normal",
    "integrate", "covariances", "certificate", "posterior",
]  # fmt: skip
"""The reading order of `theory`: a module imports only from those before it."""


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_theory_imports_nothing_else_of_the_package_and_no_io():
    for path in (PACKAGE / "theory").rglob("*.py"):
        for name in imports(path):
            assert not name.startswith("ldaf_bench") or name.startswith("ldaf_bench.theory"), (path, name)
            assert name.split(".")[0] not in {"ray", "pyarrow", "pandas", "rich", "pathlib", "os", "io"}, (path, name)


def test_theory_is_imported_in_one_direction():
    for path in (PACKAGE / "theory").rglob("*.py"):
        own = path.relative_to(PACKAGE / "theory").parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for name in imports(path):
            if name.startswith("ldaf_bench.theory."):
                other = name.split(".")[2]
                assert other == own or ORDER.index(other) < ORDER.index(own), (path, name)


def test_files_stay_small():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path
