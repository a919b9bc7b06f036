"""The digest on disk is that of the network, in the order of the split, and only for data that it never saw."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.data.splits import LeakError, Seen
from ldaf_bench.methods import METHODS
from ldaf_bench.plan import DigestOf
from ldaf_bench.resources import Placed
from ldaf_bench.stages import digest as stage
from ldaf_bench.stages.digest import Work, digest, digest_images
from ldaf_bench.stages.networks import share
from ldaf_bench.stages.writer import open_access
from ldaf_bench.store.digests import chosen, digest_path, load_digest
from ldaf_bench.store.store import open_store
from tests.networks import Runner, config_for, digits_splits, plan_for, trained

LDAF = "ldaf"


@pytest.fixture(scope="module")
def networks(tmp_path_factory):
    """A trained network of each method."""
    return {name: trained(tmp_path_factory.mktemp(name), config_for(name)) for name in METHODS}


def make(network, method, part, store, dataset=None, at_most=None, alone=True):
    """Make a digest and say where it is."""
    dataset = dataset or digits_splits()[0]
    with open_access(open_store(store), joined=False) as access:
        splits = network.config.splits(dataset)
        parts = share(dataset, splits)
        planned = DigestOf(network.identity, method, "{}")
        work = Work(planned, network, splits, part, at_most, parts.images[part], parts.labels[part],
                    Placed(workers=2), access)  # fmt: skip
        told = []
        digest(work, alone, told.append)
    return store / digest_path(work.key)


@pytest.mark.parametrize("alone", [True, False], ids=["here", "by tasks"])
@pytest.mark.parametrize("method", METHODS)
def test_shards_together_are_the_whole_in_order(cluster, networks, tmp_path, monkeypatch, method, alone):
    monkeypatch.setattr(stage, "SHARD", 100)  # 359 test points: four shards, the last one smaller
    dataset, splits = digits_splits()
    network = networks[method]
    digested = load_digest(make(network, method, "test", tmp_path, alone=alone))
    images = torch.from_numpy(dataset.images[splits.test])
    expected = digest_images(METHODS[method], METHODS[method].digest_axes(), network.model(), images)
    assert digested.tensors.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(digested.tensors[name], value, rtol=1e-4, atol=1e-5)
    assert torch.equal(digested.labels, torch.from_numpy(dataset.labels[splits.test]))
    assert digested.record["points"] == splits.hash("test")
    assert (digested.record["num_data"], digested.record["method"]) == (359, method)


def test_some_points_are_spread_over_their_part(cluster, networks, tmp_path):
    dataset, splits = digits_splits()
    digested = load_digest(make(networks[LDAF], LDAF, "prior", tmp_path, at_most=100))
    indices = chosen(splits, "prior", 100)
    assert 50 < len(indices) <= 100
    assert set(indices) < set(splits.prior)
    assert max(np.diff(np.searchsorted(splits.prior, indices))) == min(np.diff(np.searchsorted(splits.prior, indices)))
    assert torch.equal(digested.labels, torch.from_numpy(dataset.labels[indices]))


def test_a_digest_is_made_once_and_read_memory_mapped(cluster, tmp_path):
    trained(tmp_path, config_for(LDAF))
    run = Runner(plan_for(LDAF), tmp_path)
    path = run.sources().certificate.path
    made = (path / "rows.npy").stat().st_mtime_ns
    digested = run.sources(ray=False).certificate
    assert digested.path == path
    assert (path / "rows.npy").stat().st_mtime_ns == made
    assert str(path / "rows.npy") in Path("/proc/self/maps").read_text()
    before = (path / "rows.npy").read_bytes()
    digested.tensors["rows"][0] = 0  # copy on write: the file is not touched
    assert (path / "rows.npy").read_bytes() == before

    # What was altered is refused, and made again.
    content = (path / "mean.npy").read_bytes()
    (path / "mean.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ArtifactError, match=r"changed|damaged|does not hold|holds another|There is no"):
        load_digest(path)
    run.sources()
    assert "made again" in run.output.getvalue()
    assert (path / "mean.npy").read_bytes() == content

    # A network trained again to other weights has another digest.
    first = run.sources(ray=False).test
    shutil.rmtree(tmp_path / "networks")
    again = trained(tmp_path, config_for(LDAF), seed=5)
    assert again.identity == run.digest.network
    other = run.sources().test
    assert not torch.equal(other.tensors["mean"], first.tensors["mean"])


def test_the_network_must_not_have_seen_what_it_is_digested_on(cluster, networks, tmp_path):
    _, splits = digits_splits()
    for part in ("certificate", "test"):
        indices = np.sort(np.append(splits.prior, getattr(splits, part)[0]))
        network = dataclasses.replace(networks[LDAF], seen=Seen.of(splits.dataset, splits.num_data, indices))
        for other in ("prior", "certificate", "test"):
            with pytest.raises(LeakError, match=f"saw 1 of the .* {part} points"):
                make(network, LDAF, other, tmp_path)
    assert not (tmp_path / "digests").exists()


def test_a_network_is_not_digested_on_data_that_changed(cluster, networks, tmp_path):
    dataset, _ = digits_splits()
    images = dataset.images.copy()
    images[0] += 1
    other = dataclasses.replace(dataset, images=images)
    with pytest.raises(LeakError, match="other data"):
        make(networks[LDAF], LDAF, "test", tmp_path, dataset=other)
    with pytest.raises(LeakError, match="other data"):
        share(other, digits_splits()[1])


def test_a_digest_that_is_not_finite_is_refused(networks, monkeypatch):
    method = dataclasses.replace(METHODS[LDAF], digest=lambda *_: {"mean": torch.tensor([[1.0], [torch.nan]])})
    with pytest.raises(ValueError, match="the digest's mean must be finite"):
        digest_images(method, method.digest_axes(), networks[LDAF].model(), torch.zeros(2, 1, 8, 8))


def test_a_digest_under_another_name_is_refused(cluster, networks, tmp_path):
    path = make(networks[LDAF], LDAF, "test", tmp_path)
    wrong = path.with_name(path.name.replace("test", "certificate"))
    path.rename(wrong)
    with pytest.raises(ArtifactError, match="than its name says"):
        load_digest(wrong)
