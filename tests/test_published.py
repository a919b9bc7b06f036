"""What is published was made by the plan beside it, and nobody has changed it since."""

import json
from pathlib import Path

import pandas
import pytest

from ldaf_bench.results.collect import TABLE_FILES
from ldaf_bench.store.archive import unpack
from ldaf_bench.verify.__main__ import check_price
from ldaf_bench.verify.__main__ import main as verify
from ldaf_bench.verify.checks import VerifyError
from ldaf_bench.verify.folder import read_plan
from tests.test_pack import packed_again, sealed
from tools import published

PUBLISHED = Path(__file__).parents[1] / "results" / "published"
FOLDERS = sorted(path.parent for path in PUBLISHED.glob("*/plan.json"))
EDITED = {"fashion_rivals"}
"""Computed while figures and data sets of the package were being edited; results/README.md says so."""
ARCHIVES = sorted(PUBLISHED.glob("*.tar"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_folder_is_that_of_its_plan_and_sealed(folder, tmp_path):
    plan, content = read_plan(folder, tmp_path)
    assert plan.suite.suite == folder.name
    check_price(plan, content)
    frame = pandas.read_parquet(folder / TABLE_FILES[0])
    assert frame["error"].isna().all()
    made, asked = set(frame["integration"]), {one.identity for one in plan.integrations}
    if plan.suite.search is None:
        assert made == asked | {one.mean for one in plan.means}
    else:  # it tries some of the grid and pays for all
        assert made < asked | {one.mean for one in plan.means}
    assert all(commit and (folder.name in EDITED or not commit.endswith("+")) for commit in frame["commit"].dropna())


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_published_archive_is_whole_and_of_its_plan(archive, tmp_path):
    unpack(archive, tmp_path)
    plan, content = read_plan(tmp_path / "results", tmp_path)
    assert plan.suite.suite == archive.stem
    check_price(plan, content)


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_published_archive_with_one_altered_byte_is_refused(archive, tmp_path, capsys):
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    altered = tmp_path / archive.name
    altered.write_bytes(content)
    assert verify([str(altered), "--root", str(tmp_path)]) == 1
    assert "was changed" in capsys.readouterr().err


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda archive: archive.name)
def test_a_published_archive_with_one_altered_plan_entry_is_refused(archive, tmp_path, capsys):
    """Even if seal and checksums are made to fit."""
    folder = tmp_path / archive.stem
    unpack(archive, folder)
    path = folder / "results" / "plan.json"
    plan = json.loads(path.read_text())
    plan["suite"]["certificates"]["delta"] = 0.5
    path.write_text(json.dumps(plan))
    sealed(folder)
    assert verify([str(packed_again(folder)), "--root", str(tmp_path)]) == 1
    assert "is not the plan that its suite makes" in capsys.readouterr().err


def test_archives_are_small_enough_to_be_fetched_with_the_code():
    assert sum(archive.stat().st_size for archive in ARCHIVES) < 40e6


def test_a_plan_with_another_entry_is_refused(tmp_path):
    folder = FOLDERS[0]
    for name in ("plan.json", "seal.json", *TABLE_FILES):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    content = json.loads((tmp_path / "plan.json").read_text())
    content["budget"]["delta"] = 0.5
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(VerifyError, match="was changed"):
        read_plan(tmp_path, tmp_path)


@pytest.mark.parametrize("name", published.TABLES)
def test_a_table_of_the_results_is_what_its_files_hold(name):
    assert published.written()[name] == published.tables()[name]


def test_certificates_of_the_tables_are_rounded_up():
    assert published.up([0.0600001]) == "6.01"
    assert published.up([0.06]) == "6.00"
    assert published.up([0.05, 0.07000003]) == "6.01"
