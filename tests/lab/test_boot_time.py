"""A workload that does nothing costs little more than what one could write by hand."""

import statistics
import sys
from pathlib import Path

import pytest
from launching import Login

from hpcjet.lab import Lab

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

from boot import measure

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_job_time_is_at_most_1_3_times_the_minimum(lab: Lab) -> None:
    seconds = measure(Login(lab), runs=2, classic=False)
    assert statistics.median(seconds["hpcjet"]) <= 1.3 * statistics.median(seconds["minimum"]), seconds
