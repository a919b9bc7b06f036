"""An archive can be checked anywhere, from weights and data alone, and nothing in it can be changed unnoticed."""

import io
import json
import os
import random
import subprocess
import sys
import tarfile

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from ldaf_bench.artifacts import ArtifactError, file_sha256, fingerprint, write_manifest
from ldaf_bench.pack import main as pack
from ldaf_bench.results import collect
from ldaf_bench.store.archive import unpack, write_archive
from ldaf_bench.store.digests import DigestKey
from ldaf_bench.unpack import main as unpack_into
from ldaf_bench.verify.__main__ import main as verify
from tests.places import Place


@pytest.fixture(scope="module")
def archive(finished, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "small.tar"
    assert pack([str(finished.results / "small"), "--store", str(finished.store), "--out", str(path)]) == 0
    return path


@pytest.fixture
def unpacked(archive, tmp_path):
    unpack(archive, tmp_path / "unpacked")
    return tmp_path / "unpacked"


def packed_again(folder):
    path = folder.with_suffix(".tar")
    write_archive(path, {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()})
    return path


def test_an_archive_is_verified_without_a_store(finished, archive, capsys, monkeypatch, tmp_path):
    """Of digests it holds the logits of mean classifiers, on certificate and test part, and nothing else."""
    with tarfile.open(archive) as content:
        names = content.getnames()
    arrays = [name for name in names if name.endswith(".npy")]
    assert {name.split("/")[-1].split("-")[0] for name in arrays} == {"certificate", "test"}
    assert {name.split("/")[0] for name in names} == {"results", "store", "digests", "archive.json"}
    monkeypatch.chdir(tmp_path)  # no store here
    assert verify([str(archive)]) == 0
    said, rows = capsys.readouterr().out, finished.table().num_rows
    assert f"{rows} certificates" in " ".join(said.split())


def test_the_same_results_give_the_same_bytes(unpacked, archive):
    assert packed_again(unpacked).read_bytes() == archive.read_bytes()


def test_a_byte_changed_anywhere_is_noticed(archive, tmp_path, capsys):
    content, chance = bytearray(archive.read_bytes()), random.Random(0)
    with tarfile.open(archive) as tar:
        first = next(iter(tar))
    places = [0, 105, 140, 150, 257, 300, 511]  # name, mode, time, checksum, magic, owner and padding of a header
    places += [first.offset_data + first.size, len(content) - 1]  # padding of a file, and of the archive
    places += [first.offset_data + 3]  # content
    places += [chance.randrange(len(content)) for _ in range(30)]
    damaged = tmp_path / "damaged.tar"
    for number, place in enumerate(places):
        content[place] ^= 4
        damaged.write_bytes(content)
        with pytest.raises(ArtifactError):
            unpack(damaged, tmp_path / str(number))
        content[place] ^= 4
    damaged.write_bytes(content[:-512])
    assert verify([str(damaged)]) == 1
    assert "NOT verified" in capsys.readouterr().err


def sealed(folder):
    """Make the seal fit again: what a person determined to would do."""
    path = folder / "results" / "seal.json"
    seal = json.loads(path.read_text())
    seal["files"] = {name: file_sha256(folder / "results" / name) for name in seal["files"]}
    path.write_text(json.dumps(seal))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [("certificates", "report", "all"), ("certificates", "delta", 0.5), ("risks", "num_points", [32])],
)
def test_an_altered_entry_of_the_plan_is_noticed(unpacked, capsys, section, key, value):
    path = unpacked / "results" / "plan.json"
    plan = json.loads(path.read_text())
    plan["suite"][section][key] = value
    path.write_text(json.dumps(plan))
    sealed(unpacked)
    assert verify([str(packed_again(unpacked))]) == 1
    assert "is not the plan that its suite makes" in capsys.readouterr().err


def test_an_altered_weight_is_noticed_even_if_all_checksums_are_right(unpacked, capsys):
    """Whoever forges weights can make all names and checksums fit, but not what is computed from them."""
    for weights in unpacked.glob("store/networks/*/weights.safetensors"):
        tensors = load_file(weights)
        name = next(name for name in tensors if name.startswith("backbone") and tensors[name].ndim == 4)
        tensors[name].flatten()[0] += 1.0
        save_file(tensors, weights)
        manifest = weights.with_name("network.json")
        record = json.loads(manifest.read_text())
        manifest.unlink()
        write_manifest(
            weights.parent, manifest.name, {key: record[key] for key in record.keys() - {"checksum", "files"}}
        )
        for path in unpacked.glob(f"digests/{weights.parent.name}/*.json"):
            record = json.loads(path.read_text()) | {"weights": file_sha256(weights)}
            record.pop("checksum")
            path.unlink()
            key = DigestKey(**{field: record[field] for field in DigestKey.__dataclass_fields__})
            path.with_name(f"{key.name}.json").write_text(json.dumps({**record, "checksum": fingerprint(record)}))
            if (logits := path.with_suffix(".npy")).exists():
                logits.rename(path.with_name(f"{key.name}.npy"))
    assert verify([str(packed_again(unpacked))]) == 1
    assert "of the archive holds logits that are not the network's" in capsys.readouterr().err


