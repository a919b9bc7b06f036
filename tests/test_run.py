"""A suite end to end: certificates that hold up, nothing made twice, nothing lost whatever is killed."""

import dataclasses
import json
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
import yaml
from safetensors.torch import load_file, save_file

from ldaf_bench.artifacts import write_manifest
from ldaf_bench.data.datasets import DATASETS, load
from ldaf_bench.data.fetch import Fetched
from ldaf_bench.results.record import CURVES, record_columns, schema
from ldaf_bench.store.posteriors import load_integration
from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.certificate import Budget, certify
from ldaf_bench.theory.integrate import INTEGRATORS
from ldaf_bench.verify.__main__ import check_price
from ldaf_bench.verify.checks import VerifyError, check_row
from ldaf_bench.verify.folder import read_plan
from ldaf_bench.verify.price import budget_of, recount
from tests.places import SMALL, Place, steady


@pytest.fixture
def copied(finished, tmp_path):
    shutil.copytree(finished.folder, tmp_path / "copy")
    return Place(tmp_path / "copy")


def test_every_certificate_is_there_and_the_table_is_the_record(finished):
    table = finished.table()
    assert table.schema.equals(schema(record_columns()), check_metadata=False)
    assert finished.table("curves").schema.equals(schema(CURVES), check_metadata=False)
    frame = table.to_pandas()
    # 2 fitted posteriors × 4 integrations × 9 bounds (`catoni` at 2 guesses) × 2 ε; 2 unfitted ones with `chernoff` and
    # `betting` as well, and with `test_set` and `betting` on one draw per datum; 2 mean classifiers
    assert len(frame) == 2 * 4 * 9 * 2 + 2 * (4 * 11 + 2) * 2 + 2 * 3 * 2
    assert frame["error"].isna().all()
    assert frame["classifier"].value_counts().to_dict() == {"posterior": 144, "prior": 184, "mean": 12}
    certified = frame[
        frame["integrator"].isin(["mc", "bonferroni", "forward_mc", "one_draw"]) | frame["integrator"].isna()
    ]
    assert certified["certified"].all()
    assert not frame[frame["integrator"] == "qmc"]["certified"].any()
    assert frame["value"].between(0, 1).all()
    # above what it is a bound of, on the certificate part and on the test part
    mean = frame["classifier"] == "mean"
    assert (frame["value"] > frame["mean_error"].where(mean, frame["risk"])).all()
    assert (frame["value"] > frame["mean_test_error"].where(mean, frame["test_risk"])).all()
    assert (certified[certified["bound"] == "kl"]["value"] < 0.6).all()
    # 2 covariances × the events of kl, catoni (2 guesses), catoni_grid, split_kl, (unfitted) chernoff, test_set, and
    # betting on 4 certified integrations; 4 posteriors × mc and forward_mc × the risk and (for split_kl) the excess
    assert set(frame[~mean]["num_events"]) == {22}
    assert set(frame[~mean]["num_integrations"]) == {16}
    assert set(frame[mean]["num_events"]) == {4}
    # A guess is a column of the bounds that rest on one, and an event of its own.
    guessed = frame[frame["bound"] == "catoni"]
    assert set(guessed["guess"]) == {0.05, 0.1}
    assert guessed.groupby("guess")["event"].nunique().eq(1).all()
    assert guessed["event"].nunique() == 2
    assert frame[frame["bound"] != "catoni"]["guess"].isna().all()
    # Betting spends no δ′, and has no use for an upper end of the risk.
    assert frame[frame["bound"] == "betting"]["delta"].eq(0).all()
    assert frame[frame["bound"].isin(["betting", "split_kl"])]["risk_upper"].isna().all()
    # Nobody may pick for free: what could be picked instead of a draw does not get the draw's δ′. Mean classifiers are
    # a choice apart, and spend all of it.
    assert (frame[~mean]["level"] == frame[~mean]["epsilon"]).all()
    assert (frame[mean]["level"] == frame[mean]["epsilon"] + 0.01).all()
    assert (frame[certified_rows := frame["certified"]]["total"] == frame[certified_rows]["epsilon"] + 0.01).all()
    assert frame[~certified_rows]["total"].isna().all()
    assert frame["mixture"].isna().all()
    kinds = finished.table("curves").to_pandas()
    assert set(kinds["kind"]) == {"training", "fit", "integration"}


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
    assert "340 certificates of 18 integrations and 2 networks agree" in capsys.readouterr().out


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


