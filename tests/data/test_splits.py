"""Splits are disjoint, cover everything, and a prior that saw a certificate or test point is refused."""

import base64
import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ldaf_bench.data.dataset import DataError, Dataset
from ldaf_bench.data.datasets import load
from ldaf_bench.data.splits import (
    PARTS,
    LeakError,
    Seen,
    SplitError,
    Splits,
    hash_indices,
    require_different_images,
    require_unseen,
    split,
)


@cache
def dataset(num_data=100, num_test=0, value=0):
    images = np.full((num_data, 1, 1, 1), value, np.uint8)
    return Dataset("made", images, np.arange(num_data) % 2, num_test, ("a", "b"))


def splits(**change):
    fields = {"prior": [0, 1, 5], "certificate": [2, 4], "test": [3, 6]}
    arrays = {part: np.array(change.get(part, fields[part]), np.int64) for part in PARTS}
    return Splits(**arrays, seed=0, dataset="d" * 64, num_data=7)


sizes = st.integers(20, 300)
fractions = st.floats(0.05, 0.9)
seeds = st.integers(0, 2**63)


@given(sizes, st.floats(0.0, 0.8), seeds, fractions, fractions)
def test_parts_are_disjoint_cover_all_and_have_the_right_sizes(num_data, official, seed, certificate, test):
    num_test = int(official * num_data)
    data = dataset(num_data, num_test)
    expected_test = num_test or round(test * num_data)
    expected_certificate = round(certificate * (num_data - expected_test))
    assume(0 < expected_certificate < num_data - expected_test)
    parts = split(data, seed=seed, certificate=certificate, test=test)
    together = np.concatenate([parts.prior, parts.certificate, parts.test])
    assert np.array_equal(np.sort(together), np.arange(num_data))
    assert (len(parts.test), len(parts.certificate)) == (expected_test, expected_certificate)
    if num_test:
        assert np.array_equal(parts.test, np.arange(num_data - num_test, num_data))


@given(sizes, seeds, fractions, st.sampled_from([0, 15]))
def test_validation_looks_at_the_prior_part_only(num_data, seed, validation, num_test):
    data = dataset(num_data, num_test)
    asked = {"seed": seed, "certificate": 0.3, "test": 0.2}
    real = split(data, **asked)
    held = round(validation * len(real.prior))
    assume(2 <= held < len(real.prior))
    tried = split(data, **asked, validation=validation)
    together = np.concatenate([getattr(tried, part) for part in PARTS])
    assert np.array_equal(np.sort(together), real.prior)
    assert (len(tried.certificate), len(tried.test)) == (held // 2, held - held // 2)


@given(seeds, st.integers(0, 30))
def test_the_same_seed_gives_the_same_split_and_another_seed_or_data_another(seed, num_test):
    data = dataset(100, num_test)
    one, again = (split(data, seed=seed, certificate=0.3) for _ in range(2))
    assert all(np.array_equal(getattr(one, part), getattr(again, part)) for part in PARTS)
    assert one.describe() == again.describe()
    for other in (
        split(data, seed=seed + 1, certificate=0.3),
        split(dataset(100, num_test, 1), seed=seed, certificate=0.3),
    ):
        assert not np.array_equal(one.certificate, other.certificate)


@given(seeds, fractions, fractions)
def test_more_certificate_points_contain_fewer_and_the_test_part_stays(seed, one, other):
    small, large = (split(dataset(200), seed=seed, certificate=part) for part in sorted((one, other)))
    assert set(small.certificate) <= set(large.certificate)
    assert np.array_equal(small.test, large.test)


def test_every_point_is_as_likely_as_any_other_to_be_a_certificate_point():
    data = dataset(50, 10)
    counts = np.zeros(50)
    for seed in range(2000):
        counts[split(data, seed=seed, certificate=0.25).certificate] += 1
    assert counts[40:].sum() == 0
    # Binomial(2000, 1/4): standard deviation 19.4; six of them.
    assert np.abs(counts[:40] - 500).max() < 6 * 19.4


@pytest.mark.parametrize(
    ("num_train", "certificate", "prior"), [(50_000, 0.2, 40_000), (60_000, 1 / 6, 50_000)], ids=["cifar", "fashion"]
)
def test_the_papers_sizes(num_train, certificate, prior):
    parts = split(dataset(num_train + 10_000, 10_000), seed=0, certificate=certificate)
    assert [len(getattr(parts, part)) for part in PARTS] == [prior, 10_000, 10_000]


def test_the_split_of_the_digits_is_this_one_on_every_machine():
    parts = split(load("digits"), seed=0, certificate=0.2)
    assert [len(getattr(parts, part)) for part in PARTS] == [1150, 288, 359]
    assert parts.hash("certificate") == "c2b69e02064c7d618bb9158b3f9cf8c8e6e151c2cd3aff4444f74bb0d3eb7c46"


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["certificate", "test"])
def test_fractions_are_between_0_and_1(name, fraction):
    with pytest.raises(SplitError, match=f"The fraction {name} must be between 0 and 1"):
        split(dataset(), seed=0, **{"certificate": 0.5, name: fraction})


