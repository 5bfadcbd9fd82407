"""What all unit tests share: the same examples of hypothesis everywhere, and no orphans of other tests."""

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from hpcjet.cluster.child import PR_SET_CHILD_SUBREAPER

# A machine with much else to do is slow, not wrong, and what a commit did not break does not fail by another draw.
settings.register_profile(
    "hpcjet", deadline=None, database=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("search", settings.get_profile("hpcjet"), derandomize=False)
"""Other examples each time: --hypothesis-profile=search."""
settings.load_profile("hpcjet")


@pytest.fixture(autouse=True)
def orphans_are_not_ours() -> Iterator[None]:
    """Where a test runs a program in this process, it adopts orphans from then on: zombies, as nobody reaps them."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
