"""Learner ranks on a real Ray of two nodes: one scene, as starting it takes most of the time."""

from pathlib import Path

from swarm_scene import play


def test_two_ranks_of_which_one_is_killed_go_on_from_the_newest_checkpoint(tmp_path: Path) -> None:
    found = play(Path(__file__).parent / "swarm_learners_scene.py", tmp_path / "checkpoints", timeout_s=800)
    assert found.pop("told after s") < 100, "well before the ranks' own time limit of 200 s"
    learned, told = found.pop("agent-steps")
    assert learned == told and learned % 180 == 0 and learned >= 14 * 180
    assert found == {
        "lost": [1], "fatal": False, "error": "learner rank 1 (node OTHER) died",
        "first": True, "checkpoints": True, "not far back": True, "second": True,
        "row": {"lag_max": found["row"]["lag_max"], "samples": 540.0, "valid_share": 1.0,
                "fetched_bytes": found["row"]["fetched_bytes"]},
        "no such node": "learner rank 1 (node aaaaaaaa) has not started: ActorUnsched",
        "end": [14, "", [10, 12, 14]], "policies": {"p": 14},
        "refused": [True, " FOLDER/00000014: policy: hidden=[8] is not allowed: this training has [9]; "
                    "set exp.policy.hidden as it was, or begin another run"],
    }  # fmt: skip
    assert found["row"]["lag_max"] <= 1 and found["row"]["fetched_bytes"] > 3 * 180 * 4 * 20