def test_an_empty_part_is_refused():
    for certificate, test, part in ((0.001, 0.2, "certificate"), (0.999, 0.2, "prior"), (0.5, 0.001, "test")):
        with pytest.raises(SplitError, match=f"The {part} part is empty"):
            split(dataset(), seed=0, certificate=certificate, test=test)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prior": [0, 1, 2]}, "prior and certificate parts share 1 points, the first being 2"),
        ({"test": [0, 6]}, "prior and test parts share"),
        ({"certificate": [2, 3]}, "certificate and test parts share"),
        ({"prior": [1, 0, 5]}, "sorted and unique"),
        ({"prior": [0, 0, 5]}, "sorted and unique"),
        ({"test": [3, 7]}, r"in 0 … 6"),
        ({"prior": [-1, 0]}, r"in 0 … 6"),
        ({"certificate": []}, "certificate part is empty"),
        ({"test": [[3, 6]]}, "vector of int64"),
    ],
)
def test_splits_that_are_none_cannot_be_made(change, reason):
    with pytest.raises(SplitError, match=reason):
        splits(**change)


def test_indices_must_be_integers_and_cannot_be_changed():
    with pytest.raises(SplitError, match="vector of int64"):
        replace(splits(), prior=np.array([0.0, 1.0]))
    with pytest.raises(ValueError, match="read-only"):
        splits().prior[0] = 2


def test_a_hash_depends_on_the_points_and_the_data():
    one = splits()
    assert one.hash("prior") == hash_indices("d" * 64, np.array([0, 1, 5]))
    assert len({*map(one.hash, PARTS), replace(one, dataset="e" * 64).hash("prior")}) == 4
    assert hash_indices("d", np.arange(3, dtype=">i8")) == hash_indices("d", np.arange(3))
    with pytest.raises(SplitError, match="'train' is not a part"):
        one.hash("train")


def test_the_description_goes_into_a_json_file():
    described = splits().describe()
    assert json.loads(json.dumps(described)) == described
    assert described["certificate"] == {"size": 2, "hash": splits().hash("certificate")}


@given(sizes, seeds)
def test_what_a_prior_saw_is_recovered_from_its_checkpoint(num_data, seed):
    parts = split(dataset(num_data), seed=seed, certificate=0.3)
    seen = Seen.from_json(json.loads(json.dumps(Seen.of_prior(parts).to_json())))
    assert np.array_equal(seen.indices(), parts.prior)
    assert seen.hash == parts.hash("prior")
    require_unseen(seen, parts)


def test_sixty_thousand_points_take_ten_kilobytes():
    parts = split(dataset(60_000), seed=0, certificate=0.2)
    assert len(json.dumps(Seen.of_prior(parts).to_json())) < 10_500


@given(seeds, seeds, fractions)
def test_a_prior_of_another_seed_is_refused(one, other, certificate):
    assume(one != other)
    for data in (dataset(), dataset(100, 20)):
        trained, used = (split(data, seed=seed, certificate=certificate) for seed in (one, other))
        with pytest.raises(LeakError, match="The prior saw"):
            require_unseen(Seen.of_prior(trained), used)


