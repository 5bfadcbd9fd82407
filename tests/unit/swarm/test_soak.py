"""What the soak (tests/bench/swarm_soak.py) makes of what it sees."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

from soak_kills import SETTLED, Kill, Kills, pause, table
from soak_samples import Sample, Seen, complaints, courses, size_of, theil_sen

from hpcjet.swarm.watch.told import Loss

UPDATES = range(0, 10_001, 40)
HOST, INDEX = "the host of seat-0001 (ActorDiedError: x)", "the process of swarm-index"


def samples(kib: Callable[[int], float], *, files: Callable[[int], int] = lambda _: 40, name: str = "PoolActor 7",
            begins: int = 0) -> list[Sample]:  # fmt: skip
    rng = np.random.default_rng(0)
    return [
        Sample(at, {name: Seen(round(kib(at) + rng.normal(0, 40)), files(at), 9)} if at >= begins else {}, {}, 3)
        for at in UPDATES
    ]  # fmt: skip


def judged(these: list[Sample], mended_at: int = 3000) -> list[str]:
    return complaints(these, mended_at, bound=300, more=8, checkpoints=4)


def test_what_stays_as_it_is_is_no_growth() -> None:
    assert judged(samples(lambda _: 80_000)) == []


def test_a_leak_is_found_also_where_memory_comes_in_steps() -> None:
    smooth = samples(lambda at: 80_000 + at * 400 / 1024)
    steps = samples(lambda at: 80_000 + at * 400 / 1024 // 256 * 256)
    for these in (smooth, steps):
        (one,) = courses(these, 3000)
        assert one.slope == pytest.approx(400, rel=0.2)
        (complaint,) = judged(these)
        assert complaint.startswith("PoolActor 7: ") and "more than 300" in complaint


def test_a_single_step_is_none_unless_it_is_large() -> None:
    for where in (5500, 7500, 8000, 9500):
        assert judged(samples(lambda at, where=where: 80_000 + 8192 * (at > where))) == []  # type: ignore[misc]
    (complaint,) = judged(samples(lambda at: 80_000 + 32_768 * (at > 7000)))
    assert "MiB more" in complaint


def test_what_came_before_the_calm_part_does_not_count() -> None:
    assert judged(samples(lambda at: 80_000 + 4 * min(at, 4900))) == []
    assert judged(samples(lambda at: 80_000 + 4 * min(at, 6900)), mended_at=7000) == []


def test_files_that_become_more() -> None:
    (complaint,) = judged(samples(lambda _: 80_000, files=lambda at: 40 + at // 500))
    assert "files rose from" in complaint
    assert judged(samples(lambda _: 80_000, files=lambda at: 40 + 60 * (at == 10_000))) == []


def test_what_could_not_be_judged_is_said() -> None:
    late = samples(lambda _: 80_000, begins=8000)
    assert judged(late) == ["PoolActor 7: it began late, so its growth was not judged"]
    assert judged(samples(lambda _: 80_000, begins=8000, name="PlayerActor 7")) == []
    (complaint,) = judged(samples(lambda _: 80_000), mended_at=9000)
    assert "too few to judge growth" in complaint


def test_more_checkpoints_than_are_kept() -> None:
    these = samples(lambda _: 80_000)
    these[5] = Sample(these[5].updates, these[5].processes, {}, 5)
    assert judged(these) == ["5 checkpoints were there at a time, more than 4"]


def test_a_slope_is_that_of_most() -> None:
    line = [(x, 3.0 * x) for x in range(100)]
    line[50] = 50, 1e9
    assert theil_sen(line) == pytest.approx(3.0)
    assert theil_sen([(7, 1.0), (7, 2.0)]) == 0.0


def test_a_folder_that_goes_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "stays"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 5000)
    scandir = os.scandir

    def and_it_goes(path: str) -> Any:
        if str(path).endswith("gone"):
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", and_it_goes)
    assert 5000 <= size_of(tmp_path) < 10_000


def loss(what: str, at: float, seconds: float | None) -> Loss:
    return Loss(time=at, what=what, lost_fragments=1, seconds_to_first_new_sample=seconds)


def test_a_kill_is_recovered_from_once_the_run_says_so() -> None:
    kills = Kills()
    assert kills.settled(0) and kills.calm_from == 0
    kills.add(Kill("HostActor", 1000.0, 70))
    assert kills.see([], 80) == [] and not kills.settled(10_000) and kills.calm_from == 70
    told = [loss(HOST, 1002.0, 5.5)]
    (back,) = kills.see(told, 120)
    assert back.seconds == 7.5
    assert not kills.settled(120) and kills.settled(120 + SETTLED) and kills.calm_from == 120
    assert kills.see(told, 300) == [] and kills.calm_from == 120 and kills.complaints() == []


def test_losses_are_told_apart() -> None:
    kills = Kills()
    told = [loss(INDEX, 1000.0, 3.0)]
    kills.see(told, 50)
    kills.add(Kill("IndexActor", 2000.0, 70))
    told += [loss(HOST, 2001.0, 4.0), loss(INDEX, 2000.5, None)]
    assert kills.see(told, 90) == []
    first, of_index, of_host = kills.complaints()[1], kills.complaints()[0], kills.complaints()[2]
    assert "no new experience came" in of_index
    assert first.startswith(INDEX) and of_host.startswith("the host of seat-0001")


def test_a_kill_that_was_not_told_of() -> None:
    kills = Kills()
    kills.add(Kill("ServerActor", 2000.0, 70))
    kills.see([loss("the process of swarm-ps-1", 1990.0, 3.0)], 100)
    assert [each.partition(":")[0] for each in kills.complaints()] == [
        "ServerActor, killed after 70 updates", "the process of swarm-ps-1",
    ]  # fmt: skip


def test_the_table_has_the_longest_pause_of_learning() -> None:
    times = [(version, float(version) + 6.0 * (version > 75) + 90 * (version > 200)) for version in range(1, 301)]
    assert pause(times, 70, 80) == 7.0
    assert pause(times, 80, 90) == 1.0
    kills = Kills()
    kills.add(Kill("IndexActor", 1000.0, 70))
    kills.see([loss(INDEX, 1001.0, 4.0)], 80)
    assert table(kills, times, 15).splitlines()[-1] == f"| {INDEX} | 70 | 1 | 15 | 5.0 | 7.0 |"
