"""A suite end to end: certificates that hold up, nothing made twice, nothing lost whatever is killed."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from ldaf_bench.artifacts import write_manifest
from ldaf_bench.results.record import CURVES, RECORD, schema
from ldaf_bench.verify.checks import kl_inverse, slow_bound
from tests.places import SMALL, Place, steady


@pytest.fixture(scope="module")
def finished(cluster, tmp_path_factory):
    place = Place(tmp_path_factory.mktemp("finished"))
    assert place.run() == 0
    return place


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy")
    return Place(tmp_path / "copy")


def test_every_certificate_is_there_and_the_table_is_the_record(finished):
    table = finished.table()
    assert table.schema.equals(schema(RECORD), check_metadata=False)
    assert finished.table("curves").schema.equals(schema(CURVES), check_metadata=False)
    frame = table.to_pandas()
    # 4 posteriors × 4 integrations × 6 bounds × 2 ε, and 2 mean classifiers × 2 bounds × 2 ε
    assert len(frame) == 4 * 4 * 6 * 2 + 2 * 2 * 2
    assert frame["error"].isna().all()
    certified = frame[frame["integrator"].isin(["mc", "bonferroni", "forward_mc"]) | frame["integrator"].isna()]
    assert certified["certified"].all()
    assert not frame[frame["integrator"] == "qmc"]["certified"].any()
    assert (frame["value"] >= frame["mean_error"] - 1e-9).sum() > 0
    assert frame["value"].between(0, 1).all()
    # non-vacuous, and above what the test part says
    best = certified[certified["bound"] == "kl"]
    assert (best["value"] < 0.6).all()
    # 2 covariances and 2 families of bounds; 4 posteriors with two integrations by chance each
    assert set(frame[frame["integrator"].notna()]["num_priors"]) == {4}
    assert set(frame[frame["integrator"].notna()]["num_integrations"]) == {8}
    kinds = finished.table("curves").to_pandas()
    assert set(kinds["kind"]) == {"training", "alternation", "integration"}


def test_the_tables_are_compressed_and_read_by_pandas_polars_and_duckdb(finished):
    path = finished.results / "small" / "results.parquet"
    expected = pq.read_table(path)
    mean = pa.compute.mean(expected["value"]).as_py()
    frame = polars.read_parquet(path)
    assert (frame.shape, frame["value"].mean()) == (expected.shape, pytest.approx(mean))
    assert frame.schema["finished"] == polars.Datetime("us", "UTC")
    query = "select count(*), avg(value), count(error), max(typeof(finished)) from read_parquet(?)"
    assert duckdb.execute(query, [str(path)]).fetchone() == (
        len(expected), pytest.approx(mean), 0, "TIMESTAMP WITH TIME ZONE",
    )  # fmt: skip
    assert pandas.read_parquet(path)["value"].mean() == pytest.approx(mean)
    file = pq.ParquetFile(finished.results / "small" / "results.parquet")
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    assert file.schema_arrow.field("value").metadata[b"about"].startswith(b"the certificate")


def test_the_certificates_are_verified_from_the_artifacts(finished, capsys):
    assert finished.verify() == 0
    assert "200 certificates of 18 cells and 2 priors agree" in capsys.readouterr().out


def test_a_second_run_makes_nothing_and_starts_no_ray(finished, monkeypatch):
    before, tables = finished.files(), [finished.table(name) for name in ("results", "curves")]

    def never(*_, **__):
        raise AssertionError("Ray was started.")

    monkeypatch.setattr("ldaf_bench.run.ray_session", never)
    monkeypatch.setattr("ldaf_bench.run.ray_is_there", lambda: False)
    assert finished.run() == 0
    assert finished.files() == before
    for table, name in zip(tables, ("results", "curves"), strict=True):
        assert finished.table(name).equals(table)


def test_the_report_is_there(finished):
    page = (finished.results / "small" / "report.html").read_text()
    assert "small" in page
    assert list((finished.results / "small" / "figures").glob("*.png"))


def one_of_each(place):
    """One file of every kind of artifact."""
    kinds = {}
    for path in sorted(place.store.rglob("*")):
        if path.is_file() and path.suffix not in (".lock",):
            kinds.setdefault((path.relative_to(place.store).parts[0], path.name), path)
    return kinds


def test_a_byte_changed_in_any_artifact_is_noticed(copied):
    kinds = one_of_each(copied)
    assert len(kinds) >= 12
    for path in kinds.values():
        content = path.read_bytes()
        path.write_bytes(content[:-3] + bytes([content[-3] ^ 4]) + content[-2:])
        assert copied.verify() == 1, path
        path.write_bytes(content)
    assert copied.verify() == 0


@pytest.mark.parametrize("column", ["value", "num_priors", "certified", "epsilon", "kl"])
def test_an_edited_table_is_noticed(copied, column):
    path = copied.results / "small" / "results.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[0] = not values[0] if column == "certified" else (values[0] or 0) / 2 if column != "num_priors" else 1
    index = table.column_names.index(column)
    pq.write_table(
        table.set_column(index, table.schema.field(column), pa.array(values, table.schema.field(column).type)), path
    )
    assert copied.verify() == 1


def forge(place, integrator, change):
    """A cell with other numbers that fit each other, and right checksums: only computing it again can tell."""
    for path in sorted(place.store.glob("cells/*/about.json")):
        content = json.loads(path.read_text())
        if content["planned"]["integrator"] == integrator:
            break
    for name in ("checksum", "files"):
        content.pop(name)
    for row in content["rows"]:
        change(row)
        risk, num_data = row["risk_upper"] or row["risk"], 719
        epsilon = row["epsilon"] / row["num_priors"]
        row["value"] = min(1.0, slow_bound(row["bound"], risk, row["kl"], num_data, epsilon))
    path.unlink()
    write_manifest(path.parent, path.name, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ldaf_bench.run.report", lambda _, folder: folder)
        assert place.run() == 0  # the next run believes it


def forget_to_pay(row):
    """The guarantee at δ′ instead of δ′ over the number of integrations."""
    share = row["num_evaluations"] / (719 * row["num_points"])
    row["risk_upper"] = share * kl_inverse(row["risk"] / share, math.log(1 / row["delta"]) / row["num_evaluations"])


def lower_the_risk(row):
    """By less than the noise of the draws, and all else to match."""
    row["risk"] -= 0.002
    complexity = math.log(row["num_integrations"] / row["delta"]) / row["num_evaluations"]
    row["risk_upper"] = kl_inverse(row["risk"], complexity)


@pytest.mark.parametrize(
    ("integrator", "change", "says"),
    [
        ("mc", forget_to_pay, "at the δ′ that the plan pays for"),
        ("mc", lambda row: row.update(risk_upper=row["risk"]), "at the δ′ that the plan pays for"),
        ("forward_mc", lambda row: row.update(num_evaluations=row["num_evaluations"] // 2), "not drawn for all"),
        ("bonferroni", lambda row: row.update(risk_upper=row["risk_upper"] - 1e-4), "the risk's guarantee is"),
        ("qmc", lambda row: row.update(risk_upper=row["risk"], certified=True), "does not allow"),
        ("mc", lambda row: row.update(kl=row["kl"] + 1), "KL is"),
        ("mc", lambda row: row.update(num_priors=1), "the plan says"),
        ("mc", lambda row: row.update(integrator="bonferroni"), "integrator is mc, not bonferroni"),
        ("forward_mc", lower_the_risk, "risk is"),
        ("qmc", lambda row: row.update(bound="kl" if row["bound"] == "classic" else row["bound"]), "classic"),
    ],
)
def test_a_forged_cell_is_noticed(copied, capsys, integrator, change, says):
    forge(copied, integrator, change)
    assert copied.verify() == 1
    assert says in capsys.readouterr().err


def test_a_prior_that_was_fitted_to_the_certificate_part_is_noticed(copied, capsys):
    """The posterior as its own prior: KL = 0, and a certificate that looks much better than it is."""
    for path in sorted(copied.store.glob("posteriors/*")):
        content = json.loads((path / "about.json").read_text())
        if content["about"]["objective"] == "lambda":
            break
    tensors = load_file(path / "gaussians.safetensors")
    forged = {name: tensors[name.replace("start", "posterior")].clone() for name in tensors}
    save_file(forged, path / "gaussians.safetensors")
    (path / "about.json").unlink()
    write_manifest(path, "about.json", {key: content[key] for key in content.keys() - {"checksum", "files"}})
    assert copied.run() == 0  # the next run believes it, and certifies again
    assert copied.verify() == 1
    assert "did not start from the prior that was planned" in capsys.readouterr().err


def test_an_edited_plan_is_noticed(copied, capsys):
    path = copied.results / "small" / "plan.json"
    content = json.loads(path.read_text())
    content["suite"]["certificates"]["report"] = "all"
    path.write_text(json.dumps(content))
    assert copied.verify() == 1
    assert "not the plan" in capsys.readouterr().err


def test_what_is_deleted_or_damaged_is_made_again_and_nothing_else(copied, monkeypatch):
    monkeypatch.setattr("ldaf_bench.run.report", lambda _, folder: folder)  # it reads the tables only, and takes long
    expected = {name: steady(copied.table(name)) for name in ("results", "curves")}
    kinds = one_of_each(copied)
    assert {kind for kind, _ in kinds} == {"priors", "pushforwards", "posteriors", "cells", "convergence"}
    for number, ((kind, name), path) in enumerate(kinds.items()):
        before = copied.files()
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(b"damaged")
        assert copied.run() == 0
        after = copied.files()
        made = {file for file, when in after.items() if before.get(file) != when and ".damaged" not in file}
        own = str(path.parent.relative_to(copied.store))
        assert all(file.startswith(own) for file in made), (kind, name, made)
        assert made
        for table, content in expected.items():
            assert steady(copied.table(table)).equals(content), (kind, name)


def test_whatever_is_killed_the_same_table_comes_out(finished, tmp_path):
    place = Place(tmp_path / "killed")
    command = [sys.executable, "-m", "ldaf_bench.run", *place.arguments]
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    moments = np.random.default_rng(7).uniform(5, 25, 2)
    for moment, how in zip(moments, [signal.SIGKILL, signal.SIGINT], strict=True):
        run = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(moment)
        run.send_signal(how)
        run.communicate(timeout=120)
    last = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert last.returncode == 0, last.stderr
    for name in ("results", "curves"):
        assert steady(place.table(name)).equals(steady(finished.table(name)))
    assert place.verify() == 0


def test_a_cell_that_fails_is_a_row_with_its_error_and_the_run_goes_on(cluster, tmp_path, capsys):
    content = {
        **SMALL,
        # plain SGD diverges from this start, and says so
        "posteriors": {"covariance": ["paper", "code"], "num_points": 64, "optimizer": "sgd", "learning_rate": 1e6},
        "risks": {"integrator": "mc", "num_points": 16},
        "convergence": None,
    }
    place = Place(tmp_path / "failing", content)
    assert place.run() == 1
    assert "cells failed" in capsys.readouterr().err
    frame = place.table().to_pandas()
    failed = frame[frame["error"].notna()]
    assert len(failed) == 2
    assert failed["error"].str.contains("ArithmeticError").all()
    assert failed["value"].isna().all()
    assert frame["error"].isna().sum() == 8
    assert Path(place.results / "small" / "report.html").exists()
    capsys.readouterr()
    assert place.verify() == 0
    assert "2 cells failed and claim nothing" in capsys.readouterr().out
