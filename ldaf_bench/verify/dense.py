"""Slow, dense, obviously right twins of the package's fast paths, in numpy's float64."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse.csgraph
import scipy.sparse.linalg
import scipy.special
from numpy.typing import NDArray

Array = NDArray[np.float64]


def softmax(features: Array) -> Array:
    """Over the last axis."""
    shifted = np.exp(features - features.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def replicator_matrix(state: Array) -> Array:
    """R for a state (n, c), block diagonal, N × N."""
    return scipy.linalg.block_diag(*(np.diag(s) - np.outer(s, s) for s in state))


def projection_matrix(num_nodes: int, num_classes: int) -> Array:
    """Π₀ on all nodes, N × N."""
    return np.asarray(np.kron(np.eye(num_nodes), np.eye(num_classes) - 1 / num_classes), dtype=np.float64)


def basis(num_classes: int) -> Array:
    """P, of shape (c, c−1)."""
    return np.vstack([np.eye(num_classes - 1), -np.ones(num_classes - 1)])


def full_omega(flow: str, parameter: Array, num_classes: int) -> Array:
    """Ω of `daf` or `sflow`, N × N."""
    if flow == "sflow":
        return np.asarray(np.kron(parameter, np.eye(num_classes)), dtype=np.float64)
    size = parameter.shape[0] * parameter.shape[1]
    return parameter.reshape(size, size)


def generator(flow: str, parameter: Array, features: Array) -> tuple[Array, Array]:
    """A = Π₀ΩR and b = Π₀Ωs of one datum (n, c)."""
    num_nodes, num_classes = features.shape
    state = softmax(features)
    omega = projection_matrix(num_nodes, num_classes) @ full_omega(flow, parameter, num_classes)
    return omega @ replicator_matrix(state), omega @ state.ravel()


def propagate(a: Array, b: Array, horizon: float) -> tuple[Array, Array]:
    """e^{TA} and Tφ(TA)b, from one exponential of the augmented matrix."""
    size = len(b)
    augmented = np.zeros((size + 1, size + 1))
    augmented[:size, :size], augmented[:size, size] = a, b
    exponential = scipy.linalg.expm(horizon * augmented)
    return exponential[:size, :size], exponential[:size, size]


def linear_map(weight: Array) -> Array:
    """L of the `linear` flow as a c × N matrix."""
    num_classes, num_nodes, _ = weight.shape
    centre = np.eye(num_classes) - 1 / num_classes
    matrix = centre @ weight.reshape(num_classes, -1) @ projection_matrix(num_nodes, num_classes)
    matrix[:, :num_classes] += np.eye(num_classes)
    return matrix


def class_map(flow: str, parameter: Array, features: Array, horizon: float) -> tuple[Array, Array]:
    """(K, k) such that the logits from the start v₀ are K v₀ + k, for one datum."""
    num_classes = features.shape[1]
    if flow == "linear":
        matrix = linear_map(parameter)
        return matrix, matrix @ features.ravel()
    exponential, shift = propagate(*generator(flow, parameter, features), horizon)
    return exponential[:num_classes], features[0] + shift[:num_classes]


def pushforward(flow: str, parameter: Array, features: Array, horizon: float) -> tuple[Array, Array]:
    """M (m, c) and Gᵀ (m, c−1, n(c−1))."""
    num_nodes, num_classes = features.shape[1:]
    lift = np.kron(np.eye(num_nodes), basis(num_classes))
    maps = [class_map(flow, parameter, datum, horizon) for datum in features]
    return np.stack([k for _, k in maps]), np.stack([matrix[:-1] @ lift for matrix, _ in maps])


def pushforward_by_action(flow: str, parameter: Array, features: Array, horizon: float) -> tuple[Array, Array]:
    """The same by the action of the exponential on vectors [AlMohy11]: fast enough for hundreds of data.

    Taylor polynomials with scaling, which share nothing with a Krylov space.
    """
    num_nodes, num_classes = features.shape[1:]
    if flow == "linear":
        return pushforward(flow, parameter, features, horizon)
    lift = np.kron(np.eye(num_nodes), basis(num_classes))
    size = num_nodes * num_classes
    means, rows = [], []
    for datum in features:
        a, b = generator(flow, parameter, datum)
        augmented = np.zeros((size + 1, size + 1))
        augmented[:size, :size], augmented[:size, size] = a, b
        end = np.zeros(size + 1)
        end[size] = 1.0
        shift = scipy.sparse.linalg.expm_multiply(horizon * augmented, end)
        means.append(datum[0] + shift[:num_classes])
        seen = scipy.sparse.linalg.expm_multiply(horizon * a.T, np.eye(size, num_classes - 1))
        rows.append(seen.T @ lift)
    return np.stack(means), np.stack(rows)


def kl(mean_posterior: Array, b_posterior: Array, mean_prior: Array, b_prior: Array) -> float:
    """KL(N(μ₁, B₁B₁ᵀ) ‖ N(μ₀, B₀B₀ᵀ)) from dense factors."""
    one, zero = b_posterior @ b_posterior.T, b_prior @ b_prior.T
    trace = np.trace(np.linalg.solve(zero, one))
    step = mean_posterior - mean_prior
    moved = step @ np.linalg.solve(zero, step)
    return 0.5 * (trace - len(one) + np.linalg.slogdet(zero)[1] - np.linalg.slogdet(one)[1] + moved)


def kl_of_independent(sigma: Array, mean: Array | float, sigma_prior: Array, mean_prior: Array | float) -> float:
    """The same for independent coordinates, one by one."""
    ratio = sigma / sigma_prior
    each = (ratio**2 + ((mean - mean_prior) / sigma_prior) ** 2 - 1) / 2 - np.log(ratio)
    return float(each.sum())


class Logits(NamedTuple):
    """The logits of one datum, mean + noise · ξ with white ξ."""

    mean: Array
    noise: Array
    """Of shape (c, number of coordinates)."""


def sampled_risk(logits: Iterable[Logits], labels: NDArray[np.int64], num_draws: int, seed: int) -> float:
    """The 0-1 risk by drawing ξ in all coordinates, with fresh ones for every datum."""
    rng = np.random.default_rng(seed)
    errors = 0
    for (mean, noise), label in zip(logits, labels, strict=True):
        drawn = mean + rng.standard_normal((num_draws, noise.shape[1])) @ noise.T
        errors += int(((drawn >= drawn[:, [label]]).sum(1) > 1).sum())
    return errors / (len(labels) * num_draws)


def risk_of_independent(logits: Iterable[Logits], labels: NDArray[np.int64]) -> Array:
    r"""The 0-1 risk of data with independent logits N(m_k, s_k²): 1 − E ∏_{j ≠ y} Φ((m_y + s_y t − m_j)/s_j).

    One dimension, t ~ N(0, 1), by the trapezoidal rule: it converges as fast as Gauss–Hermite quadrature for smooth
    integrands, and also follows steep ones, where s_y is far above s_j.
    """
    nodes, step = np.linspace(-9, 9, 4001, retstep=True)
    weights = step * np.exp(-(nodes**2) / 2) / np.sqrt(2 * np.pi)
    found = []
    for (mean, noise), label in zip(logits, labels, strict=True):
        scale = np.sqrt((noise**2).sum(1))
        own = mean[label] + scale[label] * nodes
        rivals = np.delete(np.arange(len(mean)), label)
        ahead = scipy.special.ndtr((own - mean[rivals, None]) / scale[rivals, None]).prod(0)
        found.append(1 - float(ahead @ weights))
    return np.asarray(found)


def joint_tail(h: Array, k: Array, correlation: Array) -> Array:
    """P(X > h, Y > k) of standard normals with this correlation, by Owen's T function. [Owen56]"""
    h, k = (np.where(np.abs(a) < 1e-12, 1e-12, -a) for a in (h, k))  # P(X < −h, Y < −k), and nothing is divided by 0
    root = np.sqrt(1 - correlation**2)
    owen = scipy.special.owens_t(h, (k / h - correlation) / root) + scipy.special.owens_t(
        k, (h / k - correlation) / root
    )
    return np.asarray((scipy.special.ndtr(h) + scipy.special.ndtr(k)) / 2 - owen - 0.5 * (h * k < 0), dtype=np.float64)


def tree_bound(logits: Iterable[Logits], labels: NDArray[np.int64]) -> Array:
    """Hunter's and Worsley's bound on the 0-1 risk of every datum."""
    found = []
    for (mean, noise), label in zip(logits, labels, strict=True):
        rivals = np.delete(np.arange(len(mean)), label)
        moved = noise[rivals] - noise[label]
        scale = np.sqrt((moved**2).sum(1))
        limits = -(mean[rivals] - mean[label]) / scale
        first, second = np.triu_indices(len(rivals), 1)
        correlation = np.clip((moved @ moved.T)[first, second] / (scale[first] * scale[second]), -1 + 1e-15, 1 - 1e-15)
        joint = np.zeros((len(rivals), len(rivals)))
        # Edges of weight 0 would be no edges at all.
        joint[first, second] = -np.maximum(joint_tail(limits[first], limits[second], correlation), 1e-300)
        tree = -float(scipy.sparse.csgraph.minimum_spanning_tree(joint).sum())
        found.append(min(1.0, float(scipy.special.ndtr(-limits).sum()) - tree))
    return np.asarray(found)
