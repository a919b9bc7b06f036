"""Twins of methods: they agree with the fast path, and notice what is wrong."""

import numpy as np
import pytest
import torch

from ldaf_bench.methods import METHODS
from ldaf_bench.theory.integrate import integrate
from ldaf_bench.verify import dense
from ldaf_bench.verify.checks import divergence
from ldaf_bench.verify.methods import METHOD_TWINS
from tests.networks import QUICK, config_for, data_of, trained

STOCHASTIC = [method for method in METHODS.values() if method.prior]
FITTED_MEAN = {"mean": "fitted", "objective": "zero_one"}


def test_every_method_with_a_distribution_has_a_twin():
    assert set(STOCHASTIC) <= set(METHOD_TWINS)


class Case:
    """A method's network, some data, and two distributions: a prior, and a posterior whose mean moved."""

    def __init__(self, method, store):
        self.method, self.twin, self.network = method, METHOD_TWINS[method], trained(store, config_for(method.name))
        self.data = data_of(self.network, method.name, "certificate", 60)
        self.prior = method.prior(method.prior_axes(covariance="isotropic", scale=0.3), self.network, None, 0)
        spec = method.fit_axes(**QUICK, **FITTED_MEAN, learning_rate=0.01)
        self.posterior = method.fit(spec, self.prior, self.data, 0, lambda value: None).distribution
        assert self.posterior.mean is not None


@pytest.fixture(scope="module", params=[m for m in STOCHASTIC if m in METHOD_TWINS], ids=lambda method: method.name)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp("twin"))


def test_its_logits_have_the_moments_of_the_problem(case):
    for distribution in (case.prior, case.posterior):
        problem = case.method.problem(case.method.digest_axes(), distribution, case.data)
        mean, factor = (tensor.numpy() for tensor in problem.differences(torch.float64))
        twins = case.twin.logits(case.data.digest, distribution)
        for k, (logits, label) in enumerate(zip(twins, case.data.labels.numpy(), strict=True)):
            rivals = np.delete(np.arange(10), label)
            moved = logits.noise[rivals] - logits.noise[label]
            np.testing.assert_allclose(logits.mean[rivals] - logits.mean[label], mean[k], atol=1e-9)
            np.testing.assert_allclose(moved @ moved.T, factor[k] @ factor[k].T, rtol=1e-8, atol=1e-10)


def test_its_bound_and_its_risk_are_those_of_the_integrators(case):
    problem = case.method.problem(case.method.digest_axes(), case.posterior, case.data)
    labels = case.data.labels.numpy()
    found = dense.tree_bound(case.twin.logits(case.data.digest, case.posterior), labels)
    np.testing.assert_allclose(found, integrate("bonferroni", problem).per_datum.numpy(), atol=1e-7)
    if case.twin.risk is not None:
        exact = case.twin.risk(case.twin.logits(case.data.digest, case.posterior), labels)
        estimate = integrate("conditional", problem, num_points=1024).per_datum.numpy()
        assert np.abs(exact - estimate).max() < 1e-3
        assert abs((exact - estimate).mean()) < 1e-4


def test_its_divergence_is_that_of_the_distributions(case):
    found = divergence(case.method, case.posterior, case.prior)
    assert found == pytest.approx(case.posterior.kl_from(case.prior), rel=1e-8)
    assert found > divergence(case.method, case.prior, case.prior) + 1e-3


def test_a_wrong_digest_is_noticed(case):
    """Each array but the features, which only the network itself can tell."""

    class Digested:
        labels, record = case.data.labels, {"part": "certificate"}

    spec, model = case.method.digest_axes(), case.network.model()

    def wrong(tensors):
        Digested.tensors = tensors
        found = set()
        for what, exact, stored, allowed in case.twin.digest(spec, model, Digested, np.random.default_rng(0)):
            gap = (exact - stored).abs().max() / exact.abs().max().clamp_min(1)
            found |= {what} if float(gap) > allowed else set()
        return found

    right = dict(case.data.digest)
    assert not wrong(right)
    for name in right.keys() - {"features", "error"}:
        changed = right[name].clone()
        changed[17] += 0.01 * changed.abs().max()
        assert wrong({**right, name: changed}), name
