"""(M, G) and Σ̂: ground truth, dense twins, and samples of the flow itself."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.flows import FLOWS, forward
from ldaf_bench.theory.gaussian import DiagonalRankOne
from ldaf_bench.theory.logits import flow_draw
from ldaf_bench.theory.pushforward import cholesky, class_factor, covariance, logit_factor, push
from tests import reference
from tests.cases import classes, gaussian, ground_truth, nodes, normal, parameter, rng, seeds
from tools.selfcheck import TOLERANCE, errors, kronecker_part, read

every_flow = pytest.mark.parametrize("flow", FLOWS)


@pytest.mark.parametrize("path", ground_truth(), ids=lambda path: path.stem)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_every_quantity_of_the_ground_truth(path, dtype):
    truth = read(path)
    for flow in ["daf"] if kronecker_part(truth["omega"]) is None else ["daf", "sflow"]:
        found = errors(truth, flow, dtype, "cpu")
        assert max(found.values()) <= TOLERANCE[dtype], found


@every_flow
@given(n=nodes, c=classes, seed=seeds, horizon=st.sampled_from([0.5, 1.0, 2.0]))
def test_pushforward_equals_its_dense_twin(flow, n, c, seed, horizon):
    omega, features = parameter(flow, n, c, seed, scale=3.0), 2 * normal(3, n, c, seed=seed + 1)
    pushed = push(flow, omega, features, horizon)
    mean, rows = reference.pushforward(flow, omega.numpy(), features.numpy(), horizon)
    np.testing.assert_allclose(pushed.mean.numpy(), mean, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(pushed.rows.numpy(), rows, rtol=1e-10, atol=1e-10)
    missed = np.maximum(
        np.abs(pushed.mean.numpy() - mean).max(1), np.linalg.norm(pushed.rows.numpy() - rows, axis=2).max(1)
    )
    # The reference's own error is that of an exponential of a matrix that is not normal.
    assert (missed <= pushed.error.numpy() + 1e-12 * np.abs(mean).max() * np.abs(rows).max()).all()
    torch.testing.assert_close(pushed.mean, forward(flow, omega, features, horizon), rtol=1e-12, atol=1e-12)


@every_flow
def test_pushforward_has_the_moments_of_sampled_flows(flow):
    omega, features = parameter(flow, 3, 4, seed=1, scale=2.0), normal(2, 3, 4, seed=2)
    start = gaussian(9, seed=3)
    pushed = push(flow, omega, features)
    count = 40_000
    logits = flow_draw(flow, omega, features)(start)(slice(0, 2), count, rng(4))
    factor = class_factor(logit_factor(pushed, start))
    spread = factor @ factor.mT
    deviation = spread.diagonal(dim1=1, dim2=2).sqrt()
    assert ((logits.mean(1) - pushed.mean).abs() < 5 * deviation / count**0.5).all()
    for k in range(2):
        sampled = torch.cov(logits[k].T)
        scale = torch.outer(deviation[k], deviation[k])
        assert ((sampled - spread[k]).abs() < 5 * scale * (2 / count) ** 0.5).all()


@given(nodes, classes, seeds)
def test_covariance_is_psd_and_equals_the_dense_product(n, c, seed):
    rows, start = normal(4, c - 1, n * (c - 1), seed=seed), gaussian(n * (c - 1), seed=seed + 1)
    value = covariance(rows, start)
    b = start.factor()
    torch.testing.assert_close(value, rows @ b @ b.mT @ rows.mT)
    assert (torch.linalg.eigvalsh(value) >= -1e-12 * value.abs().amax((1, 2))[:, None]).all()


def test_gradients_of_the_covariance_equal_finite_differences():
    rows = normal(2, 2, 6, seed=5)
    d, q = (0.5 + normal(6, seed=6).abs()).requires_grad_(), normal(6, seed=7).requires_grad_()
    assert torch.autograd.gradcheck(lambda d, q: covariance(rows, DiagonalRankOne(d, q)), (d, q))


def test_chunks_change_nothing(monkeypatch):
    omega, features = parameter("daf", 4, 3, seed=8), normal(50, 4, 3, seed=9)
    whole = push("daf", omega, features)
    monkeypatch.setattr("ldaf_bench.theory.chunks.NUMBERS", 100)
    parts = push("daf", omega, features)
    torch.testing.assert_close(whole.mean, parts.mean, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(whole.rows, parts.rows, rtol=1e-13, atol=1e-13)


def test_degenerate_covariance_is_refused_by_datum():
    matrices = torch.eye(3, dtype=torch.float64).repeat(4, 1, 1)
    matrices[2, 0, 0] = 0.0
    with pytest.raises(ArithmeticError, match="1 of 4 data, first at position 2 of them, is not positive definite"):
        cholesky(matrices)


def test_rows_of_another_size_are_refused():
    with pytest.raises(ValueError, match=r"rows must be of shape \(any, any, 6\)"):
        covariance(torch.zeros(2, 2, 8), gaussian(6, seed=1))
