"""Property tests are deterministic and have no deadline. Each of pytest's processes has one Ray and one finished run.

`make test` shares the files among two processes, because half of the time is spent waiting for other processes. The
files that take longest come first.
"""

import pytest
import torch
from hypothesis import settings

# Tensors are small here. On a busy machine, threads that wait for each other make them fifteen times slower.
torch.set_num_threads(1)

settings.register_profile("suite", max_examples=20, deadline=None, derandomize=True)
settings.load_profile("suite")


LONGEST = [
    "test_train", "test_run", "test_s3", "test_speed", "test_simulate", "test_leaving", "test_search",
    "test_posteriors", "test_readme", "test_pack", "test_slurm", "test_columns", "test_browser",
]  # fmt: skip
"""Files that take twenty seconds or more, the longest first."""


def pytest_collection_modifyitems(items):
    place = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(LONGEST)))


@pytest.fixture(scope="session")
def cluster():
    """Real processes, two of them at a time."""
    from ldaf_bench.stages.session import ray_session

    with ray_session(num_cpus=2, num_gpus=0):
        yield


@pytest.fixture(scope="session")
def finished(cluster, tmp_path_factory):
    """The small suite in a folder; to be looked at and copied, and never changed."""
    from tests.places import Place

    place = Place(tmp_path_factory.mktemp("finished"))
    assert place.run() == 0
    return place
