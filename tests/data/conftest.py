"""In these tests the small generated data are the right ones, and nothing goes to a network."""

from dataclasses import replace

import pytest

from ldaf_bench.data.dataset import checksum
from ldaf_bench.data.datasets import DATASETS
from tests.data.files import WRITTEN, offline


@pytest.fixture
def small(monkeypatch):
    for name, arrays in WRITTEN.items():
        origin = replace(DATASETS[name].origin, torchvision=offline, mirror=offline)
        monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], sha256=checksum(*arrays), origin=origin))
