"""What fits on a cluster, what `auto` makes of it, and what may still come is waited for."""

from pathlib import Path

import pytest

from ldaf_bench.resources import Resources, TrainResources
from ldaf_bench.stages import session
from ldaf_bench.stages.session import Node, ResourceError, place, shipped, wait_for_nodes


def placed(some, networks=1, batch=64, digest=None, **train):
    return place([Node(*one) for one in some], TrainResources(**train), Resources(**(digest or {})), networks, batch)


def cpus(some, networks=1, **train):
    return placed(some, networks, **train).train.cpus_per_worker


@pytest.mark.parametrize(
    ("gpus", "networks", "batch", "workers", "groups"),
    [
        ([0], 1, 128, 1, 1),
        ([0], 3, 128, 1, 3),
        ([1], 1, 128, 1, 1),
        ([1], 3, 128, 1, 1),
        ([4], 1, 128, 4, 1),
        ([4], 1, 500, 4, 1),
        ([4], 3, 128, 1, 3),
        ([8], 1, 128, 8, 1),
        ([8], 1, 500, 5, 1),  # 8, 7 and 6 do not divide the batch
        ([8], 3, 128, 2, 3),
        ([8], 16, 128, 1, 8),
        ([8, 8], 1, 128, 16, 1),
        ([8, 8], 3, 128, 4, 3),
        ([8, 8], 1, 2, 1, 1),  # a worker needs two images of a batch
    ],
)
def test_gpus_are_divided_among_the_networks_as_a_number_that_divides_the_batch(gpus, networks, batch, workers, groups):
    found = placed([(16, count) for count in gpus], networks, batch)
    assert (found.train.workers, found.groups) == (workers, groups)
    assert found.train.gpus_per_worker == found.digest.gpus_per_worker == (1 if any(gpus) else 0)
    assert found.alone == (not any(gpus))
    assert batch % found.train.workers == 0


def test_what_the_suite_says_is_not_auto():
    found = placed([(8, 4)], workers=2, gpus_per_worker=0, digest={"gpus_per_worker": 0})
    assert (found.train.workers, found.train.gpus_per_worker, found.alone) == (2, 0, False)
    assert placed([(8, 4)], gpus_per_worker=0.5).train.workers == 8
    assert placed([(8, 0)], digest={"workers": 2}).alone is False
    assert placed([(8, 4)], 9, at_once=2).groups == 2
    trained_on_cores = placed([(8, 4)], workers=1, gpus_per_worker=0)
    assert (trained_on_cores.digest.workers, trained_on_cores.digest.gpus_per_worker) == (1, 1)
    with pytest.raises(ResourceError, match="0 GPUs"):
        placed([(8, 0)], gpus_per_worker=1)


def test_cores_are_shared_by_node_and_never_across_nodes():
    some = [(8, 0), (8, 0)]
    assert [cpus(some, workers=k) for k in (1, 2, 3, 4, 16)] == [8, 8, 4, 4, 1]
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(some, workers=17)
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(some, workers=1, cpus_per_worker=9)


def test_workers_with_gpus_leave_half_of_the_cores_to_others():
    some = [(16, 0), (8, 2)]
    assert cpus(some, workers=2, gpus_per_worker=1) == 2
    assert cpus(some, workers=4, gpus_per_worker=0.5) == 1
    assert cpus(some, workers=2, gpus_per_worker=1, cpus_per_worker=4) == 4
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(some, workers=3, gpus_per_worker=1)


def test_networks_side_by_side_share_the_cores():
    assert [placed([(2, 0)], wanted).groups for wanted in (1, 2, 9)] == [1, 2, 2]
    assert [cpus([(2, 0)], wanted) for wanted in (1, 2)] == [2, 1]
    # each of two workers needs a core of its own
    assert placed([(2, 0)], 9, workers=2).groups == 1
    some = [(8, 4), (8, 4)]
    assert placed(some, 9, workers=2, gpus_per_worker=1).groups == 4
    assert placed(some, 9, workers=2, cpus_per_worker=4, gpus_per_worker=0).groups == 2


class Asked:
    """An imaginary autoscaler that brings a node at the second look."""

    def __init__(self, monkeypatch):
        self.nodes, self.bundles, self.said = [Node(4, 0)], [], []
        monkeypatch.setattr(session, "nodes", lambda: self.nodes)
        monkeypatch.setattr(session, "request_resources", lambda bundles: self.bundles.append(bundles))
        monkeypatch.setattr(session.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.nodes.append(Node(4, 1))

    def wait(self, minutes, **train):
        asked = TrainResources(**train)
        wait_for_nodes(lambda some: place(some, asked, Resources(), 1, 64), [asked], minutes, self.said.append)


def test_a_cluster_that_grows_is_asked_and_waited_for_with_a_sentence(monkeypatch):
    asked = Asked(monkeypatch)
    asked.wait(10, workers=2, gpus_per_worker=1)
    assert asked.nodes == [(4, 0), (4, 1), (4, 1)]
    assert asked.bundles == [[{"CPU": 1, "GPU": 1}] * 2, []]
    (sentence,) = asked.said
    assert sentence.startswith("Waiting for the cluster, at most 10:00.")


def test_what_never_comes_is_refused(monkeypatch):
    asked = Asked(monkeypatch)
    monkeypatch.setattr(session.time, "sleep", lambda seconds: None)
    with pytest.raises(ResourceError, match=r"lower workers, .* We waited 0\.0005 minutes\."):
        asked.wait(0.0005, gpus_per_worker=1)
    with pytest.raises(ResourceError, match=r"or gpus_per_worker\.$"):
        asked.wait(0, gpus_per_worker=1)
    assert len(asked.said) == 1


def test_a_cluster_gets_the_package_the_plug_ins_and_the_commit(tmp_path, monkeypatch):
    (tmp_path / "my_method.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("LDAF_BENCH_PLUGINS", " my_method,json.decoder ")
    found = shipped()
    # As paths: within a submitted job Ray copies what it is given, and modules cannot be copied.
    assert [Path(place).name for place in found["py_modules"]] == ["ldaf_bench", "my_method.py", "json"]
    assert all(Path(place).is_absolute() for place in found["py_modules"])
    assert found["env_vars"]["LDAF_BENCH_PLUGINS"] == "my_method,json.decoder"
    assert found["env_vars"]["LDAF_BENCH_COMMIT"]
    monkeypatch.delenv("LDAF_BENCH_PLUGINS")
    assert len(shipped()["py_modules"]) == 1
