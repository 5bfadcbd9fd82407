"""The line that says how far a training is."""

import json
import time
from pathlib import Path

import pytest

from hpcjet.follow import progress_text
from hpcjet.swarm.line import progress_line
from hpcjet.swarm.row import Row, lags_text, read_lags
from hpcjet.swarm.watch import SwarmProgress

ROW: Row = {
    "version": 120,
    "agent_steps": 1.2e7,
    "agent_steps_per_s": 84_012.3,
    "return": -3.127,
    "metric.held": 0.8234,
    "lag_mean": 0.31,
    "lags": "0:8 1:4",
    "pool_fill": 0.12,
    "learner_share": 0.61,
    "hosts": 8,
}
GOALS = {"updates": 400, "agent_steps": 0}
FIRST = {"version": 60, "agent_steps": 6e6, "t": 1000.0}


def data(**more: object) -> dict[str, object]:
    return {"kind": "swarm", "row": ROW, "goals": GOALS, "first": None, "note": "", "updated": 1060.0, **more}


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"row": {}}, "training begins"),
        ({"row": {}, "note": "learners start"}, "learners start"),
        (
            {},
            "update 120/400 · 84,012 agent-steps/s · return -3.13 · held 82 % · lag 0.3",
        ),
        (
            {"first": FIRST},
            "update 120/400 · 84,012 agent-steps/s · return -3.13 · held 82 % · 5 min left",
        ),
        (
            {"note": "learner 1 starts again"},
            "update 120/400 · learner 1 starts again · 84,012 agent-steps/s · return -3.13",
        ),
        (
            {"goals": {"updates": 0, "agent_steps": 4.8e7}, "first": {**FIRST, "agent_steps": 1.1e7}},
            "update 120, 25 % of steps · 84,012 agent-steps/s · return -3.13 · held 82 %",
        ),
        ({"row": {"version": 3}}, "update 3/400"),
        ({"row": {"version": 3, "return": None, "lag_mean": None}}, "update 3/400"),
    ],
    ids=["begin", "note", "no rate", "rate", "trouble", "by steps", "bare", "not finite"],
)
def test_the_line(more: dict[str, object], text: str) -> None:
    line = progress_text(data(**more))
    assert line == text
    assert len(line) <= 78


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    whole = progress_line(data(first=FIRST), width=500)
    assert whole == (
        "update 120/400 · 84,012 agent-steps/s · return -3.13 · held 82 % · 5 min left · lag 0.3 · pool 12 % · "
        "learner 61 % · 8 hosts"
    )
    for width in range(20, 130):
        line = progress_line(data(first=FIRST), width=width)
        assert len(line) <= width and line.startswith("update 120/400")
        assert set(line.split(" · ")) <= set(whole.split(" · "))


def test_progress_is_a_file_that_the_line_is_made_of(tmp_path: Path) -> None:
    progress = SwarmProgress(tmp_path / "progress.json", updates=10)
    progress.write({})
    assert progress_text(json.loads((tmp_path / "progress.json").read_text())) == "training begins"
    progress.write({"version": 4, "return": float("nan"), "agent_steps": 50}, note="one")
    told = json.loads((tmp_path / "progress.json").read_text())
    assert told["row"] == {"version": 4, "return": None, "agent_steps": 50}
    assert progress_text(told) == "update 4/10 · one"
    progress.write({"version": 5})
    assert progress_text(json.loads((tmp_path / "progress.json").read_text())).startswith("update 5/10")


def test_writes_are_a_second_apart(tmp_path: Path) -> None:
    progress = SwarmProgress(tmp_path / "progress.json", updates=1_000_000)
    began, seen = time.monotonic(), set()
    for version in range(1, 2000):
        progress.write({"version": version})
        seen.add((tmp_path / "progress.json").stat().st_mtime_ns)
    assert len(seen) <= 1 + (time.monotonic() - began)


def test_no_room_for_progress_is_no_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SwarmProgress(tmp_path / "gone" / "progress.json").write({"version": 1})
    assert "progress.json could not be written" in caplog.text


def test_lags_are_counted_and_read_again() -> None:
    text = lags_text([0, 1, 0, 3])
    assert text == "0:2 1:1 3:1"
    assert read_lags(text) == {0: 2, 1: 1, 3: 1}
    assert read_lags("") == {}
