"""A workload that does nothing is ready no later, and its job no longer, than what one could write by hand."""

import sys
from pathlib import Path

import pytest
from launching import Login

from hpcjet.lab import Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from boot import measure, median

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_the_job_takes_no_longer_than_the_minimum(lab: Lab) -> None:
    found = measure(Login(lab), nodes=3, runs=2, ways=["minimum"])
    ours, minimum = found["hpcjet"], found["minimum"]
    assert median(ours, "job") <= 1.1 * median(minimum, "job"), found
    assert median(ours, "ready") <= 1.0 * median(minimum, "ready"), found
    assert median(ours, "release") <= 2, found
