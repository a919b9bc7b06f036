"""One Ray for all tests of the stages: real processes, two of them at a time."""

import pytest

from ldaf_bench.stages.session import ray_session


@pytest.fixture(scope="session")
def cluster():
    # The GPUs are imaginary: enough to see that workers are placed on them.
    with ray_session(num_cpus=2, num_gpus=2):
        yield
