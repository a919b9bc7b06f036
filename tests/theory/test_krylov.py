"""Matrix-function actions: the Lanczos relation, the error bound, breakdown, gradients."""

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.krylov import DEFAULT_TOLERANCE, lanczos, log_truncation, phi, phi_action, phi_divided_difference
from tests.cases import normal, seeds

sizes = st.integers(2, 30)


def symmetric(batch, size, seed, scale=1.0):
    a = normal(batch, size, size, seed=seed)
    return scale * (a + a.mT) / math.sqrt(2 * size)


def apply(params, v):
    return v @ params[0]


def exact_phi(order, z):
    """φ_p of a number, with digits to spare for the cancellation at 0."""
    with mpmath.workdps(100):
        z = mpmath.mpf(z) + mpmath.mpf(10) ** -25
        return float((mpmath.exp(z) - sum(z**k / mpmath.factorial(k) for k in range(order))) / z**order)


def dense_phi(order, horizon, matrix, v):
    """T^p φ_p(TH)v by the spectral theorem."""
    values, vectors = torch.linalg.eigh(matrix)
    scalars = torch.tensor([exact_phi(order, horizon * float(z)) for z in values], dtype=torch.float64)
    return horizon**order * vectors @ (scalars * (vectors.mT @ v))


@given(sizes, st.integers(1, 12), seeds)
def test_lanczos_relation_and_orthonormal_rows(size, steps, seed):
    matrix, start = symmetric(3, size, seed), normal(3, 2, size, seed=seed + 1)
    steps = min(steps, size - 1)
    never = torch.full((3, 2), -math.inf, dtype=torch.float64)
    space = lanczos(lambda v: apply([matrix], v), start, steps, lambda n, a, b: log_truncation(0, 1.0, n, a, b), never)
    basis, off = space.basis, space.offdiagonal[..., :-1]
    tridiagonal = torch.diag_embed(space.diagonal) + torch.diag_embed(off, 1) + torch.diag_embed(off, -1)
    last = torch.zeros_like(space.diagonal)
    last[..., -1] = 1
    left = basis @ matrix[:, None]
    right = tridiagonal @ basis + last[..., None] * space.residual[..., None, :]
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)
    gram = basis @ basis.mT
    torch.testing.assert_close(gram, torch.eye(steps, dtype=torch.float64).expand_as(gram), rtol=0, atol=1e-7)
    torch.testing.assert_close(space.norm[..., None] * basis[..., 0, :], start)


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(size=sizes, horizon=st.sampled_from([0.1, 1.0, 3.0, 10.0]), seed=seeds)
def test_action_equals_the_dense_one_within_the_error_it_reports(order, dtype, size, horizon, seed):
    matrix, start = symmetric(3, size, seed).to(dtype), normal(3, 2, size, seed=seed + 1).to(dtype)
    value, error = phi_action(order, horizon, apply, [matrix], start)
    for b in range(3):
        for r in range(2):
            truth = dense_phi(order, horizon, matrix[b].double(), start[b, r].double())
            missed = float((value[b, r].double() - truth).norm())
            slack = 1e-13 * float(truth.norm())  # the reference has rounding errors, too
            assert missed <= float(error[b, r]) + slack
            spectrum = torch.linalg.eigvalsh(matrix[b].double())
            size_of_result = horizon**order * exact_phi(order, horizon * float(spectrum[-1]))
            asked = DEFAULT_TOLERANCE[dtype] * horizon**order / math.factorial(order)
            allowed = (
                asked + (100 + 4 * horizon * float(spectrum.abs().max())) * torch.finfo(dtype).eps * size_of_result
            )
            assert float(error[b, r]) <= 4 * allowed * float(start[b, r].norm())


@given(sizes, seeds, st.floats(0.1, 2.0), st.floats(0.1, 2.0))
def test_exponential_is_a_semigroup(size, seed, s, t):
    matrix, start = symmetric(2, size, seed), normal(2, 1, size, seed=seed + 1)
    once, _ = phi_action(0, s + t, apply, [matrix], start)
    half, _ = phi_action(0, t, apply, [matrix], start)
    twice, _ = phi_action(0, s, apply, [matrix], half)
    torch.testing.assert_close(once, twice, rtol=1e-10, atol=1e-10)


