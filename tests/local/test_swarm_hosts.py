"""World hosts on a real Ray of two nodes: one scene, as starting it takes most of the time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_seats_on_two_nodes_of_which_one_is_killed_and_others_hang_or_fail() -> None:
    program = Path(__file__).parent / "swarm_hosts_scene.py"
    temp = Path("/tmp") / f"hjh{os.getpid()}"
    path = os.pathsep.join(map(str, (ROOT, program.parent, ROOT / "tests" / "unit" / "swarm")))
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    env = {**os.environ, **quiet, "PYTHONPATH": path, "RAY_TMPDIR": str(temp)}
    try:
        done = subprocess.run(
            [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        subprocess.run(["rm", "-rf", str(temp)], check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))  # Ray writes there too
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
