"""The start's distribution: determinant, inverse, samples, and a KL divergence that is never wrong."""

import dataclasses

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.gaussian import Dense, DiagonalRankOne, from_tensors, kl_divergence
from tests import reference
from tests.cases import gaussian, normal, rng, seeds

sizes = st.integers(1, 12)


def dense(size, seed):
    return Dense(0.25 * normal(size, size, seed=seed) / size**0.5 + torch.eye(size, dtype=torch.float64))


def exact_kl(posterior, prior):
    """The definition, with 60 digits."""
    with mpmath.workdps(60):
        factors = []
        for gauss in (posterior, prior):
            d, q = ([mpmath.mpf(float(v)) for v in vector] for vector in (gauss.d, gauss.q))
            factors.append(mpmath.diag(d) + mpmath.matrix(q) * mpmath.matrix(q).T)
        one, zero = factors
        moved = zero**-1 * one
        squared = sum(moved[i, j] ** 2 for i in range(moved.rows) for j in range(moved.cols))
        nothing = torch.zeros(len(posterior.d), dtype=torch.float64)
        means = (nothing if gauss.mean is None else gauss.mean for gauss in (posterior, prior))
        start, end = (mpmath.matrix([mpmath.mpf(float(v)) for v in mean]) for mean in means)
        squared += sum(entry**2 for entry in zero**-1 * (start - end))
        return float((squared - moved.rows) / 2 + mpmath.log(abs(mpmath.det(zero))) - mpmath.log(abs(mpmath.det(one))))


families = pytest.mark.parametrize("family", [gaussian, dense])


