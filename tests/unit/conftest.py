"""No test makes its process one that collects the orphans of later tests."""

import ctypes
from collections.abc import Iterator

import pytest

from hpcjet.cluster.child import PR_SET_CHILD_SUBREAPER


@pytest.fixture(autouse=True)
def orphans_are_not_ours() -> Iterator[None]:
    """Where a test runs a program in this process, it adopts orphans from then on: zombies, as nobody reaps them."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
