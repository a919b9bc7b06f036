"""Stages: what runs on Ray. Each takes frozen values and files, and leaves files."""
