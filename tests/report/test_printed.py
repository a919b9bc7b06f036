"""Every certificate that is printed anywhere is the stored one, rounded up, and beside it stands how often it may fail.

What is expected is computed here from the stored rows, in decimal arithmetic and without the report's own functions.
"""

import html
import io
import re
from decimal import ROUND_CEILING, ROUND_HALF_EVEN, Decimal
from functools import partial
from pathlib import Path

import pandas
import pytest
from rich.console import Console

from ldaf_bench.report import names
from ldaf_bench.report.markup import to_latex, to_markdown
from ldaf_bench.report.page import SUMMARY, page
from ldaf_bench.report.records import read
from ldaf_bench.report.tables import TABLES
from ldaf_bench.report.terminal import show_results
from tests.report import synthetic

TOP = Path(__file__).parents[2]
WHO = {"fitted posterior": "posterior", "unfitted prior": "prior", "mean classifier": "mean"}
NO_MIXTURE = "test_set"
FEW = {"covariances": ("code",), "bounds": ("kl_exact", "catoni"), "integrators": ("mc", "qmc")}


def stored_rows(**paid):
    """Rows of every classifier. Each value, and each mean over seeds, is one that rounding to nearest rounds down."""
    rows = synthetic.small(**FEW, **paid)
    rows = [*rows, *synthetic.unfitted(rows)]
    first = {key(row): row["value"] for row in reversed(rows)}
    return [row | {"value": round(first[key(row)], 4) + 0.00003 + (row["seed"] - 1) / 1000} for row in rows]


def all_reported():
    """Nothing is selected: each setting has the certificate of its mixture, but for the bound that has none."""
    rows = [row | {"num_events": 1} for row in stored_rows(num_events=1, num_integrations=1)]
    largest = {key(row): row["value"] for row in rows}
    return [row | {"mixture": None if row["bound"] == NO_MIXTURE else largest[key(row)] + 0.0001} for row in rows]


def best_reported():
    """A best may be picked: all certificates hold together, and there are no mixtures."""
    return stored_rows(num_events=100, num_integrations=100)


def key(row):
    """What a certificate over seeds is identified by."""
    return tuple(row.get(name) for name in ("flow", "classifier", "bound", "integrator", "epsilon"))


def expected(rows):
    """The stored value over seeds as an exact decimal, its total, and its mark, by `key`."""
    found = {}
    for which in dict.fromkeys(map(key, rows)):
        some = [row for row in rows if key(row) == which]
        (mixture,), (total,) = ({row.get(name) for row in some} for name in ("mixture", "total"))
        exact = sum(Decimal(repr(row["value"])) for row in some) / len(some)
        mark = "" if len(some) == 1 or total is None else "†" if some[0]["num_events"] >= len(some) else "*"
        if mixture is not None:
            exact, mark = Decimal(repr(mixture)), ""
        fails = "estimate" if total is None else str(Decimal(str(round(total, 12))))
        found[which] = up(exact), fails, mark
    return found


def up(exact):
    return (100 * exact).quantize(Decimal("0.01"), ROUND_CEILING)


def require(cell, fails, wanted, marked=True):
    """A printed cell and what stands beside it are what was stored."""
    value, total, mark = wanted
    number, end = re.fullmatch(r"(\d+\.\d\d)(?: ± \d+\.\d\d)?(?: ([*†]))?", cell).groups()
    assert (Decimal(number), fails) == (value, total)
    if marked:
        assert (end or "") == mark


def from_html(text, name):
    body = re.search(rf'<table id="table-{name}">(.*?)</table>', text, re.DOTALL)[1]
    for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL):
        yield [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]


def from_markdown(text):
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip().replace("\\", "") for cell in line.strip("|").split("|")]


def from_latex(text):
    shown = {r"$\pm$": "±", r"$\dagger$": "†", r"$\varepsilon$": "ε", r"$\cdot$": "·", "--": "–", "{}": "", "\\": ""}
    for line in text.splitlines():
        if line.endswith(r" \\"):
            for written, symbol in shown.items():
                line = line.removesuffix(r" \\").replace(written, symbol)
            yield [cell.strip() for cell in line.split(" & ")]


