"""Stages: what runs on Ray. Each takes frozen values and files, and leaves files."""

import os

# Before anything imports Ray: whoever still asks it something while we end must not start another one.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
