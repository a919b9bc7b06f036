"""Property tests are deterministic here, and no slower machine can make them fail."""

from hypothesis import settings

settings.register_profile("suite", max_examples=20, deadline=None, derandomize=True)
settings.load_profile("suite")