def check_certificates(table, stored):
    """The table of all certificates: a column of values, and one of totals right behind it."""
    header, *lines = table
    place = header.index("certificate (%)")
    assert header[place + 1] == "may fail"
    over = {"mixture": "", "mean, one by one": "*", "mean, together": "†", "–": ""}
    for line in lines:
        row = dict(zip(header, line, strict=True))
        integrator = None if row["integrator"] == "–" else row["integrator"]
        which = row["flow"], WHO[row["classifier"]], row["bound"], integrator, float(row["ε"])
        require(row["certificate (%)"], row["may fail"], stored[which], marked=False)
        assert "over seeds" not in row or over[row["over seeds"]] == stored[which][2]
    assert len(lines) == len(stored)


def check_comparison(table, stored):
    """The comparison: each line says certificate or estimate, whose, by which bound, and how often it may fail."""
    (corner, fails, *arms), *lines = table
    assert (corner, fails) == ("", "may fail")
    checked = 0
    for name, total, *cells in lines:
        found = re.fullmatch(r"certificate, ([\w ]+): (\w+)", name)
        assert bool(found) == (total != "–"), name
        for arm, cell in zip(arms, cells, strict=True) if found else ():
            epsilon = {wanted[1]: which[4] for which, wanted in stored.items()}[total]
            integrator = None if WHO[found[1]] == "mean" else "mc"
            require(cell, total, stored[arm.split(" · ")[1], WHO[found[1]], found[2], integrator, epsilon])
            checked += 1
    assert checked == sum(which[3] != "qmc" for which in stored)


def check_terminal(text, stored):
    """The lines at the end of a run, at the first ε."""
    checked = 0
    for who, bound, total, rest in re.findall(r"^([\w ]+): (\w+) +([\d.]+) +(.*)$", text, re.MULTILINE):
        integrator = None if WHO[who] == "mean" else "mc"
        cells = re.findall(r"[\d.]+(?: [*†])?", rest)
        for flow, cell in zip(("daf", "sflow"), cells, strict=True):
            require(cell, total, stored[flow, WHO[who], bound, integrator, synthetic.EPSILONS[0]])
            checked += 1
    assert checked == sum(which[3] != "qmc" and which[4] == synthetic.EPSILONS[0] for which in stored)


def check_sentences(text, values):
    """Whatever is called a certificate in a sentence has a stored value, and says how often it may fail."""
    prose = html.unescape(re.sub(r"<[^>]+>", "", re.sub(r"<table.*?</table>|<style.*?</style>", "", text, flags=re.S)))
    found = re.findall(r"certificate (?:is )?([\d.]+) %(.{0,60})", prose)
    for number, behind in found:
        total = re.search(r"may fail with probability ([\d.]+\d)", behind)
        assert total, behind
        assert (Decimal(number), total[1]) in values
    return len(found)


def outputs(folder, rows):
    """Everything that is printed, by its name: a function that checks it and returns how many sentences it found."""
    stored = expected(rows)
    records = read([synthetic.write(folder, rows, [])])
    tables = {name: make(records) for name, make in TABLES.items() if name not in (*SUMMARY, "failures", "reference")}
    shown = page(records, [], tables)
    console = Console(file=io.StringIO(), width=100)
    show_results(synthetic.results_table(rows), console)
    single = {(up(Decimal(repr(row["value"]))), str(round(row["total"], 12))) for row in rows if row["total"]}
    values = single | {wanted[:2] for wanted in stored.values()}
    found = {
        "terminal": lambda: check_terminal(console.file.getvalue(), stored),
        "sentences": lambda: check_sentences(shown, values),
    }
    for name, check in {"certificates": check_certificates, "comparison": check_comparison}.items():
        for kind, cells in {
            "html": from_html(shown, name), "md": from_markdown(to_markdown(tables[name])),
            "tex": from_latex(to_latex(tables[name])),
        }.items():  # fmt: skip
            found[f"{name}.{kind}"] = partial(check, list(cells), stored)
    return found


