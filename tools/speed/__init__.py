"""Timing: ratios within one run, peak memory, and how everything grows. `python -m tools.speed`"""
