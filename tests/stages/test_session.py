"""What fits on a cluster: a worker stands on one node, networks side by side; what may still come is waited for."""

import pytest

from ldaf_bench.resources import Resources
from ldaf_bench.stages import session
from ldaf_bench.stages.session import ResourceError, fitted, groups_at_once, wait_until_fitted


@pytest.fixture
def nodes(monkeypatch):
    """The nodes of an imaginary cluster, as (cores, GPUs); tests add to it."""
    listing = []

    def described():
        return [{"Alive": True, "Resources": {"CPU": cpus, "GPU": gpus}} for cpus, gpus in listing]

    monkeypatch.setattr(session.ray, "nodes", described)
    return listing


def cpus(groups=1, **wanted):
    return fitted(Resources(**wanted), groups).cpus_per_worker


def test_cores_are_shared_by_node_and_never_across_nodes(nodes):
    nodes += [(8, 0), (8, 0)]
    assert [cpus(workers=k) for k in (1, 2, 3, 4, 16)] == [8, 8, 4, 4, 1]
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=17)
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=1, cpus_per_worker=9)


def test_workers_with_gpus_leave_half_of_the_cores_to_others(nodes):
    nodes += [(16, 0), (8, 2)]
    assert cpus(workers=2, gpus_per_worker=1) == 2
    assert cpus(workers=4, gpus_per_worker=0.5) == 1
    assert cpus(workers=2, gpus_per_worker=1, cpus_per_worker=4) == 4
    with pytest.raises(ResourceError, match="do not fit"):
        cpus(workers=3, gpus_per_worker=1)


def test_networks_side_by_side_share_the_cores(nodes):
    nodes += [(2, 0)]
    assert [groups_at_once(Resources(), wanted) for wanted in (1, 2, 9)] == [1, 2, 2]
    assert [cpus(groups=groups) for groups in (1, 2)] == [2, 1]
    # each of two workers needs a core of its own
    assert groups_at_once(Resources(workers=2), 9) == 1
    nodes += [(8, 4), (8, 4)]
    assert groups_at_once(Resources(workers=2, gpus_per_worker=1), 9) == 4
    assert groups_at_once(Resources(workers=2, cpus_per_worker=4), 9) == 2
    assert groups_at_once(Resources(workers=100), 9) == 1  # `fitted` refuses it, with a sentence


class Asked:
    """An imaginary autoscaler that brings a node at the second look."""

    def __init__(self, nodes, monkeypatch):
        self.nodes, self.bundles, self.said = nodes, [], []
        monkeypatch.setattr(session, "request_resources", lambda bundles: self.bundles.append(bundles))
        monkeypatch.setattr(session.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.nodes.append((4, 1))


def test_a_cluster_that_grows_is_asked_and_waited_for_with_a_sentence(nodes, monkeypatch):
    nodes.append((4, 0))
    asked, wanted = Asked(nodes, monkeypatch), Resources(workers=2, gpus_per_worker=1)
    wait_until_fitted([wanted], 10, asked.said.append)
    assert nodes == [(4, 0), (4, 1), (4, 1)]
    assert asked.bundles == [[{"CPU": 1, "GPU": 1}] * 2, []]
    (sentence,) = asked.said
    assert sentence.startswith(
        "Waiting for the cluster, at most 10:00. 2 workers with 1 CPUs and 1 GPUs each do not fit"
    )


def test_what_never_comes_is_refused(nodes, monkeypatch):
    nodes.append((4, 0))
    asked = Asked(nodes, monkeypatch)
    monkeypatch.setattr(session.time, "sleep", lambda seconds: None)
    with pytest.raises(ResourceError, match=r"lower workers, .* We waited 0\.0005 minutes\."):
        wait_until_fitted([Resources(gpus_per_worker=1)], 0.0005, asked.said.append)
    with pytest.raises(ResourceError, match=r"or gpus_per_worker\.$"):
        wait_until_fitted([Resources(gpus_per_worker=1)], 0, asked.said.append)
    assert len(asked.said) == 1
