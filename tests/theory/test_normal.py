"""Normal probabilities against 30-digit quadrature, at every kind of correlation."""

import mpmath
import numpy as np
import pytest
import torch

from ldaf_bench.theory.normal import BVN_ERROR, bvn, upper_tail


def exact(h, k, rho):
    """∫_h^∞ φ(x) Φ((ρx − k)/√(1−ρ²)) dx, split where the second factor jumps."""
    with mpmath.workdps(30):
        h, k, rho = (mpmath.mpf(float(v)) for v in (h, k, rho))
        width = mpmath.sqrt(1 - rho**2)
        jump = [k / rho + j * width / abs(rho) for j in (-40, -10, -3, 0, 3, 10, 40)] if rho else []
        cuts = sorted({x for x in [*jump, mpmath.mpf(-8), mpmath.mpf(0), mpmath.mpf(8)] if h < x < 40})
        return float(mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.ncdf((rho * x - k) / width), [h, *cuts, 40]))


def cases():
    rng = np.random.default_rng(5)
    rows = [(0.0, 0.0, 0.5), (0.0, 0.0, -0.999), (1.0, 1.0, 0.925), (1.0, 1.0, 0.9250001), (-3.0, 3.0, 0.95)]
    for _ in range(60):
        h, k = rng.normal(size=2) * rng.choice([0.5, 2, 5])
        near_one = rng.choice([-1, 1]) * (1 - 10 ** rng.uniform(-9, -0.5))
        rows.append((h, h + 1e-4 * k if rng.random() < 0.3 else k, rng.choice([near_one, rng.uniform(-1, 1)])))
    return rows


def test_bivariate_probabilities_are_within_the_stated_error():
    rows = cases()
    found = bvn(*torch.tensor(rows, dtype=torch.float64).T)
    for value, row in zip(found.tolist(), rows, strict=True):
        assert value == pytest.approx(exact(*row), rel=0, abs=BVN_ERROR), row


def test_limits_of_the_bivariate_probability():
    h, k = torch.tensor([-1.0, 0.5, 2.0]).double(), torch.tensor([0.3, 0.5, -1.0]).double()
    one = torch.ones_like(h)
    torch.testing.assert_close(bvn(h, k, one), upper_tail(torch.maximum(h, k)))
    torch.testing.assert_close(bvn(h, k, -one), (upper_tail(h) - upper_tail(-k)).clamp(min=0))
    torch.testing.assert_close(bvn(h, k, 0 * one), upper_tail(h) * upper_tail(k))
    torch.testing.assert_close(bvn(h, k - 1e9, 0.3 * one), upper_tail(h))
    assert (bvn(h + 1e9, k, 0.99 * one) < 1e-300).all()
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64)
    rising = bvn(torch.full_like(grid, 0.7), torch.full_like(grid, -0.2), grid)
    assert (rising.diff() > 0).all()


def test_upper_tail_is_accurate_far_out():
    assert float(upper_tail(torch.tensor(10.0).double())) == pytest.approx(7.61985302416e-24, rel=1e-9)
