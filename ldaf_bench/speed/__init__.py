"""Timing: ratios within one run, peak memory, and how everything grows. `python -m ldaf_bench.speed`"""
