"""A prior small enough to train in seconds: real digits, a tiny network."""

from functools import cache

from ldaf_bench.data.datasets import load
from ldaf_bench.data.splits import split
from ldaf_bench.methods.config import PriorConfig

CONFIG = PriorConfig(
    dataset="digits",
    split={"certificate": 0.3},
    backbone="tinynet",
    num_nodes=5,
    recipe={"base": "tiny", "epochs": 2},
)


@cache
def digits_splits(seed=0):
    dataset = load("digits")
    return dataset, split(dataset, seed=seed, certificate=0.3)
