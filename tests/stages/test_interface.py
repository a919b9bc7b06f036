"""gloo is told where to listen."""

import os

import pytest
import ray

from ldaf_bench.stages import interface
from ldaf_bench.stages.interface import OnOwnNetwork, OwnNetworkConfig, choose_interface, interface_of


@pytest.fixture
def nodes(monkeypatch):
    """A cluster of the given addresses, of which this node has the last one; and an environment of its own."""
    monkeypatch.setattr(interface.os, "environ", {})

    def given(*addresses):
        found = [{"NodeManagerAddress": address, "Alive": True} for address in addresses]
        found.append({"NodeManagerAddress": "192.0.2.99", "Alive": False})
        monkeypatch.setattr(ray, "nodes", lambda: found)
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: addresses[-1])
        monkeypatch.setattr(interface, "interface_of", lambda address: f"of {address}")

    return given


def test_interfaces_are_found_by_their_address():
    assert interface_of("127.0.0.1").startswith("lo")
    assert interface_of("192.0.2.77") == ""


def test_one_node_keeps_to_itself(nodes):
    nodes("10.0.0.1", "10.0.0.1")
    choose_interface()
    assert os.environ[interface.VARIABLE] == "of 127.0.0.1"


def test_several_nodes_meet_on_their_network(nodes):
    nodes("10.0.0.1", "10.0.0.2")
    choose_interface()
    assert os.environ[interface.VARIABLE] == "of 10.0.0.2"


def test_what_somebody_has_chosen_stays(nodes):
    nodes("10.0.0.1", "10.0.0.2")
    os.environ[interface.VARIABLE] = "ib0"
    choose_interface()
    assert os.environ[interface.VARIABLE] == "ib0"


def test_workers_choose_before_the_process_group_is_made(monkeypatch):
    done = []
    monkeypatch.setattr(OnOwnNetwork.__mro__[1], "on_start", lambda *_: done.append("process group"))

    class Group:
        def execute(self, function):
            done.append(function)

    assert OwnNetworkConfig(backend="gloo").backend_cls is OnOwnNetwork
    OnOwnNetwork().on_start(Group(), OwnNetworkConfig(backend="gloo"))
    assert done == [choose_interface, "process group"]
