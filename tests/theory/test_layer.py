"""A Gaussian last layer against its definition: normal probabilities and weight draws that share no code with it."""

import dataclasses

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch

from ldaf_bench.theory.covariances import PriorData, initial_covariance
from ldaf_bench.theory.gaussian import DiagonalRankOne
from ldaf_bench.theory.integrate import INTEGRATORS, accurate_risk, integrate
from ldaf_bench.theory.layer import Layer, layer_draw, without_common_part
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.posterior import FitSettings, fit
from tests import reference
from tests.cases import normal, points_for, rng

M, W = 12, 5


class Case:
    """A trained layer, features, labels, and a Gaussian with scales and a mean of its own for every weight."""

    def __init__(self, num_classes, mean=True, seed=0):
        self.weights = normal(num_classes, W, seed=seed)
        features = normal(M, W, seed=seed + 1)
        features[:, -1] = 1.0
        self.cache = Layer(features @ self.weights.mT, features)
        self.labels = torch.where(
            torch.rand(M, generator=rng(seed + 2)) < 0.3,
            torch.randint(num_classes, (M,), generator=rng(seed + 3)),
            self.cache.mean.argmax(1),
        )
        self.scales = 0.05 + normal(num_classes, W, seed=seed + 4).abs()
        self.shift = 0.3 * normal(num_classes, W, seed=seed + 5) if mean else None
        self.gaussian = DiagonalRankOne(
            self.scales.flatten(), torch.zeros(num_classes * W).double(), None if not mean else self.shift.flatten()
        )

    def problem(self):
        return problem(self.cache, self.gaussian, self.labels, layer_draw(self.weights, self.cache.features))

    def normals(self, k):
        """Means and standard deviations of the logits of datum k, by plain sums."""
        features = self.cache.features[k].numpy()
        middle = self.weights.numpy() + (0 if self.shift is None else self.shift.numpy())
        means = [sum(w * f for w, f in zip(row, features, strict=True)) for row in middle]
        deviations = [
            sum((s * f) ** 2 for s, f in zip(row, features, strict=True)) ** 0.5 for row in self.scales.numpy()
        ]
        return np.array(means), np.array(deviations)

    def exact_risk(self, k):
        """1 − ∫ φ(t) ∏_j Φ(…) dt by adaptive quadrature."""
        means, deviations = self.normals(k)
        label = int(self.labels[k])

        def correct(t):
            own = means[label] + deviations[label] * t
            rivals = [j for j in range(len(means)) if j != label]
            return scipy.stats.norm.pdf(t) * np.prod(
                [scipy.stats.norm.cdf(own, means[j], deviations[j]) for j in rivals]
            )

        return 1 - scipy.integrate.quad(correct, -10, 10, limit=200, epsabs=1e-11)[0]


cases = pytest.mark.parametrize(("num_classes", "mean"), [(2, True), (3, False), (4, True), (10, True)])


@cases
def test_the_risk_is_the_one_dimensional_integral(num_classes, mean):
    case = Case(num_classes, mean)
    truth = np.array([case.exact_risk(k) for k in range(M)])
    found = integrate("conditional", case.problem(), num_points=8192).per_datum.numpy()
    assert np.abs(found - truth).max() < 2e-4
    logits = [reference.Logits(m, np.diag(s)) for m, s in map(case.normals, range(M))]
    assert np.abs(reference.risk_of_independent(logits, case.labels.numpy()) - truth).max() < 1e-9
    assert (integrate("bonferroni", case.problem()).per_datum.numpy() >= truth - 1e-9).all()


@pytest.mark.parametrize("entry", [e for e in INTEGRATORS.values() if e.costs_delta], ids=lambda entry: entry.name)
def test_integrators_agree_with_plain_loops_over_weight_draws(entry):
    case, generator, errors = Case(4), np.random.default_rng(1), 0
    middle, sigma = (case.weights + case.shift).numpy(), case.scales.numpy()
    for features, label in zip(case.cache.features.numpy(), case.labels.numpy(), strict=True):
        for _ in range(2000):
            logits = (middle + sigma * generator.standard_normal(sigma.shape)) @ features
            errors += np.delete(logits, label).max() >= logits[label]
    truth, found = errors / (2000 * M), integrate(entry.name, case.problem(), num_points=points_for(entry))
    spread = (truth * (1 - truth) / (2000 * M)) ** 0.5
    assert abs(float(found.value) - truth) < 5 * (spread + found.standard_error)


