"""Slow, dense, obviously right twins of the package's fast paths; `verify` uses the same."""

from ldaf_bench.verify.dense import *  # noqa: F403