@pytest.mark.parametrize("rows", [all_reported, best_reported])
def test_every_printed_certificate_is_the_stored_one_rounded_up_with_its_total(tmp_path, rows):
    marks = {mark for _, fails, mark in expected(rows()).values() if fails != "estimate"}
    assert marks == ({"", "*"} if rows is all_reported else {"†"})
    found = {name: check() for name, check in outputs(tmp_path, rows()).items()}
    assert len(found) == 8
    # The first sentences have two certificates; where it is paid for, there is a best one for each ε.
    assert found["sentences"] == (2 if rows is all_reported else 2 + 2)


def nearest(monkeypatch):
    monkeypatch.setattr(names, "ROUND_CEILING", ROUND_HALF_EVEN)


def bare_epsilon(monkeypatch):
    for module in ("comparison", "tables", "selection"):
        monkeypatch.setattr(f"ldaf_bench.report.{module}.probability", lambda total: f"{total - 0.01:.10g}")


@pytest.mark.parametrize("mutant", [nearest, bare_epsilon])
@pytest.mark.parametrize("rows", [all_reported, best_reported])
def test_rounding_to_nearest_or_another_level_is_noticed_in_every_output(tmp_path, monkeypatch, rows, mutant):
    mutant(monkeypatch)
    for check in outputs(tmp_path, rows()).values():
        with pytest.raises((AssertionError, KeyError)):
            check()


MEASURED = {
    "mean classifier, test error": ("mean", "mean_test_error"),
    "unfitted prior, test risk": ("prior", "test_risk"),
    "fitted posterior, test risk": ("posterior", "test_risk"),
}


ARMS = {
    "LDAF, DAF": ("ldaf", "daf"),
    "LDAF, S-flow": ("ldaf", "sflow"),
    "last layer": ("last_layer", None),
    "PBB": ("pbb", None),
}
"""Columns of the README's table: method and flow."""


def check_readme(text, frame):
    """The README's table, against the file that it was made from."""
    (table,) = re.findall(r"<!-- digits -->\n(.*?)<!-- /digits -->", text, re.DOTALL)
    (corner, fails, *arms), *lines = from_markdown(table)
    assert (corner, fails, arms) == ("", "may fail", list(ARMS))
    classifiers = set()
    for name, total, *cells in lines:
        found = re.fullmatch(r"certificate, ([\w ]+): `(\w+)`( \(mean of certificates that hold one by one\))?", name)
        assert bool(found) == bool(total), name
        for (method, flow), cell in zip(ARMS.values(), cells, strict=True):
            some = frame[frame["method"].eq(method) & (frame["flow"].eq(flow) if flow else True)]
            if found is None:
                who, column = MEASURED[name]
                exact = 100 * some[some["classifier"] == who].drop_duplicates("seed")[column].mean()
                assert abs(float(cell) - exact) <= 0.005 + 1e-9, name
                continue
            some = some[(some["bound"] == found[2]) & (some["classifier"] == WHO[found[1]])]
            some = some[some["total"].round(12) == float(total)]
            assert sorted(some["seed"]) == [0, 1, 2]
            assert some["certified"].all()
            mixed = some["mixture"].notna()
            assert mixed.all() != bool(found[3])
            exact = sum(Decimal(repr(float(value))) for value in some["value"]) / 3
            exact = Decimal(repr(float(some["mixture"].iloc[0]))) if mixed.all() else exact
            assert Decimal(cell) == up(exact), name
            classifiers.add(found[1])
    return classifiers


def test_the_readme_shows_what_its_file_holds():
    text = (TOP / "README.md").read_text(encoding="utf-8")
    frame = pandas.read_parquet(TOP / "results" / "readme" / "digits.parquet")
    assert check_readme(text, frame) == set(WHO)
    with pytest.raises(AssertionError):
        check_readme(re.sub(r"4\.26", "4.25", text), frame)


