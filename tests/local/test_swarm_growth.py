"""No process of a training holds more after some hundred updates than before: one scene on a real Ray of two nodes."""

import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

import pytest
from swarm_scene import play

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("HPCJET_GROWTH"),
        reason="three minutes, and what a busy machine holds back looks like growth: HPCJET_GROWTH=1",
    ),
]

MOST = 0.5
"""Of what Python allocates, for each update: a list that grows by one number each time holds one more."""
KINDS = ("driver", "swarm-host", "swarm-pool", "swarm-index", "swarm-ps", "swarm-cache", "swarm-learner")
BOOK = "swarm-lease-book"
"""It has no work in an update: what it holds more is of the counting."""


def test_no_process_holds_more_for_each_update(tmp_path: Path) -> None:
    found = play(Path(__file__).parent / "swarm_growth_scene.py", tmp_path / "run", timeout_s=800)
    for kind in KINDS:
        assert any(name.startswith(kind) for name in found), f"{kind} was not looked at: {list(found)}"
    slopes = {name: slope(counts) for name, counts in found.items()}
    most = MOST + max(0.0, slopes[BOOK])
    print({name: round(each, 2) for name, each in slopes.items()})
    assert max(slopes.values()) < most, {name: found[name] for name, each in slopes.items() if each >= most}


def slope(counts: Sequence[Sequence[int]]) -> float:
    """By updates: the median of those between any two counts, so that single ones do not matter (Theil and Sen)."""
    return median((later - number) / (then - updates) for (updates, number), (then, later) in combinations(counts, 2))