def test_each_element_breaks_down_on_its_own():
    matrix = symmetric(4, 12, seed=1)
    values, vectors = torch.linalg.eigh(matrix)
    start = torch.stack(
        [
            vectors[0, :, 3],  # an eigenvector: dimension 1
            vectors[1, :, 2] + 2 * vectors[1, :, 7],  # an invariant space of dimension 2
            torch.zeros(12, dtype=torch.float64),
            normal(12, seed=2),  # no breakdown before the full space
        ]
    )[:, None]
    value, error = phi_action(1, 2.0, apply, [matrix], start)
    for b in range(4):
        torch.testing.assert_close(value[b, 0], dense_phi(1, 2.0, matrix[b], start[b, 0]), rtol=1e-11, atol=1e-12)
    assert torch.isfinite(value).all()
    assert (error < 1e-9).all()
    torch.testing.assert_close(value[0, 0], 2.0 * phi(1, 2 * values[0, 3]) * vectors[0, :, 3], rtol=1e-12, atol=1e-13)


def test_result_does_not_depend_on_the_neighbours_in_the_batch():
    matrix, start = symmetric(2, 40, seed=3), normal(2, 1, 40, seed=4)
    matrix[1] *= 30  # a neighbour that needs many more steps
    together, _ = phi_action(1, 1.0, apply, [matrix], start, tolerance=1e-2)
    alone, _ = phi_action(1, 1.0, apply, [matrix[:1]], start[:1], tolerance=1e-2)
    truth = dense_phi(1, 1.0, matrix[0], start[0, 0])
    assert (alone[0, 0] - truth).norm() > 1e-8  # so loose that going on would show
    torch.testing.assert_close(together[0], alone[0], rtol=1e-13, atol=1e-13)


def test_tolerance_is_respected_and_looser_is_cheaper():
    matrix, start = symmetric(1, 60, seed=5, scale=4), normal(1, 1, 60, seed=6)
    truth = dense_phi(1, 1.0, matrix[0], start[0, 0])
    calls = []
    for tolerance in (1e-2, 1e-5, 1e-9):
        counter = [0]

        def counted(params, v, counter=counter):
            counter[0] += 1
            return apply(params, v)

        value, _ = phi_action(1, 1.0, counted, [matrix], start, tolerance=tolerance)
        assert (value[0, 0] - truth).norm() <= tolerance * start.norm()
        calls.append(counter[0])
    assert calls[0] < calls[1] < calls[2]


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1e6])
def test_refuses_to_return_what_has_not_converged(poison):
    matrix = symmetric(1, 50, seed=7)
    matrix[0] = matrix[0] * poison if poison > 1e3 else matrix[0]
    matrix[0, 0, 0] = poison
    with pytest.raises(ArithmeticError, match="did not converge"):
        phi_action(0, 1.0, apply, [matrix], normal(1, 1, 50, seed=8), max_dim=20)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_gradients_in_operator_and_start_equal_finite_differences(order):
    raw = normal(2, 5, 5, seed=9).requires_grad_()
    start = normal(2, 3, 5, seed=10).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, v: phi_action(order, 1.3, apply, [a + a.mT], v)[0], (raw, start), eps=1e-6, atol=1e-7
    )


def test_backward_keeps_its_inputs_only():
    matrix, start = symmetric(4, 50, seed=11).requires_grad_(), normal(4, 2, 50, seed=12)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        phi_action(1, 3.0, apply, [matrix], start)
    assert sum(kept) == matrix.numel() + start.numel()


@given(st.floats(-40, 20), st.sampled_from([0, 1, 2]))
def test_phi_has_full_relative_accuracy(z, order):
    assert float(phi(order, torch.tensor(z, dtype=torch.float64))) == pytest.approx(
        exact_phi(order, z), rel=1e-14, abs=0
    )


@given(st.floats(-300, 10), st.floats(-300, 10), st.sampled_from([0, 1, 2]))
def test_divided_difference_of_phi(x, y, order):
    x, y = (torch.tensor(v, dtype=torch.float64) for v in (x, y))
    value = phi_divided_difference(order, x, y)
    scale = float(torch.maximum(phi(order, x), phi(order, y)))
    torch.testing.assert_close(value * (x - y), phi(order, x) - phi(order, y), rtol=1e-10, atol=1e-13 * scale)
    point = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(phi(order, point), point)
    torch.testing.assert_close(phi_divided_difference(order, x, x), slope, rtol=1e-8, atol=1e-13)