@pytest.mark.parametrize("column", ["value", "num_events", "certified", "epsilon", "kl_divergence"])
def test_an_edited_table_is_noticed(copied, column):
    path = copied.results / "small" / "results.parquet"
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[0] = not values[0] if column == "certified" else (values[0] or 0) / 2 if column != "num_events" else 1
    index = table.column_names.index(column)
    pq.write_table(
        table.set_column(index, table.schema.field(column), pa.array(values, table.schema.field(column).type)), path
    )
    assert copied.verify() == 1


def rewrite(path, change):
    """Edit a manifest, and its checksums too: what a person determined to would do."""
    content = json.loads(path.read_text())
    change(content)
    path.unlink()
    write_manifest(path.parent, path.name, {key: content[key] for key in content.keys() - {"checksum", "files"}})


def integration_of(place, integrator):
    """The folder of an integration of a fitted posterior."""
    frame = place.table().to_pandas()
    row = frame[(frame["integrator"] == integrator) & (frame["classifier"] == "posterior")].iloc[0]
    return place.store / "integrations" / row["integration"], place.store / "posteriors" / row["posterior"]


def believed(place, monkeypatch):
    """The next run computes certificates from what is stored; only computing it again can tell."""
    monkeypatch.setattr("ldaf_bench.run.report", lambda _, folder: folder)
    assert place.run() == 0


def fewer_errors(table):
    """A hit less in every fourth of the data that has one."""
    hits = [hit - 1 if hit and number % 4 == 0 else hit for number, hit in enumerate(table["hits"].to_pylist())]
    return table.set_column(1, "hits", pa.array(hits, pa.int64()))


def more_draws(table):
    return table.set_column(2, "draws", pa.array([2 * n for n in table["draws"].to_pylist()], pa.int64()))


def smaller_values(table):
    return table.set_column(0, "value", pa.array([value / 2 for value in table["value"].to_pylist()], pa.float64()))


def same_errors_elsewhere(table):
    return table.set_column(1, "hits", pa.array(table["hits"].to_pylist()[::-1], pa.int64()))


@pytest.mark.parametrize(
    ("integrator", "change", "says"),
    [
        ("mc", fewer_errors, "the risk is"),
        ("forward_mc", fewer_errors, "the risk is"),
        ("forward_mc", more_draws, "the risk is"),
        ("forward_mc", same_errors_elsewhere, "other data are wrong"),
        ("bonferroni", smaller_values, "the risk is"),
        ("qmc", smaller_values, "the risk is"),
    ],
)
def test_forged_values_of_an_integration_are_noticed(copied, monkeypatch, capsys, integrator, change, says):
    path, _ = integration_of(copied, integrator)
    pq.write_table(change(pq.read_table(path / "values.parquet")), path / "values.parquet")
    rewrite(path / "about.json", lambda content: None)
    believed(copied, monkeypatch)
    assert copied.verify() == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("integrator", "change", "says"),
    [
        ("qmc", {"estimate": False}, "what its values rest on is not said"),
        ("mc", {"standard_error": 1e-9}, "its standard error is"),
        ("mc", {"num_evaluations": 10**9}, "its evaluations is"),
        ("mc", {"posterior": "0" * 64}, ""),
    ],
)
def test_a_forged_record_of_an_integration_is_noticed_or_made_again(
    copied, monkeypatch, capsys, integrator, change, says
):
    path, _ = integration_of(copied, integrator)
    rewrite(path / "about.json", lambda content: content.update(change))
    believed(copied, monkeypatch)
    assert copied.verify() == (1 if says else 0)
    assert says in capsys.readouterr().err