def test_no_other_certificate_is_written_in_the_readmes():
    for name in ("README.md", "results/README.md", "results/tables.md", "results/measurements.md"):
        text = (TOP / name).read_text(encoding="utf-8")
        text = re.sub(r"<!-- digits -->.*?<!-- /digits -->|```.*?```", "", text, flags=re.DOTALL)
        assert not re.findall(r"certificate[^.|\n]* \d+\.\d+ %", text), name


OF_BOUND = {"`catoni`, guess 0.03": ("catoni", 0.03)}
"""Headings of the table of rivals that say more than the bound."""


def rivals_of(name, frame):
    """The rows that a line of the table of rivals is about."""
    method, *words = (word.strip("` ") for word in name.split(", "))
    some = frame[frame["method"].eq(method)]
    if method == "deterministic":
        return some
    some = some[some["covariance"].eq("code") | ~some["method"].eq("ldaf")]
    some = some[some["scale"].eq(0.003) | ~some["method"].eq("pbb")]
    if words == ["unfitted"]:
        return some[some["classifier"].eq("prior")]
    some = some[some["objective"].eq(words[0])]
    if method == "pbb":
        return some[some["fit_on"].eq("both" if words[1:] else "certificate")]
    some = some[some["scales"].eq("each") | ~some["method"].eq("last_layer")]
    return some[some["mean"].eq(words[1].removeprefix("mean "))]


def usual(rows):
    """The rows of the integrator that the table is about: `mc` where it goes with the method, else `forward_mc`."""
    rows = rows[~rows["integrator"].isin(["bonferroni", "shared_mc", "one_draw"])]
    return rows[~(rows["integrator"].eq("forward_mc") & rows["method"].ne("pbb"))]


def check_measured(rows, risk, kl, seconds):
    """Test risk, KL and seconds of a line: means over the seeds."""
    seeds = usual(rows).drop_duplicates("seed")
    assert len(seeds) == 3
    if (seeds["classifier"] == "mean").all():
        assert (kl, seconds) == ("–", "0")
        assert abs(float(risk) - 100 * seeds["mean_test_error"].mean()) <= 0.005 + 1e-9
        return
    assert abs(float(risk) - 100 * seeds["test_risk"].mean()) <= 0.005 + 1e-9
    assert abs(float(kl) - seeds["kl_divergence"].mean()) <= 0.005 + 1e-9
    assert abs(float(seconds) - (seeds["fit_seconds"] + seeds["integrate_seconds"]).mean()) <= 0.05 + 1e-9


def test_the_table_of_rivals_shows_what_its_file_holds():
    text = (TOP / "results" / "README.md").read_text(encoding="utf-8")
    frame = pandas.read_parquet(TOP / "results" / "published" / "rivals" / "results.parquet")
    frame = frame[frame["total"].round(12).eq(0.02) & frame["certified"]]
    (table,) = re.findall(r"<!-- rivals -->\n(.*?)<!-- /rivals -->", text, re.DOTALL)
    (_, *headings), *lines = from_markdown(table)
    measured, bounds = headings[:3], headings[3:]
    assert measured == ["test risk", "KL", "seconds"]
    checked = 0
    for name, risk, kl, seconds, *cells in lines:
        check_measured(rivals_of(name, frame), risk, kl, seconds)
        for heading, cell in zip(bounds, cells, strict=True):
            bound, guess = OF_BOUND.get(heading, (heading.strip("`"), None))
            some = rivals_of(name, frame)
            some = some[some["bound"].eq(bound) & (some["guess"].eq(guess) if guess else True)]
            if bound != "test_set":
                some = usual(some)
            if cell == "–":
                assert some.empty, name
                continue
            assert sorted(some["seed"]) == [0, 1, 2], (name, bound)
            mixed = some["mixture"].notna().all()
            assert mixed != cell.endswith("*")
            exact = sum(Decimal(repr(float(value))) for value in some["value"]) / 3
            exact = Decimal(repr(float(some["mixture"].iloc[0]))) if mixed else exact
            assert Decimal(cell.removesuffix(" *")) == up(exact), (name, bound)
            checked += 1
    assert checked > 50
