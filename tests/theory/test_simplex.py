"""The geometry's defining identities."""

import torch
from hypothesis import given

from ldaf_bench.theory.simplex import coordinates, expand, project, root, root_adjoint
from tests import reference
from tests.cases import classes, nodes, normal, seeds


def replicator(s, v):
    """R_s v by the dense twin."""
    return (torch.from_numpy(reference.replicator_matrix(s.numpy())) @ v.flatten()).view_as(v)


@given(nodes, classes, seeds)
def test_root_is_a_factor_of_the_replicator_even_at_the_boundary(n, c, seed):
    s = (12 * normal(n, c, seed=seed)).softmax(-1)
    v, w = normal(n, c, seed=seed + 1), normal(n, c, seed=seed + 2)
    u = s.sqrt()
    torch.testing.assert_close(root(u, root_adjoint(u, v)), replicator(s, v), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close((w * root(u, v)).sum(), (v * root_adjoint(u, w)).sum(), rtol=1e-11, atol=1e-14)


@given(nodes, classes, seeds)
def test_projection_is_orthogonal_and_changes_nothing_for_the_factor(n, c, seed):
    s = normal(n, c, seed=seed).softmax(-1)
    v = normal(n, c, seed=seed + 1)
    torch.testing.assert_close(project(project(v)), project(v))
    assert (project(v) * (v - project(v))).sum().abs() < 1e-12
    u = s.sqrt()  # R Π₀ = R
    torch.testing.assert_close(root_adjoint(u, project(v)), root_adjoint(u, v))


@given(nodes, classes, seeds)
def test_coordinates_are_the_adjoint_of_expand(n, c, seed):
    z, v = normal(n, c - 1, seed=seed), normal(n, c, seed=seed + 1)
    torch.testing.assert_close((expand(z) * v).sum(), (z * coordinates(v)).sum())
    assert expand(z).sum(-1).abs().max() < 1e-14
