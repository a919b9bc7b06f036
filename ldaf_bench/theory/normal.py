r"""One- and two-dimensional normal probabilities, vectorized, in float64.

Following [Genz04]: Plackett's identity as a Gauss–Legendre integral over the angle for moderate correlations, and
for correlations near ±1 an integral from the singular case, its leading terms in closed form.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)

BVN_ERROR = 1e-14
"""Absolute error of `bvn`; tests hold it against 30-digit quadrature."""


def upper_tail(h: Tensor) -> Tensor:
    """P(X > h), accurate in the tail."""
    return torch.special.erfc(h * math.sqrt(0.5)) / 2


def bvn(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    """P(X > h, Y > k) for standard normal X and Y with correlation rho; one shape, float64."""
    h, k, rho = torch.broadcast_tensors(h, k, rho)
    # The exponents stay finite, and nothing beyond 38 standard deviations is above 1e-316.
    h, k, rho = h.clamp(-38, 38), k.clamp(-38, 38), rho.clamp(-1, 1)
    steep = rho.abs() > 0.925
    result = torch.empty_like(h)
    result[~steep] = _moderate(h[~steep], k[~steep], rho[~steep])
    if bool(steep.any()):
        h, k, rho = h[steep], k[steep], rho[steep]
        # A negative correlation is the complement in Y of a positive one.
        sign = torch.where(rho < 0, -1.0, 1.0).to(h.dtype)
        positive = _steep(h, sign * k, rho.abs())
        result[steep] = torch.where(rho < 0, upper_tail(h) - positive, positive)
    return result.clamp(min=0)


def _moderate(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    r"""Φ(−h)Φ(−k) + (1/2π) ∫₀^{asin ρ} exp(−(h² + k² − 2hk sin θ)/(2cos²θ)) dθ."""
    angle = torch.asin(rho)
    squares, product = (h * h + k * k) / 2, h * k
    total = torch.zeros_like(h)
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        sine = torch.sin(angle * (1 + float(node)) / 2)
        total += float(weight) * torch.exp((sine * product - squares) / (1 - sine * sine))
    return upper_tail(h) * upper_tail(k) + angle * total / (4 * math.pi)


def _steep(h: Tensor, k: Tensor, rho: Tensor) -> Tensor:
    r"""Φ(−max(h, k)) − (1/2π) ∫₀^a e^{−b²/2x²} g(x) dx, with a = √(1−ρ²), b = |h − k|, t = hk and

    g(x) = exp(−t/(1 + √(1−x²)))/√(1−x²) = e^{−t/2}(1 + c₁x² + c₂x⁴) + O(x⁶), c₁ = ½ − t/8, c₂ = ⅜ − t/8 + t²/128.
    The three leading terms have closed forms; what is left is smooth enough for 20 nodes.
    """
    a = ((1 - rho) * (1 + rho)).sqrt()
    b, t = (h - k).abs(), h * k
    c1, c2 = 0.5 - t / 8, 0.375 - t / 8 + t * t / 128
    # I_j = ∫₀^a x^j e^{−b²/2x² − t/2} dx, by parts from I₀; the exponents are joined, as e^{−t/2} alone overflows.
    safe = a.clamp(min=1e-150)
    edge = torch.exp(-((b / safe) ** 2) / 2 - t / 2)
    tail = torch.special.erfcx(b / safe * math.sqrt(0.5)) / 2 * edge
    zeroth = a * edge - b * math.sqrt(2 * math.pi) * tail
    second = (a**3 * edge - b * b * zeroth) / 3
    fourth = (a**5 * edge - b * b * second) / 5
    total = zeroth + c1 * second + c2 * fourth
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        x = a * (1 + float(node)) / 2
        squared = (x * x).clamp(min=1e-300)
        cosine = (1 - squared).sqrt()
        decay = -b * b / (2 * squared)
        whole = torch.exp(decay - t / (1 + cosine)) / cosine
        leading = torch.exp(decay - t / 2) * (1 + squared * (c1 + squared * c2))
        total += float(weight) * a / 2 * (whole - leading)
    singular = upper_tail(torch.maximum(h, k))
    return torch.where(a > 0, singular - total / (2 * math.pi), singular)
