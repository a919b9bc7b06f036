"""A plug-in that no machine has installed: a bound of one's own, which travels from the head to every process."""

import math

import torch

from ldaf_bench.theory.bounds import BOUNDS, Bound


def hoeffding(risk, kl, num_data, epsilon):
    """r + √(ln(1/ε)/2m) for one fixed classifier. [Hoeffding63]"""
    return torch.as_tensor(risk, dtype=torch.float64) + math.sqrt(math.log(1 / epsilon) / 2 / num_data)


EVENT = "Hoeffding's inequality, one classifier"
BOUNDS["hoeffding"] = Bound("hoeffding", hoeffding, frozenset({"prior", "mean"}), EVENT)