def test_a_forged_divergence_is_noticed(copied, monkeypatch, capsys):
    _, path = integration_of(copied, "mc")
    rewrite(path / "about.json", lambda content: content["about"].update(kl_divergence=0.0))
    believed(copied, monkeypatch)
    assert copied.verify() == 1
    assert "KL is" in capsys.readouterr().err


def test_a_prior_that_was_fitted_to_the_certificate_part_is_noticed(copied, monkeypatch, capsys):
    """The posterior as its own prior: KL = 0, and a certificate that looks much better than it is."""
    _, path = integration_of(copied, "mc")
    tensors = load_file(path / "distributions.safetensors")
    forged = {name: tensors[name.replace("prior.", "posterior.")].clone() for name in tensors}
    save_file(forged, path / "distributions.safetensors")
    rewrite(path / "about.json", lambda content: content["about"].update(kl_divergence=0.0))
    believed(copied, monkeypatch)
    assert copied.verify() == 1
    assert "did not start from the prior that was planned" in capsys.readouterr().err


def test_a_fitted_posterior_is_not_sold_as_the_unfitted_prior(copied, monkeypatch, capsys):
    """Chernoff's bound needs a distribution that no certificate point has touched."""
    frame = copied.table().to_pandas()
    row = frame[frame["classifier"] == "prior"].iloc[0]
    path = copied.store / "posteriors" / row["posterior"]
    tensors = load_file(path / "distributions.safetensors")
    name = next(name for name in tensors if name.startswith("posterior."))
    save_file({**tensors, name: tensors[name] * 0.9}, path / "distributions.safetensors")
    rewrite(path / "about.json", lambda content: None)
    believed(copied, monkeypatch)
    assert copied.verify() == 1
    assert "says that it is unfitted" in capsys.readouterr().err


def test_a_table_that_paid_less_than_its_plan_is_noticed_row_by_row(finished):
    """`check_row` alone, without the table that it could be compared with."""
    plan, content = read_plan(finished.results / "small", Path("data"))
    rows = finished.table().to_pylist()
    row = next(row for row in rows if row["integrator"] == "mc" and row["bound"] == "kl")
    budget = budget_of(row, content["suite"], recount(content["suite"]))
    assert budget in plan.budgets(row["classifier"], row["integrator"])
    path = finished.store / "integrations" / row["integration"]
    content = json.loads((path / "about.json").read_text())
    integration = load_integration(path, content["source"]).integration
    check_row(row, [integration], [], budget, 0.01)
    free = Budget(budget.epsilon, budget.delta)
    kind, risk, num_data = row["classifier"], row["risk_upper"], row["num_certificate"]
    cheaper = float(certify(BOUNDS["kl"], kind, risk, row["kl_divergence"], num_data, free))
    lower = INTEGRATORS["mc"].upper(integration, budget.delta)
    for change, says in (
        ({"num_events": 1}, "the plan says"),
        ({"num_integrations": 1}, "the plan says"),
        ({"value": cheaper}, "the bound is"),
        ({"risk_upper": lower}, "at the δ′ that the plan pays for"),
        ({"risk_upper": row["risk"]}, "at the δ′ that the plan pays for"),
        ({"certified": False}, "says certified"),
        ({"delta": 0.0}, "paid for delta"),
        ({"level": row["epsilon"] + 0.01}, "paid for level"),
        ({"total": row["epsilon"]}, "fails with probability"),
        ({"event": "another"}, "another event"),
        ({"guess": 0.05}, "a guess where there is none"),
        ({"bound": "test_set", "event": BOUNDS["test_set"].event}, "is not about a"),
    ):
        with pytest.raises(VerifyError, match=says):
            check_row({**row, **change}, [integration], [], budget, 0.01)


