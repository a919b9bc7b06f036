"""The geometry's defining identities."""

import torch
from hypothesis import given

from ldaf_bench.theory.simplex import coordinates, expand, lift, project, replicator, root, root_adjoint
from tests.cases import classes, nodes, normal, seeds


@given(nodes, classes, seeds)
def test_replicator_annihilates_constants_and_is_symmetric_psd(n, c, seed):
    s = normal(n, c, seed=seed).softmax(-1)
    v, w = normal(n, c, seed=seed + 1), normal(n, c, seed=seed + 2)
    torch.testing.assert_close(replicator(s, torch.ones_like(s)), torch.zeros_like(s), rtol=0, atol=1e-15)
    torch.testing.assert_close((w * replicator(s, v)).sum(), (v * replicator(s, w)).sum())
    assert (v * replicator(s, v)).sum() >= 0
    torch.testing.assert_close(replicator(s, project(v)), replicator(s, v))


@given(nodes, classes, seeds)
def test_root_is_a_factor_of_the_replicator_even_at_the_boundary(n, c, seed):
    s = (12 * normal(n, c, seed=seed)).softmax(-1)
    v, w = normal(n, c, seed=seed + 1), normal(n, c, seed=seed + 2)
    u = s.sqrt()
    torch.testing.assert_close(root(u, root_adjoint(u, v)), replicator(s, v), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close((w * root(u, v)).sum(), (v * root_adjoint(u, w)).sum(), rtol=1e-11, atol=1e-14)


@given(nodes, classes, seeds)
def test_projection_is_orthogonal_and_lifting_starts_at_s_with_the_replicator_as_derivative(n, c, seed):
    s = normal(n, c, seed=seed).softmax(-1)
    v = normal(n, c, seed=seed + 1)
    torch.testing.assert_close(project(project(v)), project(v))
    assert (project(v) * (v - project(v))).sum().abs() < 1e-12
    torch.testing.assert_close(lift(s, torch.zeros_like(v)), s)
    torch.testing.assert_close(lift(s, v).sum(-1), torch.ones(n, dtype=v.dtype))
    _, derivative = torch.autograd.functional.jvp(lambda x: lift(s, x), torch.zeros_like(v), v)
    torch.testing.assert_close(derivative, replicator(s, v))


@given(nodes, classes, seeds)
def test_coordinates_are_the_adjoint_of_expand(n, c, seed):
    z, v = normal(n, c - 1, seed=seed), normal(n, c, seed=seed + 1)
    torch.testing.assert_close((expand(z) * v).sum(), (z * coordinates(v)).sum())
    assert expand(z).sum(-1).abs().max() < 1e-14
