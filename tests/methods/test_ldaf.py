"""What is less exact than it says is noticed and computed again."""

import pytest
import torch

from ldaf_bench.methods import ldaf
from ldaf_bench.models.network import build
from tests.networks import CONFIG, digits_splits


@pytest.fixture(scope="module")
def case():
    dataset, splits = digits_splits()
    images = torch.from_numpy(dataset.images[splits.certificate[:60]])
    model = build(CONFIG, (1, 8, 8), 10)
    model.prepare(images)
    return model.eval(), images


def digest(case):
    with torch.no_grad():
        return ldaf.digest(ldaf.DigestSpec(), *case)


def spoiling(monkeypatch, how_often):
    """`push` in float32 loses accuracy in half of the batch so often, a different half of a percent each time."""
    calls = []
    exact = ldaf.push

    def push(flow, parameter, features, horizon, *, tolerance=None):
        result = exact(flow, parameter, features, horizon, tolerance=tolerance)
        if features.dtype == torch.float32:
            calls.append(1)
            if len(calls) <= how_often:
                result.mean[: len(features) // 2] *= 1 + 1e-4 * len(calls)
        return result

    monkeypatch.setattr(ldaf, "push", push)
    return calls


def test_an_exact_result_is_computed_once(case, monkeypatch):
    calls = spoiling(monkeypatch, 0)
    digest(case)
    assert len(calls) == 1


def test_a_result_that_lost_accuracy_is_computed_again(case, monkeypatch):
    right = digest(case)
    calls = spoiling(monkeypatch, 1)
    found = digest(case)
    assert len(calls) == 2
    assert found.keys() == right.keys()
    assert all(torch.equal(found[name], value) for name, value in right.items())


def test_a_machine_that_never_gives_the_same_twice_is_named(case, monkeypatch):
    spoiling(monkeypatch, ldaf.ATTEMPTS)
    with pytest.raises(ArithmeticError, match="different results for the same input"):
        digest(case)


def test_what_comes_out_twice_is_what_the_computation_gives(case, monkeypatch):
    monkeypatch.setattr(ldaf, "is_as_exact_as_it_says", lambda *_: False)
    calls = spoiling(monkeypatch, 0)
    digest(case)
    assert len(calls) == 2
