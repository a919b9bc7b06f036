"""The self-check passes here, notices a wrong number, and says what is wrong with a bad file."""

import numpy as np
import pytest

from tests.cases import SHARED
from tools.selfcheck import main, shipped


def altered(tmp_path, **changes):
    with np.load(shipped()[0]) as archive:
        arrays = {key: archive[key] for key in archive}
    for key, change in changes.items():
        arrays[key] = change(arrays[key])
    np.savez(tmp_path / "altered.npz", **arrays)
    return str(tmp_path / "altered.npz")


def test_shipped_ground_truth_passes(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert "All within tolerance" in out
    assert all(quantity in out for quantity in ("mean_logits", "cov_prior", "kl", "ce", "err"))


def test_shipped_copies_equal_the_shared_originals():
    if not SHARED.is_dir():
        pytest.skip("../shared/fixtures is not on this machine: the copies in tools/fixtures are all there is.")
    for path in shipped():
        assert path.read_bytes() == (SHARED / path.name).read_bytes()


@pytest.mark.parametrize("key", ["mean_logits", "mean_v", "cov", "cov_prior", "kl", "ce", "err"])
def test_any_altered_quantity_is_noticed(tmp_path, capsys, key):
    assert main([altered(tmp_path, **{key: lambda array: array * 1.001 + 1e-3})]) == 1
    assert f": {key} with " in capsys.readouterr().err


@pytest.mark.parametrize("key", ["omega", "features", "posterior_d", "prior_q", "T", "z"])
def test_any_altered_input_is_noticed(tmp_path, key):
    def change(array):  # symmetric, so that Ω stays a valid fitness
        return array * 1.01

    assert main([altered(tmp_path, **{key: change})]) == 1


def test_impossible_inputs_are_reported_not_raised(tmp_path, capsys):
    def asymmetric(omega):
        omega = omega.copy()
        omega[0, 0, 1, 1] += 1
        return omega

    assert main([altered(tmp_path, omega=asymmetric)]) == 1
    assert "omega must be symmetric" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 truncated", b"\x80\x04K\x01."])
def test_unreadable_files_get_a_sentence_and_exit_code_2(tmp_path, capsys, content):
    path = tmp_path / "broken.npz"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    assert "broken.npz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "change", "words"),
    [
        ("omega", lambda a: a[0], "omega must be of shape"),
        ("features", lambda a: a[0], "features must be of shape"),
        ("mean_logits", lambda a: a[:, 1:], "mean_logits must be of shape"),
        ("T", lambda a: [1.0, 2.0], "T must be of shape"),
        ("ce", lambda a: a * np.nan, "ce must hold finite real numbers"),
        ("omega", lambda a: a.astype(complex), "omega must hold finite real numbers"),
        ("labels", lambda a: a.astype(str), "labels must hold finite real numbers"),
    ],
)
def test_files_of_another_format_get_a_sentence_and_exit_code_2(tmp_path, capsys, key, change, words):
    assert main([altered(tmp_path, **{key: change})]) == 2
    assert words in capsys.readouterr().err


def test_missing_files_keys_and_devices_get_a_sentence_and_exit_code_2(tmp_path, capsys):
    assert main([str(tmp_path / "nowhere.npz")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    np.savez(tmp_path / "half.npz", n=3, c=2)
    assert main([str(tmp_path / "half.npz")]) == 2
    assert "lacks T, omega" in capsys.readouterr().err
    np.savez(tmp_path / "pickled.npz", n=np.array([object()], dtype=object), allow_pickle=True)
    assert main([str(tmp_path / "pickled.npz")]) == 2
    assert main(["--device", "nonsense"]) == 2
    assert "The device 'nonsense' cannot be used" in capsys.readouterr().err