def altered_logits(folder, alter):
    """In one digest of the certificate part, with its checksums made right."""
    path = next(folder.glob("digests/*/certificate-*.npy"))
    logits = np.load(path)
    alter(logits)
    np.save(path, logits)
    manifest = path.with_suffix(".json")
    record = json.loads(manifest.read_text())
    record.pop("checksum")
    (array,) = {"mean.npy", "logits.npy"} & record["files"].keys()
    record["files"][array] = file_sha256(path)
    manifest.write_text(json.dumps({**record, "checksum": fingerprint(record)}))


def test_a_forged_prediction_of_a_mean_classifier_is_noticed(unpacked, capsys):
    def turn(logits):
        order = np.argsort(logits, 1)
        near = np.argmin(np.ptp(np.take_along_axis(logits, order[:, -2:], 1), axis=1))
        logits[near, order[near, -2]] = logits[near, order[near, -1]] + 1e-3

    altered_logits(unpacked, turn)
    assert verify([str(packed_again(unpacked))]) == 1
    assert "of the archive holds logits that are not the network's" in capsys.readouterr().err


def test_logits_of_another_kind_are_refused(unpacked, capsys):
    next(unpacked.glob("digests/*/certificate-*.npy")).write_bytes(b"no array")
    assert verify([str(packed_again(unpacked))]) == 1
    assert "of the archive does not hold logits" in capsys.readouterr().err


@pytest.mark.parametrize("files", [None, [], {"logits.npy": "0"}])
def test_a_manifest_that_does_not_name_its_logits_is_refused(unpacked, capsys, files):
    manifest = next(unpacked.glob("digests/*/certificate-*.npy")).with_suffix(".json")
    record = json.loads(manifest.read_text()) | {"files": files}
    record.pop("checksum")
    manifest.write_text(json.dumps({**record, "checksum": fingerprint(record)}))
    assert verify([str(packed_again(unpacked))]) == 1
    assert "of the archive holds other logits than its digest" in capsys.readouterr().err


def test_an_archive_is_verified_by_a_version_with_more_settings(archive, monkeypatch):
    original = collect._setting
    monkeypatch.setattr(collect, "_setting", lambda *arguments: fingerprint([original(*arguments), "a new setting"]))
    assert verify([str(archive)]) == 0
    monkeypatch.setattr(collect, "_setting", lambda *arguments: "all the same")
    assert verify([str(archive)]) == 1


def test_an_archive_is_verified_by_a_processor_that_rounds_otherwise(archive, tmp_path):
    other = {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    line = [sys.executable, "-m", "ldaf_bench.verify", str(archive)]
    done = subprocess.run(line, env={**os.environ, **other}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_archive_without_its_data_says_how_to_fetch_them(archive, capsys, monkeypatch, tmp_path):
    from ldaf_bench.data.datasets import DATASETS

    monkeypatch.setitem(DATASETS, "digits", DATASETS["fashionmnist"])
    assert verify([str(archive), "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("NOT verified")


@pytest.mark.parametrize("name", ["../out", "/out", "a/../../out", ".hidden", "a//b", ""])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(name), io.BytesIO(b""))
    with pytest.raises(ArtifactError):
        unpack(path, tmp_path / "folder" / "inner")
    assert {file.name for file in tmp_path.rglob("*")} <= {"bad.tar", "folder", "inner"}


def test_links_are_refused(tmp_path):
    path = tmp_path / "bad.tar"
    with tarfile.open(path, "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ArtifactError, match="no plain file"):
        unpack(path, tmp_path / "folder")


def test_an_archive_cannot_fill_a_disk(tmp_path):
    """A megabyte of zeros takes 300 bytes; weights do not."""
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(bytes(1 << 20))
    write_archive(tmp_path / "bad.tar", {"a/weights.safetensors": weights})
    with pytest.raises(ArtifactError, match="16 times its size"):
        unpack(tmp_path / "bad.tar", tmp_path / "folder")


def test_a_folder_that_holds_no_results_is_a_sentence(tmp_path, capsys):
    assert pack([str(tmp_path)]) == 2
    assert "does not hold a plan" in capsys.readouterr().err


def test_a_suite_goes_on_from_an_archive_and_trains_nothing(finished, archive, capsys, tmp_path):
    """Digests are computed again; what rests on them and was in the archive is taken from there."""
    place = Place(tmp_path / "place")
    assert unpack_into([str(archive), "--store", str(place.store)]) == 0
    assert "networks among them: 2." in " ".join(capsys.readouterr().out.split())
    before = place.files()
    networks = {name: time for name, time in before.items() if name.startswith("networks/")}
    assert networks.keys() == {name for name in finished.files() if name.startswith("networks/")}
    assert place.run() == 0
    after = place.files()
    assert {name: after[name] for name in before} == before
    assert {name.split("/")[0] for name in after.keys() - before.keys()} <= {"digests", "ledger"}
    assert place.verify() == 0


def test_a_damaged_archive_leaves_a_store_as_it_is(archive, capsys, tmp_path):
    content = bytearray(archive.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(content)
    assert unpack_into([str(damaged), "--store", str(tmp_path / "store")]) == 2
    assert "damaged.tar" in capsys.readouterr().err
    assert not list(tmp_path.glob("store/*"))
