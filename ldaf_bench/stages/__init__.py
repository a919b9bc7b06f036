"""Stages: what runs on Ray. Each takes frozen values and files, and leaves files."""

import os

# Before anything imports Ray: whoever still asks it something while we end must not start another one.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
# What ran on a host that lost its power is noticed when Ray asks whether its connection is alive: after 80 seconds
# and not, as Ray would, after 420. Its servers take more than one question a minute for an attack.
os.environ.setdefault("RAY_grpc_client_keepalive_time_ms", "60000")
os.environ.setdefault("RAY_grpc_client_keepalive_timeout_ms", "20000")
