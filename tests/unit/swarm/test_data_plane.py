"""The actors of weights and pool on a real Ray of two nodes: one scene, as starting it takes most of the time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_weights_and_fragments_on_two_nodes_that_lose_primary_index_and_node(tmp_path: Path) -> None:
    program = Path(__file__).parent / "swarm_data_plane.py"
    temp = Path("/tmp") / f"hjs{os.getpid()}"
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
    env = {**os.environ, **quiet, "PYTHONPATH": str(ROOT), "RAY_TMPDIR": str(temp)}
    try:
        done = subprocess.run(
            [sys.executable, str(program)], env=env, capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        subprocess.run(["rm", "-rf", str(temp)], check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))  # Ray writes there too
    first, later = found.pop("first epoch"), found.pop("later epoch")
    assert later > first
    assert found == {
        "versions": [0], "pulls": [1, 1], "shared": True, "right": True,
        "inserts": ["admitted"] * 2, "learned": [3.0, 5.0], "missing": 0,
        "after the primary's death": [1, 1],
        "before": ["admitted"], "after": ["admitted"] * 2, "entries": 3,
        "lost": 1, "learned in the end": [7.0, 8.0],
    }  # fmt: skip
