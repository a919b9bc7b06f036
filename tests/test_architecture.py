"""Small policies: who may import whom, and whose name may stand where."""

import ast
import itertools
import re
import tomllib
from pathlib import Path

import pytest

import ldaf_bench
import tools
from ldaf_bench.methods import METHODS
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.integrate import INTEGRATORS

PACKAGE = Path(ldaf_bench.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
TOOLS = sorted(Path(tools.__file__).parent.rglob("*.py"))
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


def test_ray_is_used_by_the_stages_only():
    for path in FILES:
        for name in imports(path):
            assert not within(name, "ray") or PACKAGE / "stages" in path.parents, (path, name)


def test_the_package_imports_neither_tools_nor_tests():
    for path in FILES:
        for name in imports(path):
            assert name.split(".")[0] not in {"tools", "tests"}, (path, name)


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
            if text in where and path not in where[text]:
                strays.append(f"{path.relative_to(PACKAGE.parent)}:{line}: {text!r}")
    assert not strays, "\n" + "\n".join(strays)


def test_nothing_is_unpickled():
    for path in itertools.chain(FILES, TOOLS):
        for name in imports(path):
            # The one reader of pickled data replaces everything that a pickle could call.
            assert name.split(".")[0] != "pickle" or path.name == "formats.py", path
        assert "torch.load" not in path.read_text(), path
        assert "allow_pickle=True" not in path.read_text(), path


def test_every_package_is_installed():
    listed = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {module_of(path) for path in FILES if path.name == "__init__.py"}
