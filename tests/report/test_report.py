"""The command: what it writes, what it refuses, and what it never touches."""

import html
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ldaf_bench.report.__main__ import main
from ldaf_bench.report.figures import FIGURES
from ldaf_bench.report.folder import report
from ldaf_bench.report.page import MOST_CHILDREN, SUMMARY, page, tree
from ldaf_bench.report.records import ReportError, read
from ldaf_bench.report.tables import TABLES
from tests.report import synthetic

ONE_SUITE = [name for name in TABLES if name not in SUMMARY]
"""Tables of a page of one suite: those at the top are for many."""


def test_a_report_has_every_figure_every_table_and_one_page(reported):
    for name in FIGURES:
        assert (reported / "figures" / f"{name}.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert (reported / "figures" / f"{name}.pdf").read_bytes()[:5] == b"%PDF-"
    for name in ONE_SUITE:
        assert (reported / "tables" / f"{name}.md").stat().st_size > 100
        assert (reported / "tables" / f"{name}.tex").stat().st_size > 100
    assert (reported / "report.html").is_file()
    assert not list(reported.rglob("*.part"))


def test_the_page_shows_figures_tables_plan_provenance_promise_and_failures(reported):
    page = (reported / "report.html").read_text()
    for name, entry in FIGURES.items():
        assert f'id="figure-{name}"' in page
        assert html.escape(entry.title) in page
        assert f'href="figures/{name}.pdf"' in page
    for name in ONE_SUITE:
        assert f'id="table-{name}"' in page
    for said in (
        "1 − ε − δ′",
        "OutOfMemoryError",
        "0123abc",
        "400 more in plan.json",
        "SHA-256",
        "1 integration failed",
    ):
        assert said in page, said


def test_the_page_loads_nothing(reported):
    page = (reported / "report.html").read_text()
    assert not re.findall(r"""(?:src|href)=["']?(?:https?:|//)""", page)
    assert "url(" not in page
    assert "@import" not in page
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]+)"', page).group(1))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    assert "unsafe" not in policy
    assert page.count("<script") == page.count("</script>") == 1
    assert " style=" not in page
    assert not re.findall(r"<[^>]+ on[a-z]+=", page)


def test_nothing_that_a_record_or_a_file_is_called_becomes_markup(nasty):
    page = (nasty / "report.html").read_text()
    assert page.count("<script") == page.count("</script>") == 1
    assert "<img src=x" not in page
    assert page.count("<img ") == len(re.findall(r'<img src="data:image/png;base64,', page))
    assert "<b>a&b" not in page
    assert html.escape(synthetic.NASTY[0]) in page
    for hidden in ("\u202e", "\x1b"):
        assert hidden not in page
    for path in (nasty / "tables").iterdir():
        text = path.read_text()
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) < 20_000


def few():
    return synthetic.small(bounds=("kl",), seeds=(0,), covariances=("code",), flows=("daf",))


def test_a_report_without_any_row_says_so(tmp_path, capsys):
    synthetic.write(tmp_path, [])
    assert main([str(tmp_path)]) == 0
    assert str(tmp_path / "report.html") in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text()
    assert "There is no certificate in these records" in page
    assert "<img" not in page


def test_a_report_of_failures_only_lists_them(tmp_path):
    synthetic.write(tmp_path, [synthetic.failure(error=f"error {i}") for i in range(3)])
    assert main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "3 integrations failed" in page
    assert "error 2" in page


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_records_give_the_same_bytes_and_what_is_not_in_them_any_more_does_not_stay(tmp_path):
    folder, out = tmp_path / "records", tmp_path / "out"
    synthetic.write(folder, [*few(), synthetic.failure()], [])
    report([folder], out)
    before = contents(out)
    assert len(before) == 2 * 4 + 2 * 5 + 1
    (out / "figures" / "mine.png").write_bytes(b"mine")
    report([folder], out)
    assert contents(out) == before | {Path("figures/mine.png"): b"mine"}
    synthetic.write(folder, [], [])
    report([folder], out)
    assert set(contents(out)) == {Path("figures/mine.png"), Path("report.html")}


def test_several_folders_make_one_report_and_the_same_twice_counts_once(tmp_path, sweep):
    other = synthetic.write(tmp_path / "b", synthetic.small(suite="b", dataset="other"), [])
    both = read([sweep, other])
    assert set(both.results["suite"]) == {"digits", "b"}
    assert len(both.results) == len(read([sweep]).results) + len(read([other]).results)
    assert len(read([sweep, sweep, sweep / "."]).results) == len(read([sweep]).results)
    assert [source.rows for source in both.sources][1] == len(read([other]).results)


