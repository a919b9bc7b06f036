"""Benchmarks and ablations for self-certified classification by linearized deep assignment."""

__version__ = "0.2.0"
