"""Property tests are deterministic and have no deadline. There is one Ray for all tests, and one finished run."""

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


@pytest.fixture(scope="session")
def finished(cluster, tmp_path_factory):
    """The small suite in a folder; to be looked at and copied, and never changed."""
    from tests.places import Place

    place = Place(tmp_path_factory.mktemp("finished"))
    assert place.run() == 0
    return place