def test_a_certificate_that_two_folders_hold_counts_once_if_they_agree(tmp_path, capsys):
    later = [row | {"finished": synthetic.START, "train_seconds": 1.0} for row in few()]
    folders = [synthetic.write(tmp_path / "a", few(), []), synthetic.write(tmp_path / "b", later, [])]
    assert len(read(folders).results) == len(few())
    synthetic.write(tmp_path / "b", [row | {"value": 0.5} for row in later], [])
    assert main([str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "one of them at a time" in capsys.readouterr().err


def test_plans_of_one_name_are_told_apart(tmp_path):
    rows = [synthetic.small(recipe=recipe) for recipe in ("long", "short")]
    results = read([synthetic.write(tmp_path, rows[0] + rows[1], [])]).results
    assert set(results["suite"]) == {f"digits ({some[0]['plan'][:6]})" for some in rows}


def damage(folder, how):
    path = folder / "results.parquet"
    table = pq.read_table(path)
    if how == "missing":
        path.unlink()
    elif how == "no curves":
        (folder / "curves.parquet").unlink()
    elif how == "garbage":
        path.write_bytes(b"PAR1 no, not really PAR1")
    elif how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "flipped":
        content = bytearray(path.read_bytes())
        content[200:260] = bytes(60)
        path.write_bytes(content)
    elif how == "column":
        pq.write_table(table.drop_columns(["value"]), path)
    elif how == "extra":
        pq.write_table(table.append_column("more", pa.nulls(len(table), pa.list_(pa.int64()))), path)
    elif how == "ours":
        pq.write_table(table.append_column("_arm", pa.nulls(len(table), pa.int64())), path)
    elif how == "type":
        index = table.schema.names.index("value")
        pq.write_table(table.set_column(index, "value", table["value"].cast(pa.float32())), path)
    elif how in ("above 1", "huge"):
        name, value = ("value", 1.5) if how == "above 1" else ("kl_divergence", 1e300)
        rows = table.to_pylist()
        rows[3][name] = value
        pq.write_table(pa.Table.from_pylist(rows, table.schema), path)
    elif how == "directory":
        path.unlink()
        path.mkdir()


HOW = (
    "missing", "no curves", "garbage", "truncated", "flipped", "column", "extra", "ours", "type", "directory",
    "above 1", "huge",
)  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(how, tmp_path, capsys):
    synthetic.write(tmp_path, synthetic.small(seeds=(0,)))
    damage(tmp_path, how)
    assert main([str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert ".parquet" in said.err
    assert said.err.endswith(".\n")
    assert not (tmp_path / "out").exists()


def test_nowhere_to_write_is_one_sentence_and_exit_code_2(tmp_path, capsys):
    synthetic.write(tmp_path / "a", [])
    (tmp_path / "file").write_text("in the way")
    assert main([str(tmp_path / "a"), "--out", str(tmp_path / "file")]) == 2
    assert "--out" in capsys.readouterr().err
    with pytest.raises(ReportError, match="no folder"):
        read([])


def test_a_plan_that_is_no_json_does_not_stop_the_report(tmp_path):
    synthetic.write(tmp_path, [])
    for content in (b"{", b"\xff\xfe", b"[" * 200_000, b'{"a": NaN}'):
        (tmp_path / "plan.json").write_bytes(content)
        report([tmp_path], tmp_path)
        page = (tmp_path / "report.html").read_text()
        assert ("cannot be read as JSON" in page) == (b"NaN" not in content)


def test_a_plan_is_shown_no_deeper_and_no_longer_than_a_page_bears():
    deep = current = {}
    for _ in range(500):
        current["next"] = current = {}
    current = tree("plan", deep)
    depth = 0
    while current.children:
        current, depth = current.children[0], depth + 1
    assert depth < 20
    wide = tree("plan", {str(i): {} for i in range(10_000)})
    assert len(wide.children) == MOST_CHILDREN + 1


def test_numbers_of_a_plan_are_no_truth_values():
    values = [0, 1, 0.0, 1.0, True, False, None]
    shown = ["0", "1", "0", "1", "yes", "no", "none"]
    assert [child.text for child in tree("plan", dict(enumerate(values))).children] == shown
    assert tree("plan", values).text == ", ".join(shown)


def test_what_a_sentence_quotes_is_code_on_the_page(tmp_path):
    rows = synthetic.small(num_events=1, num_integrations=1, bounds=("kl",), dataset=synthetic.NASTY[1] + "<b>`")
    shown = page(read([synthetic.write(tmp_path, rows, [])]), [], {})
    assert "set <code>certificates.report: best</code>" in shown
    assert "<b>" not in re.sub(r"<li><b>\w+</b>", "", shown)
    rows = [row | {"dataset": "digits"} for row in rows]
    shown = page(read([synthetic.write(tmp_path, rows, [])]), [], {})
    assert "% (<code>kl</code>; may fail with probability 0.02; mean of 3 seeds" in shown
    assert "`" not in shown[shown.index("<main>") : shown.index("</main>")]


def test_the_command_runs_by_itself_and_needs_no_ray(tmp_path):
    code = (
        "import sys; from ldaf_bench.report.__main__ import main; code = main(sys.argv[1:]); "
        "assert 'ray' not in sys.modules; sys.exit(code)"
    )
    synthetic.write(tmp_path, few()[:1], [])
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
