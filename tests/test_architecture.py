"""Small policies: who may import whom, whose name may stand where, and files that one can hold in the head."""

import ast
import itertools
import re
import tomllib
from pathlib import Path

import pytest

import ldaf_bench
from ldaf_bench import selfcheck
from ldaf_bench.methods import METHODS
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.integrate import INTEGRATORS

PACKAGE = Path(ldaf_bench.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES}
ORDER = [
    "arguments", "chunks", "seeds", "simplex", "krylov", "flows", "gaussian", "pushforward", "betting", "bounds",
    "normal", "integrate", "logits", "layer", "covariances", "certificate", "posterior",
]  # fmt: skip
"""The reading order of `theory`: a module imports only from those before it."""


def imports(path):
    """Every module that a file uses: `from x import y` is x.y if y is a module, and so is x.y of an `import x`.

    Of other packages, y counts as a module whatever it is: that can only be too strict.
    """
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path} has a relative import: name the module."
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.module if node.module in MODULES and inner not in MODULES else inner
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ray":
            yield f"ray.{node.attr}"


def within(name, module):
    return name == module or name.startswith(f"{module}.")


def room_of(name):
    """The room of a module of the package; None for the package itself."""
    return name.split(".")[1] if name.startswith("ldaf_bench.") else None


def module_of(path):
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize(
    ("line", "used"),
    [
        ("import ray.tune", ["ray.tune"]),
        ("from ray import tune", ["ray.tune"]),
        ("from ray.tune.search import optuna", ["ray.tune.search.optuna"]),
        ("import ray\nray.train.report()", ["ray", "ray.train"]),
        ("from ldaf_bench.theory import integrate", ["ldaf_bench.theory.integrate"]),
        ("from ldaf_bench import run", ["ldaf_bench.run"]),
        ("from ldaf_bench import __version__", ["ldaf_bench"]),
        ("from ldaf_bench.plan import make_plan, Plan", ["ldaf_bench.plan", "ldaf_bench.plan"]),
        ("def inner():\n    import optuna", ["optuna"]),
    ],
)
def test_imports_are_seen_however_they_are_written(tmp_path, line, used):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert list(imports(path)) == used


def test_theory_imports_nothing_else_of_the_package_and_no_io():
    for path in (PACKAGE / "theory").rglob("*.py"):
        for name in imports(path):
            assert not within(name, "ldaf_bench") or within(name, "ldaf_bench.theory"), (path, name)
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
    "columns": set(),
    "messages": set(),
    "artifacts": set(),
    "resources": set(),
    "provenance": set(),
    "fixtures": set(),
    "yaml_file": set(),
    "sections": {"theory", "columns"},
    "data": {"theory", "messages", "artifacts"},
    "models": {"theory", "sections", "data"},
    "methods": {"theory", "columns", "sections", "models"},
    "store": {"theory", "messages", "artifacts", "provenance", "data", "models", "methods"},
    "suite": {"theory", "resources", "yaml_file", "sections", "data", "models", "methods"},
    "plan": {"theory", "artifacts", "sections", "data", "models", "methods", "store", "suite"},
    "stages": {
        "theory", "messages", "artifacts", "resources", "sections", "data", "models", "methods", "store", "suite",
        "plan",
    },
    "results": {"theory", "columns", "artifacts", "data", "models", "methods", "store", "plan"},
    "report": {"columns", "messages", "artifacts", "store", "results"},
    "pipeline": {"messages", "resources", "data", "models", "store", "plan", "stages", "results"},
    "run": {
        "messages", "artifacts", "resources", "data", "store", "suite", "plan", "stages", "results", "report",
        "pipeline",
    },
    "verify": {
        "theory", "messages", "artifacts", "data", "models", "methods", "store", "suite", "plan", "stages", "results",
        "pipeline",
    },
    "pack": {"messages", "artifacts", "data", "store", "plan", "results", "pipeline", "verify"},
    "unpack": {"messages", "artifacts", "store"},
    "simulate": {
        "theory", "sections", "data", "models", "methods", "suite", "plan", "results", "report", "verify",
    },
    "selfcheck": {"theory"},
    "speed": {
        "theory", "artifacts", "resources", "data", "models", "methods", "store", "suite", "plan", "stages",
    },
}  # fmt: skip
"""Which rooms each room imports from, besides itself; none imports from one that is listed after it."""