@pytest.mark.parametrize("array", ["rows", "mean"])
def test_a_digest_that_is_wrong_for_one_datum_in_a_hundred_is_noticed(copied, capsys, array):
    """Also if it says that it is less exact than it is: `verify` does not ask its error estimate."""
    (path,) = copied.store.glob(f"digests/*/certificate-*/{array}.npy")
    values, errors = np.load(path), np.load(path.with_name("error.npy"))
    chosen = np.random.default_rng(1).permutation(len(values))[: len(values) // 100]
    values[chosen] *= 1.0005  # too little for the sample that goes through the network again
    errors[:] = 1.0
    np.save(path, values)
    np.save(path.with_name("error.npy"), errors)
    rewrite(path.with_name("digest.json"), lambda content: None)
    assert copied.verify() == 1
    assert f"has a wrong {'G' if array == 'rows' else 'M'}" in capsys.readouterr().err


def test_a_network_whose_worker_received_a_certificate_image_is_noticed(copied, capsys):
    path = next(copied.store.glob("networks/*/network.json"))
    rewrite(path, lambda content: content["training"]["starts"][0].update(received=["0" * 64]))
    assert copied.verify() == 1
    assert "received other data than the prior part" in capsys.readouterr().err


def test_the_same_image_in_two_parts_of_peoples_own_data_is_noticed(copied, monkeypatch, capsys):
    """As if the digits were a folder that nobody has looked through; first by `verify`, then by the next run."""
    plan, _ = read_plan(copied.results / "small", Path("data"))
    splits, own = plan.networks[0].splits, dataclasses.replace(DATASETS["digits"], sha256=None)
    monkeypatch.setattr("ldaf_bench.pipeline.DATASETS", {**DATASETS, "digits": own})
    assert copied.verify() == 0
    dataset = load("digits", Path("data"))
    images = dataset.images.copy()
    images[splits.certificate[3]] = images[splits.prior[0]]
    twice = dataclasses.replace(dataset, images=images)
    monkeypatch.setattr("ldaf_bench.verify.__main__.load", lambda *_: twice)
    monkeypatch.setattr("ldaf_bench.run.fetch", lambda *_, **__: Fetched(twice, "", None))
    capsys.readouterr()
    for command, code in ((copied.verify, 1), (copied.run, 2)):
        assert command() == code
        said = capsys.readouterr().err
        assert "are the same, but one is in the prior part and one in the certificate part: remove one of them." in said


def test_a_plan_that_was_written_after_its_results_is_noticed(copied, monkeypatch, capsys):
    """Results are looked at, the ledger is thrown away, and a cheaper plan is written down as if it had come first."""
    shutil.rmtree(copied.store / "ledger")
    shutil.rmtree(copied.results)
    extended(copied, certificates={"report": "all"})
    believed(copied, monkeypatch)
    assert copied.verify() == 1
    assert "the plan was made after its results" in capsys.readouterr().err


def test_a_network_that_is_trained_again_is_another_look(copied, monkeypatch, capsys):
    capsys.readouterr()
    believed(copied, monkeypatch)
    assert "looked at 1 time (1 plan, 2 trained networks" in capsys.readouterr().out
    for path in copied.store.glob("networks/*"):
        weights = load_file(path / "weights.safetensors")
        name = next(name for name in weights if name.endswith("linear.bias"))
        save_file({**weights, name: weights[name] + 0.01}, path / "weights.safetensors")
        rewrite(path / "network.json", lambda content: None)
    believed(copied, monkeypatch)
    assert "looked at 2 times (1 plan, 4 trained networks" in capsys.readouterr().out
    assert copied.verify() == 0
    assert "looked at 2 times" in capsys.readouterr().out


def test_a_plan_that_pays_too_little_is_counted_again_by_other_code(finished, monkeypatch):
    plan, content = read_plan(finished.results / "small", Path("data"))
    check_price(plan, content)
    content["budget"]["paid"]["stochastic"]["num_events"] -= 1
    with pytest.raises(VerifyError, match="events and integrations, but there are"):
        check_price(plan, content)


def test_an_edited_plan_is_noticed(copied, capsys):
    path = copied.results / "small" / "plan.json"
    content = json.loads(path.read_text())
    content["suite"]["certificates"]["report"] = "all"
    path.write_text(json.dumps(content))
    assert copied.verify() == 1
    assert "was changed" in capsys.readouterr().err


def test_what_is_deleted_or_damaged_is_made_again_and_nothing_else(copied, monkeypatch):
    monkeypatch.setattr("ldaf_bench.run.report", lambda _, folder: folder)  # it reads the tables only, and takes long
    expected = {name: steady(copied.table(name)) for name in ("results", "curves")}
    kinds = one_of_each(copied)
    kinds = {kind: path for kind, path in kinds.items() if kind[0] != "ledger"}
    assert {kind for kind, _ in kinds} == {"networks", "digests", "posteriors", "integrations", "convergence"}
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


def test_a_posterior_that_fails_is_a_row_with_its_error_and_the_run_goes_on(cluster, tmp_path, capsys):
    content = {
        **SMALL,
        "methods": {
            # plain SGD diverges from this start, and says so
            "ldaf": {
                **{axis: SMALL["methods"]["ldaf"][axis] for axis in ("flow", "num_nodes", "fit_points")},
                "covariance": ["paper", "code"],
                "optimizer": "sgd",
                "learning_rate": 1e6,
            },
            "deterministic": {},
        },
        "risks": {"integrator": "mc", "num_points": 16},
        "convergence": None,
    }
    place = Place(tmp_path / "failing", content)
    assert place.run() == 1
    assert "results failed" in capsys.readouterr().err
    frame = place.table().to_pandas()
    failed = frame[frame["error"].notna()]
    assert len(failed) == 2
    assert failed["error"].str.contains("ArithmeticError").all()
    assert failed["value"].isna().all()
    assert frame["error"].isna().sum() == 2 * 3 * 2  # 2 mean classifiers, 3 bounds, 2 ε
    assert Path(place.results / "small" / "report.html").exists()
    capsys.readouterr()
    assert place.verify() == 0
    assert "2 results failed and claim nothing" in capsys.readouterr().out


def extended(place, **sections):
    """The same folder with another suite file."""
    content = {**SMALL, **{name: {**SMALL[name], **section} for name, section in sections.items()}}
    place.file.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    "certificates",
    [
        {"epsilon": [0.02, 0.01, 0.05]},
        {"bound": ["kl", "test_set"], "epsilon": 0.1, "delta": 0.001},
        {"report": "all"},
    ],
    ids=["another ε", "fewer bounds, other levels", "another price"],
)
def test_new_certificates_cost_no_integration_and_no_ray(copied, monkeypatch, certificates):
    before = copied.files()
    monkeypatch.setattr("ldaf_bench.run.ray_session", None)
    monkeypatch.setattr("ldaf_bench.run.ray_is_there", lambda: False)
    monkeypatch.setattr("ldaf_bench.run.report", lambda _, folder: folder)
    extended(copied, certificates=certificates)
    assert copied.run() == 0
    made = {name.split("/")[0] for name in copied.files().keys() - before.keys()}
    assert made == {"ledger"}  # another look
    assert {name: when for name, when in copied.files().items() if name in before} == before
    frame = copied.table().to_pandas()
    wanted = certificates.get("epsilon", [0.01, 0.05])
    assert set(frame["epsilon"]) == set(wanted if isinstance(wanted, list) else [wanted])
    paid = set(frame[frame["integrator"].notna()]["num_events"])
    # kl on 2 priors, and test_set on their draws
    assert paid == ({1} if certificates.get("report") == "all" else {22} if "bound" not in certificates else {4})
    if certificates.get("report") == "all":
        # Nothing is selected, so everything has the same total: what leaves nothing to chance spends δ′ on its bound.
        free = frame["certified"] & frame["delta"].eq(0)
        assert (frame[free]["level"] == frame[free]["epsilon"] + 0.01).all()
        counting = frame["bound"].isin(["test_set", "split_kl"])
        assert frame[counting]["mixture"].isna().all()
        others = frame[~counting]
        assert np.allclose(others["mixture"], others["value"], rtol=0, atol=1e-12)  # one seed: the same classifier
    assert copied.verify() == 0
