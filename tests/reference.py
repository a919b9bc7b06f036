"""Slow, dense, obviously right twins of the package's fast paths: those of `verify`, and what only tests need."""

import numpy as np

from ldaf_bench.verify.dense import *  # noqa: F403
from ldaf_bench.verify.dense import basis


def monte_carlo(mean, factor, labels, num_draws, seed):
    """0-1 risk and cross-entropy of every datum by plain sampling, and the latter's standard error."""
    rng = np.random.default_rng(seed)
    num_classes = mean.shape[1]
    zero_one, entropy, error = [], [], []
    for m, h, y in zip(mean, factor, labels, strict=True):
        noise = rng.standard_normal((num_draws, num_classes - 1))
        logits = m + noise @ (basis(num_classes) @ h).T
        rivals = np.delete(logits, y, axis=1)
        zero_one.append((rivals.max(1) >= logits[:, y]).mean())
        top = logits.max(1)
        loss = top + np.log(np.exp(logits - top[:, None]).sum(1)) - logits[:, y]
        entropy.append(loss.mean())
        error.append(loss.std() / np.sqrt(num_draws))
    return np.array(zero_one), np.array(entropy), np.array(error)
