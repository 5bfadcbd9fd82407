"""A central pool whose node dies in mid-training: pool, learner and seats begin anew on the node that is left."""

from pathlib import Path

import pytest
from swarm_scene import play

pytestmark = pytest.mark.slow


def test_the_node_of_the_only_pool_dies_and_the_training_goes_on_to_its_end(tmp_path: Path) -> None:
    found = play(Path(__file__).parent / "swarm_central_scene.py", tmp_path / "run", timeout_s=580)
    assert found["pool"] == ["away", "here"] and found["updates"] == 60
    assert "node" in found["lost"] and all(seconds is not None for seconds in found["seconds"])
    assert all(attempt >= 1 for attempt in found["attempts"].values()), "all seats were told the other pool's name"
