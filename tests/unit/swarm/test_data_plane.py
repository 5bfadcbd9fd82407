"""The actors of weights and pool on a real Ray of two nodes: one scene, as starting it takes most of the time."""

from pathlib import Path

import pytest
from swarm_scene import play


@pytest.mark.slow
def test_weights_and_fragments_on_two_nodes_that_lose_primary_index_and_node() -> None:
    found = play(Path(__file__).parent / "swarm_data_plane.py", timeout_s=850)
    first, later = found.pop("first epoch"), found.pop("later epoch")
    assert later > first
    assert found == {
        "versions": [0], "pulls": [1, 1], "shared": True, "right": True,
        "inserts": ["admitted"] * 2, "learned": [3.0, 5.0], "missing": 0,
        "after the primary's death": [1, 1],
        "before": ["admitted"], "after": ["admitted"] * 2, "entries": 3,
        "lost": 1, "learned in the end": [7.0, 8.0],
    }  # fmt: skip
