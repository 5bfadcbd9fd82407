"""World hosts on a real Ray of two nodes: one scene, as starting it takes most of the time."""

from pathlib import Path

import pytest
from swarm_scene import play


@pytest.mark.slow
def test_seats_on_two_nodes_of_which_one_is_killed_and_others_hang_or_fail() -> None:
    found = play(Path(__file__).parent / "swarm_hosts_scene.py", timeout_s=850)
    hangs, fails = found.pop("ended")
    assert hangs.startswith("HostError: sleeps: world 8, reset: no answer for ")
    assert fails == "WorldError: world 8, reset: it raised RuntimeError: no licence"
    steps = [[seat, attempt, first] for first in (0, 7, 14) for seat, attempt in (("seat-0000", 0), ("seat-0001", 0))]
    later = [[seat, attempt, first] for first in (21, 28) for seat, attempt in (("seat-0000", 0), ("seat-0001", 2))]
    assert found.pop("entries") == [*steps, *later], "none twice, none missing"
    assert sorted(found.pop("told")) == ["(2, 0, 9)", "(2, 1, 9)", "(3, 0, 9)", "(3, 1, 9)"]
    assert found == {
        "snapshots": {"seat-0000": [2, 14], "seat-0001": [2, 14]}, "same state": [True, True],
        "status": [2, 3, 3 * 7 * 2 * 5, "wait", []],
        "killed": "died", "equal": [True] * 5, "stopped": ["stopped"] * 2, "losses": {},
    }  # fmt: skip
