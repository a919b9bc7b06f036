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
        if isinstance(node, ast.ImportFrom):
            assert node.module, f"{path} has a relative import: name the module, so that this test can see it."
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


ROOMS = {
    "theory": set(),
    "artifacts": set(),
    "messages": set(),
    "resources": set(),
    "provenance": set(),
    "data": {"theory", "artifacts", "messages"},
    "models": {"theory"},
    "methods": {"theory", "artifacts", "messages", "provenance", "data", "models"},
    "suite": {"theory", "resources", "data", "models", "methods"},
    "plan": {"theory", "artifacts", "data", "methods", "suite"},
    "results": {"theory", "artifacts", "provenance", "methods", "plan"},
    "stages": {"theory", "artifacts", "messages", "resources", "data", "models", "methods", "suite", "plan", "results"},
    "report": {"messages", "results"},
    "verify": {"theory", "artifacts", "messages", "data", "models", "methods", "suite", "plan", "results", "stages"},
}
"""Which rooms each room may import from, besides itself."""


def test_rooms_are_imported_in_one_direction():
    for room, allowed in ROOMS.items():
        paths = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
        for path in paths:
            for name in imports(path):
                if name.startswith("ldaf_bench."):
                    assert name.split(".")[1] in {*allowed, room}, (path, name)


def test_ray_is_used_by_the_stages_only_and_its_trainer_by_one_of_them():
    for path in PACKAGE.rglob("*.py"):
        for name in imports(path):
            if name.split(".")[0] == "ray":
                assert path.parent.name == "stages", (path, name)
            if name.startswith("ray.train"):
                assert path.name == "train.py", (path, name)
            if name.startswith("ray.tune"):
                assert path.name == "sweep.py", (path, name)


def test_nothing_is_unpickled():
    for path in PACKAGE.rglob("*.py"):
        for name in imports(path):
            # The one reader of pickled data replaces everything that a pickle could call.
            assert name.split(".")[0] != "pickle" or path.name == "formats.py", path
        assert "torch.load" not in path.read_text(), path
        assert "allow_pickle=True" not in path.read_text(), path


def test_files_stay_small():
    for path in PACKAGE.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path