@pytest.mark.parametrize("part", ["certificate", "test"])
def test_one_point_is_enough_to_be_refused(part):
    parts = split(dataset(), seed=0, certificate=0.3)
    for point in getattr(parts, part):
        seen = Seen.of(parts.dataset, 100, np.sort(np.append(parts.prior, point)))
        with pytest.raises(LeakError, match=f"saw 1 of the .* {part} points, the first being {point};"):
            require_unseen(seen, parts)


def test_a_prior_may_have_seen_less():
    parts = split(dataset(), seed=0, certificate=0.3)
    require_unseen(Seen.of(parts.dataset, 100, parts.prior[::2]), parts)
    require_unseen(Seen.of(parts.dataset, 100, parts.prior[:0]), parts)
    smaller = split(dataset(), seed=0, certificate=0.2)
    require_unseen(Seen.of_prior(parts), smaller)


def test_a_prior_of_other_data_is_refused_as_nothing_can_be_proven():
    parts, others = (split(data, seed=0, certificate=0.3) for data in (dataset(), dataset(value=1)))
    with pytest.raises(LeakError, match="trained on other data"):
        require_unseen(Seen.of_prior(others), parts)
    with pytest.raises(LeakError, match="trained on other data"):
        require_unseen(replace(Seen.of_prior(parts), num_data=104), parts)


def test_a_record_that_was_tampered_with_is_refused():
    parts = split(dataset(), seed=0, certificate=0.3)
    honest = Seen.of_prior(parts)
    nothing = Seen.of(parts.dataset, 100, parts.prior[:0])
    for change, reason in (
        ({"hash": "0" * 64}, "contradicts its hash"),
        ({"hash": parts.hash("certificate")}, "contradicts its hash"),
        ({"bits": nothing.bits}, "contradicts its hash"),
        ({"bits": honest.bits[:-4]}, "wrong length"),
        ({"bits": "AAAA" + honest.bits}, "wrong length"),
        ({"bits": "no base64!"}, "damaged"),
        ({"bits": "Ä" * 20}, "damaged"),
    ):
        with pytest.raises(LeakError, match=reason):
            require_unseen(replace(honest, **change), parts)
    beyond = bytearray(13)
    beyond[-1] = 1
    with pytest.raises(LeakError, match="wrong length"):
        require_unseen(replace(nothing, bits=base64.b64encode(beyond).decode()), parts)


@pytest.mark.parametrize("change", [{"bits": None}, {"num_data": "100"}, {"num_data": True}, {"more": 1}])
def test_a_record_of_another_form_is_refused(change):
    honest = Seen.of_prior(split(dataset(), seed=0, certificate=0.3)).to_json()
    with pytest.raises(LeakError, match="damaged"):
        Seen.from_json({**honest, **change})
    with pytest.raises(LeakError, match="damaged"):
        Seen.from_json({})


def test_what_was_seen_must_be_points_of_the_data():
    for indices in ([0, 100], [3, 2], [-1]):
        with pytest.raises(SplitError):
            Seen.of("d", 100, np.array(indices))


def test_all_errors_are_data_errors():
    assert issubclass(LeakError, DataError)
    assert issubclass(SplitError, DataError)
    assert issubclass(SplitError, ValueError)


def test_the_same_image_in_two_parts_is_refused_and_twice_in_one_part_is_not():
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (60, 1, 4, 4), dtype=np.uint8)
    data = Dataset("folder", images, generator.integers(0, 2, 60), 0, ("a", "b"))
    splits = split(data, seed=0, certificate=0.5)
    require_different_images(data, splits)
    twice = images.copy()
    twice[splits.prior[1]] = twice[splits.prior[0]]
    require_different_images(Dataset("folder", twice, data.labels, 0, ("a", "b")), splits)
    twice[splits.certificate[3]] = twice[splits.prior[0]]
    with pytest.raises(LeakError, match="are the same, but one is in the prior part and one in the certificate part"):
        require_different_images(Dataset("folder", twice, data.labels, 0, ("a", "b")), splits)
