"""Where gloo listens: on the network that Ray's nodes share, or on loopback if there is one node only.

Left alone, gloo takes the address that the host's own name resolves to. On Debian that is 127.0.1.1, where no other
host reaches it; on a laptop it may be an address that strangers reach.
"""

from __future__ import annotations

import os
import socket
import struct
import sys

import ray
from ray.train.torch import TorchConfig

VARIABLE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"


def interface_of(address: str) -> str:
    """The name of the network interface with this IPv4 address; empty if there is none, or if this is not Linux."""
    if not sys.platform.startswith("linux"):
        return ""
    import fcntl

    ask_for_address = 0x8915  # SIOCGIFADDR
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), ask_for_address, struct.pack("256s", name.encode()[:15]))
            except OSError:  # an interface without an address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def choose_interface() -> None:
    """In a worker, before its process group is made; a variable that somebody has set is left alone."""
    if VARIABLE in os.environ:
        return
    everywhere = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    name = interface_of(ray.util.get_node_ip_address() if len(everywhere) > 1 else LOOPBACK)
    if name:
        os.environ[VARIABLE] = name


class OnOwnNetwork(TorchConfig().backend_cls):  # type: ignore[misc]
    """Ray's set-up of the process group, after every worker has chosen its interface."""

    def on_start(self, worker_group, backend_config):  # type: ignore[no-untyped-def]
        worker_group.execute(choose_interface)
        super().on_start(worker_group, backend_config)


class OwnNetworkConfig(TorchConfig):  # type: ignore[misc]
    """`TorchConfig`, with the interface chosen."""

    @property
    def backend_cls(self) -> type[OnOwnNetwork]:
        return OnOwnNetwork
