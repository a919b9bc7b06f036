"""The command that trains one prior: bad files end with one sentence, good files are all readable."""

from pathlib import Path

import pytest

from ldaf_bench.prior import main, read_file

GOOD = """
prior:
  dataset: digits
  split: {certificate: 0.3}
  backbone: tinynet
  recipe: tiny
"""


@pytest.mark.parametrize("path", sorted(Path("suites/priors").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_file_that_ships_is_valid(path):
    assert read_file(path).prior.dataset in path.stem


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("backbone", "backbon"), "prior.backbone"),
        (GOOD.replace("tinynet", "tinnynet"), "resnet18, speednet, tinynet"),
        (GOOD.replace("0.3", "3"), "prior.split.certificate"),
        (GOOD + "resources: {worker: 2}", "resources.worker"),
        (GOOD + "resources: {workers: 0}", "resources.workers"),
        (GOOD.replace("tiny\n", "{base: [tiny]}\n"), "must be a name"),
        (GOOD.replace("tinynet", "speednet"), "use tinynet"),
        (GOOD + "resources: {gpus_per_worker: 1.5}", "whole number"),
        ("- just\n- a list", "the file"),
        ("prior: [", "cannot be read as YAML"),
        ("prior: !!python/object/apply:os.system ['touch /tmp/owned']", "cannot be read as YAML"),
    ],
)
def test_a_bad_file_ends_with_one_sentence_and_code_2(tmp_path, capsys, text, says):
    file = tmp_path / "prior.yaml"
    file.write_text(text)
    assert main([str(file), "--store", str(tmp_path / "store")]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not (tmp_path / "store").exists()


def test_missing_data_say_how_to_get_them(tmp_path, capsys):
    assert main(["suites/priors/cifar10_speednet.yaml", "--root", str(tmp_path)]) == 2
    assert f"python -m ldaf_bench.data cifar10 --root {tmp_path}" in capsys.readouterr().err
