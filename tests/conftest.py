"""Property tests are deterministic here, and no slower machine can make them fail; and there is a Ray for all tests."""

import pytest
import torch
from hypothesis import settings

# Tensors are small here. On a busy machine, threads that wait for each other make them fifteen times slower.
torch.set_num_threads(1)

settings.register_profile("suite", max_examples=20, deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def cluster():
    """Real processes, two of them at a time."""
    from ldaf_bench.stages.session import ray_session

    # The GPUs are imaginary: enough to see that workers are placed on them.
    with ray_session(num_cpus=2, num_gpus=2):
        yield
