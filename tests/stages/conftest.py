"""One Ray for all tests of the stages: real processes, two of them at a time."""

import pytest

from ldaf_bench.stages.session import ray_session


@pytest.fixture(scope="session")
def cluster():
    with ray_session():
        yield