def used_by(room):
    """Rooms that a room imports from, each with a file that does."""
    paths = [path for path in FILES if room_of(module_of(path)) == room]
    assert paths, f"There is no room {room}."
    found = {room_of(name): path for path in paths for name in imports(path) if within(name, "ldaf_bench")}
    return {other: path for other, path in found.items() if other not in (None, room)}


def test_every_module_belongs_to_a_room():
    assert {room_of(name) for name in MODULES} - {None} == set(ROOMS)


def test_rooms_are_listed_in_one_direction():
    before = set()
    for room, allowed in ROOMS.items():
        assert allowed <= before, f"{room} would import from {allowed - before}, which come after it."
        before.add(room)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_is_listed_and_no_more_is_listed_than_it_imports(room):
    used = used_by(room)
    assert not {other: path for other, path in used.items() if other not in ROOMS[room]}
    assert ROOMS[room] == set(used), "Take what is not imported any more out of ROOMS."


def test_ray_is_used_by_the_stages_only_and_its_trainer_by_one_of_them():
    for path in FILES:
        for name in imports(path):
            if within(name, "ray"):
                assert path.parent == PACKAGE / "stages", (path, name)
            if within(name, "ray.train"):
                assert path.name in ("train.py", "interface.py"), (path, name)
            if within(name, "ray.tune"):
                assert path.name == "search.py", (path, name)


def owners():
    """Every name of a method, a bound and an integrator, with the files that may hold it."""
    theory = PACKAGE / "theory"
    yield from ((name, {PACKAGE / "methods" / f"{name}.py"}) for name in METHODS)
    yield from ((name, {theory / "bounds.py"}) for name in BOUNDS)
    yield from ((name, set((theory / "integrate").glob("*.py"))) for name in INTEGRATORS)


def literals(path):
    """String literals with their lines; docstrings are none."""
    tree = ast.parse(path.read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value, node.lineno


def quoted(path):
    """What stands in quotation marks, with its line: for files of other languages."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        yield from ((match[2], number) for match in re.finditer(r"""(?<=(["'`]))(\w+)(?=\1)""", line))


def test_literals_are_found_and_docstrings_are_none(tmp_path):
    python, script = tmp_path / "module.py", tmp_path / "page.js"
    python.write_text('"""kl"""\nx = {"kl": 1}\n"""mc"""\ndef f(a: Literal["mc"]):\n    """qmc"""\n')
    script.write_text("const a = 'kl' + \"mc\";\n// not kl\nf(`qmc`)\n")
    assert list(literals(python)) == [("kl", 2), ("mc", 4)]
    assert list(quoted(script)) == [("kl", 1), ("mc", 1), ("qmc", 3)]


def test_no_name_of_a_method_a_bound_or_an_integrator_stands_outside_its_own_module():
    where = dict(owners())
    strays = []
    others = [path for path in sorted(PACKAGE.rglob("*")) if path.suffix in (".js", ".html", ".css")]
    for path in itertools.chain(FILES, others):
        for text, line in literals(path) if path.suffix == ".py" else quoted(path):
            # The self-check's files of ground truth have a quantity of that name.
            exempt = path == PACKAGE / "selfcheck.py" and text in selfcheck.KEYS
            if text in where and path not in where[text] and not exempt:
                strays.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {text!r}")
    assert not strays, "\n" + "\n".join(strays)


def test_nothing_is_unpickled():
    for path in FILES:
        for name in imports(path):
            # The one reader of pickled data replaces everything that a pickle could call.
            assert name.split(".")[0] != "pickle" or path.name == "formats.py", path
        assert "torch.load" not in path.read_text(), path
        assert "allow_pickle=True" not in path.read_text(), path


def test_files_stay_small():
    lengths = {str(path): len(path.read_text().splitlines()) for path in FILES}
    assert not {path: length for path, length in lengths.items() if length > 350}


def test_every_package_is_installed():
    listed = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {module_of(path) for path in FILES if path.name == "__init__.py"}
