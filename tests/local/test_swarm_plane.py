"""The data plane moves what is learned from, and weights once to each node: the bench on three real Ray nodes, short.

Each node has a network of its own, in which the kernel counts; for that root is needed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[1] / "bench" / "swarm_plane.py"


def may_make_networks() -> bool:
    return subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    words = [sys.executable, str(BENCH), "moves", "weights", "--short"]
    env = {**os.environ, "RAY_worker_niceness": "0"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=850, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"bench"')]


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not may_make_networks(), reason="this user may not make network namespaces"),
]


def test_the_learner_gets_what_it_learns_from_and_a_central_pool_all_that_is_made(found: list[dict[str, Any]]) -> None:
    federated, central = (next(line for line in found if line.get("mode") == mode) for mode in ("federated", "central"))
    assert federated["trained_bytes"] == central["trained_bytes"] == federated["sent_by_pools"]
    assert federated["learner_received"] <= 1.1 * federated["trained_bytes"]
    assert central["learner_received"] >= central["produced_bytes"] >= 9 * central["trained_bytes"]


def test_both_choose_with_the_same_probabilities(found: list[dict[str, Any]]) -> None:
    """A normal number is beyond 4.5 once in 150,000 times."""
    numbers = [line["chi_square_z"] for line in found if "chi_square_z" in line]
    numbers += [line["same_distribution_z"] for line in found if "same_distribution_z" in line]
    assert len(numbers) == 3 and max(map(abs, numbers)) < 4.5


def test_weights_cross_to_each_node_once_however_many_act_there(found: list[dict[str, Any]]) -> None:
    lines = [line for line in found if line["bench"] == "weights"]
    assert [line["executors_per_node"] for line in lines] == [1, 16]
    for line in lines:
        assert line["pulls_per_update"] == [1.0, 1.0]
        assert all(0.99 <= times <= 1.2 for times in line["times_received"][1:]), line