@cases
def test_draws_have_the_moments_of_the_closed_form(num_classes, mean):
    case = Case(num_classes, mean)
    logits = case.problem().draw(slice(0, 3), 40_000, rng(5))
    assert logits.shape == (3, 40_000, num_classes)
    for k in range(3):
        means, deviations = case.normals(k)
        gap = np.abs(logits[k].mean(0).numpy() - means)
        assert (gap < 5 * deviations / 200).all()
        covariance = torch.cov(logits[k].T).numpy()
        assert np.abs(covariance - np.diag(deviations**2)).max() < 6 * deviations.max() ** 2 * (2 / 40_000) ** 0.5


@cases
def test_only_the_common_part_of_the_logits_is_taken_out(num_classes, mean):
    variances = normal(6, num_classes, seed=3) ** 2
    lift = torch.from_numpy(reference.basis(num_classes))
    centre = torch.eye(num_classes, dtype=torch.float64) - 1 / num_classes
    found = lift @ without_common_part(variances) @ lift.mT
    torch.testing.assert_close(found, centre @ torch.diag_embed(variances) @ centre)


def test_the_divergence_is_that_of_torch():
    one, zero = Case(4), Case(4, mean=False, seed=20)
    pairs = (
        torch.distributions.Normal(torch.zeros_like(c.scales) if c.shift is None else c.shift, c.scales)
        for c in (one, zero)
    )
    truth = float(torch.distributions.kl_divergence(*pairs).sum())
    found = one.gaussian.kl_from(zero.gaussian)
    assert truth <= found == pytest.approx(truth, rel=1e-9)
    parts = one.scales.numpy(), one.shift.numpy(), zero.scales.numpy(), 0.0
    assert reference.kl_of_independent(*parts) == pytest.approx(truth, rel=1e-12)


def test_correlated_weights_are_refused():
    case = Case(3)
    correlated = dataclasses.replace(case.gaussian, q=torch.full((3 * W,), 0.1).double())
    with pytest.raises(ValueError, match="gaussian must be one of independent weights"):
        problem(case.cache, correlated, case.labels)
    with pytest.raises(ValueError, match="gaussian must be of size 15"):
        problem(case.cache, initial_covariance("isotropic", 16), case.labels)


def many(num_data=400, num_classes=4):
    weights, features = normal(num_classes, W, seed=1), normal(num_data, W, seed=2)
    cache = Layer(features @ weights.mT, features)
    wrong = torch.rand(num_data, generator=rng(3)) < 0.05
    return cache, torch.where(wrong, torch.randint(num_classes, (num_data,), generator=rng(4)), cache.mean.argmax(1))


def test_the_scale_is_found_on_prior_data_by_the_rise_of_their_risk():
    cache, labels = many()
    prior = initial_covariance("scaled", cache.size, data=PriorData(cache, labels, rise=0.02))
    error = float((cache.mean.argmax(1) != labels).double().mean())
    assert accurate_risk(problem(cache, prior, labels)) == pytest.approx(error + 0.02, abs=2e-3)
    # Features of twice the size and half the scale are the same classifier.
    double = Layer(cache.mean, 2 * cache.features)
    other = initial_covariance("scaled", cache.size, data=PriorData(double, labels, rise=0.02))
    assert float(2 * other.d[0] / prior.d[0]) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("objective", ["cross_entropy", "zero_one"])
@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("one_scale", [False, True])
def test_the_fit_lowers_the_bound_and_moves_what_it_may(objective, mean, one_scale):
    cache, labels = many()
    prior = initial_covariance("isotropic", cache.size, scale=1.0)
    points = 16 if objective == "zero_one" else 64
    asked = FitSettings(objective=objective, mean=mean, one_scale=one_scale, num_points=points, max_alternations=4)
    found = fit(cache, labels, prior, asked)
    assert min(step.bound for step in found.history) < found.history[0].bound - 1e-3
    assert (found.gaussian.mean is not None) == mean
    assert (len(found.gaussian.d.unique()) == 1) == one_scale
    assert not found.gaussian.q.any(), "Weights stay independent."
    assert found.kl == pytest.approx(found.gaussian.kl_from(prior), abs=1e-9)