@families
@given(size=sizes, seed=seeds)
def test_interface_equals_the_dense_factor(family, size, seed):
    start = family(size, seed)
    b, rows, matrix = start.factor(), normal(3, 2, size, seed=seed + 1), normal(size, 4, seed=seed + 2)
    torch.testing.assert_close(start.covariance(rows), rows @ b @ b.mT @ rows.mT)
    torch.testing.assert_close(start.act(rows), rows @ b.mT)
    torch.testing.assert_close(start.logdet(), torch.linalg.slogdet(b).logabsdet, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(b @ start.solve(matrix), matrix, rtol=1e-7, atol=1e-7)
    assert start.covariance(rows.float()).dtype == torch.float32


@families
@given(size=sizes, seed=seeds)
def test_tensors_make_it_again(family, size, seed):
    start, other = family(size, seed), family(size, seed + 1)
    again = from_tensors(start.tensors())
    assert type(again) is type(start)
    assert torch.equal(again.factor(), start.factor())
    assert start.kl_from(other) == again.kl_from(other) == float(kl_divergence(start, other))


@families
def test_samples_have_the_covariance(family):
    start = family(4, 1)
    draws = start.act(torch.randn(100_000, 4, dtype=torch.float64, generator=rng(2)))
    truth = start.factor() @ start.factor().mT
    scale = torch.outer(truth.diagonal(), truth.diagonal()).sqrt()
    assert ((torch.cov(draws.T) - truth).abs() < 6 * scale / 100_000**0.5).all()


@given(sizes, seeds, st.sampled_from([(gaussian, gaussian), (dense, gaussian), (gaussian, dense), (dense, dense)]))
def test_kl_equals_the_dense_formula_and_is_not_negative(size, seed, pair):
    posterior, prior = pair[0](size, seed), pair[1](size, seed + 1)
    value = float(kl_divergence(posterior, prior))
    nothing = np.zeros(size)
    truth = reference.kl(nothing, posterior.factor().numpy(), nothing, prior.factor().numpy())
    assert value >= 0
    assert value == pytest.approx(truth, rel=1e-6, abs=1e-7)


def with_mean(start, seed, scale=1.0):
    return dataclasses.replace(start, mean=scale * normal(start.size, seed=seed + 7))


@given(sizes, seeds, st.sampled_from([(gaussian, gaussian), (dense, gaussian), (gaussian, dense), (dense, dense)]))
def test_kl_with_means_is_that_of_torch(size, seed, pair):
    posterior, prior = with_mean(pair[0](size, seed), seed), pair[1](size, seed + 1)
    for other in (prior, with_mean(prior, seed + 1)):
        one, zero = (
            torch.distributions.MultivariateNormal(
                torch.zeros(size).double() if start.mean is None else start.mean, start.factor() @ start.factor().mT
            )
            for start in (posterior, other)
        )
        truth = float(torch.distributions.kl_divergence(one, zero))
        assert float(kl_divergence(posterior, other)) == pytest.approx(truth, rel=1e-6, abs=1e-6)
    mine, theirs = ((s.mean.numpy(), s.factor().numpy()) for s in (posterior, with_mean(prior, seed + 1)))
    assert reference.kl(*mine, *theirs) == pytest.approx(truth, rel=1e-6, abs=1e-6)


@given(sizes, seeds, st.sampled_from([1e-6, 1e-2, 1.0, 30.0]))
def test_kl_with_a_mean_is_never_understated(size, seed, scale):
    prior = gaussian(size, seed)
    for posterior in (with_mean(prior, seed, scale), with_mean(gaussian(size, seed + 1), seed, scale)):
        value, truth = float(kl_divergence(posterior, prior)), exact_kl(posterior, prior)
        assert truth <= value <= truth + 1e-9 * max(1, truth)


@families
@given(size=sizes, seed=seeds)
def test_a_mean_moves_draws_comes_back_and_costs_nothing_where_it_is_equal(family, size, seed):
    start = with_mean(family(size, seed), seed)
    noise = normal(5, size, seed=seed + 2)
    torch.testing.assert_close(start.act(noise), start.mean + family(size, seed).act(noise))
    again = from_tensors(start.tensors())
    assert torch.equal(again.mean, start.mean)
    assert float(kl_divergence(again, start)) < 1e-9


@families
@given(size=sizes, seed=seeds)
def test_kl_vanishes_at_equality_and_only_there(family, size, seed):
    start = family(size, seed)
    assert float(kl_divergence(start, start)) < 1e-9
    other = Dense(1.1 * start.factor())
    assert float(kl_divergence(other, start)) == pytest.approx(size * (0.5 * (1.21 - 1) - np.log(1.1)), rel=1e-6)


@pytest.mark.parametrize("ratio", [1.0, 1e-2, 1e-4, 1e-6, 1e-8])
def test_kl_is_exact_and_never_understated_however_small_d_is_beside_q(ratio):
    for seed in range(5):
        d, q, stretch, shift = normal(4, 4, seed=seed)
        d = ratio * (1 + d.abs())
        prior, posterior = (
            DiagonalRankOne(d, q),
            DiagonalRankOne(d * (1 + 0.1 * stretch.abs()), q + 0.3 * ratio * shift),
        )
        value, truth = float(kl_divergence(posterior, prior)), exact_kl(posterior, prior)
        assert truth * (1 - 1e-15) <= value <= truth + 1e-12


def extreme_pairs():
    """Determinants that differ greatly, and d of both signs with a determinant that nearly vanishes."""
    for scale in (1e2, 1e3, 1e4):
        d, q, other = normal(3, 4, seed=int(scale))
        yield DiagonalRankOne(1 + d.abs(), 1e-3 * other), DiagonalRankOne(1 + d.abs(), scale * q)
    for gap in (1e-3, 1e-6, 1e-9):
        d = torch.tensor([1.0, -1.0, 2.0, 1.0], dtype=torch.float64)
        q = torch.tensor([0.0, (1 - gap) ** 0.5, 0.0, 0.0], dtype=torch.float64)
        yield DiagonalRankOne(d, 0.999 * q), DiagonalRankOne(d, q)


def test_kl_of_extreme_factors_is_not_understated_or_is_refused():
    computed = 0
    for posterior, prior in extreme_pairs():
        try:
            value = float(kl_divergence(posterior, prior))
        except ArithmeticError:
            continue
        computed += 1
        assert value >= exact_kl(posterior, prior) * (1 - 1e-15)
    assert computed >= 4


def test_kl_that_rounding_has_destroyed_is_refused():
    d, q = torch.full((4,), 1e-8, dtype=torch.float64), normal(4, seed=1)
    with pytest.raises(ArithmeticError, match="The KL divergence is only known up to"):
        kl_divergence(DiagonalRankOne(d, q + 0.3), DiagonalRankOne(d, q))


@pytest.mark.parametrize("covariance", ["constant", "paper", "code", "isotropic"])
def test_kl_at_a_hundred_classes_and_two_hundred_nodes(covariance):
    prior = initial_covariance(covariance, 200 * 99)
    assert float(kl_divergence(prior, prior)) == 0.0
    assert 0 <= float(kl_divergence(DiagonalRankOne(prior.d * (1 + 1e-9), prior.q), prior)) < 1e-10
    assert float(kl_divergence(DiagonalRankOne(prior.d * 1.01, prior.q * 1.01), prior)) > 1.9


def test_gradients_of_kl_equal_finite_differences():
    prior = gaussian(5, 3)
    leaves = (prior.d.clone().add(0.1).requires_grad_(), prior.q.clone().mul(1.2).requires_grad_())
    assert torch.autograd.gradcheck(lambda d, q: kl_divergence(DiagonalRankOne(d, q), prior), leaves)


ones = torch.ones(3, dtype=torch.float64)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DiagonalRankOne(torch.tensor([1.0, 0, 1]).double(), ones), "d must be away from 0"),
        (lambda: DiagonalRankOne(-3 * ones, ones), "q must be such that"),
        (lambda: DiagonalRankOne(ones, ones[:2]), "q must be of shape"),
        (lambda: DiagonalRankOne(ones.float(), ones), "d must be float64"),
        (lambda: DiagonalRankOne(ones, ones * torch.nan), "q must be finite"),
        (lambda: Dense(torch.ones(3, 3).double()), "b must be invertible"),
        (lambda: Dense(torch.zeros(3, 3).double()), "b must be invertible"),
        (lambda: Dense(torch.eye(3)), "b must be float64"),
        (lambda: Dense(torch.ones(3, 2).double()), "b must be of shape"),
        (lambda: kl_divergence(gaussian(3, 1), gaussian(4, 1)), "posterior must be of the prior's size 4"),
    ],
)
def test_singular_or_misshapen_factors_are_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
