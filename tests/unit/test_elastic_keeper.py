"""The keeper of worker allocations: what it makes of files and of Slurm's answers. Slurm and the head are stand-ins."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hpcjet.config.compose import compose
from hpcjet.config.root import LaunchConfig
from hpcjet.elastic.keeper import NO_SBATCH, SLOW_S, SOON_S, UNTOLD_S, Keeper
from hpcjet.elastic.login import LoginKeeper
from hpcjet.elastic.memory import FIRST_LEAD_S, MemoryFile, read_memory
from hpcjet.elastic.policy import FIRST_PAUSE_S
from hpcjet.elastic.told import elastic_lines
from hpcjet.elastic.views import UNKNOWN_CPUS
from hpcjet.elastic.wish import write_wish
from hpcjet.errors import SubmitError
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.allocations import Allocation
from hpcjet.slurm.query import JobState
from hpcjet.slurm.states import Stage

WORDS = ["+exp=swe", "cluster=slurm", "cluster.form=jobs"]
GROUPS = "{head: {nodes: 1, cpus_per_node: 2}, cpu: {nodes: 1, max: 4, cpus_per_node: 2, idle_s: 30}}"


@cache
def composed(*words: str) -> LaunchConfig:
    return compose([*WORDS, "exp.cpus=1", *words])


def made_plan(folder: Path, groups: str = GROUPS, *more: str) -> Plan:
    plan = make_plan(composed(f"+cluster.groups={groups}", *more), run_dir=RunDir(folder), python=sys.executable)
    folder.mkdir(exist_ok=True)
    plan.run.plan.write_text(plan.to_json())
    return plan


@dataclass
class StandInSlurm:
    """A stand-in for Slurm: keeps jobs in memory, and counts how often it is asked."""

    jobs: dict[str, tuple[Allocation, JobState]] = field(default_factory=dict)
    over: dict[str, Allocation] = field(default_factory=dict)
    refuses: Exception | None = None
    is_full: bool = False
    """The disk with the records is."""
    has_sbatch: bool = True
    looks: int = 0
    cancelled: list[str] = field(default_factory=list)

    def can_submit(self) -> bool:
        return self.has_sbatch

    def look(self) -> list[tuple[Allocation, JobState]]:
        self.looks += 1
        if self.is_full:
            raise OSError(28, "No space left on device")
        return list(self.jobs.values())

    def ended(self, names: Collection[str]) -> list[Allocation]:
        return [each for name, each in self.over.items() if name in names]

    def submit(self, group: str, nodes: int) -> Allocation:
        if self.refuses:
            raise self.refuses
        number = len(self.jobs) + len(self.over) + 1
        made = Allocation(
            name=f"{group}-{number}",
            group=group,
            nodes=nodes,
            token="t",
            submitted=NOW,
            uid=0,
            job_id=str(100 + number),
        )
        self.jobs[made.name] = (made, JobState(Stage.pending))
        return made

    def cancel(self, allocation: Allocation) -> None:
        self.cancelled.append(allocation.name)
        self.end(allocation.name, "CANCELLED")

    def state(self, stage: Stage, reason: str = "") -> None:
        self.jobs = {name: (each, JobState(stage, reason=reason)) for name, (each, _) in self.jobs.items()}

    def end(self, name: str, word: str) -> None:
        self.over[name] = replace(self.jobs.pop(name)[0], ended=word)


@dataclass
class StandInHead:
    """A stand-in for the head: keeps what it is told."""

    words: list[dict[str, Any]] = field(default_factory=list)

    def say(self, word: str, **facts: Any) -> None:
        self.words.append({"word": word, **facts})

    @property
    def events(self) -> list[str]:
        return [each["event"] for each in self.words if each["word"] == "note"]

    @property
    def drained(self) -> list[str]:
        return [each["member"] for each in self.words if each["word"] == "drain"]


NOW = 1_000_000.0


@dataclass
class Scene:
    """A run with a head node of two CPUs, and a group of worker allocations, in virtual time."""

    plan: Plan
    slurm: StandInSlurm = field(default_factory=StandInSlurm)
    head: StandInHead = field(default_factory=StandInHead)
    now: float = NOW

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.keeper = Keeper(self.plan, self.slurm, self.head, MemoryFile(self.plan.run.elastic))

    def members(self, *members: dict[str, Any]) -> None:
        known = {"group": "cpu", "state": "joined", "since": NOW, "ends": None, "cpus": 2, "gpus": 0, "reason": ""}
        head = {**known, "member": "7-0:0", "group": "head", "job": "7"}
        self.plan.run.members.write_text(json.dumps([head, *({**known, **each} for each in members)]))

    def backlog(self, waiting: int, busy: dict[str, int] | None = None, **facts: Any) -> None:
        told = {"updated": NOW, "waiting": waiting, "in_flight": sum((busy or {}).values()), "cpus": 1.0, **facts}
        self.plan.run.backlog.write_text(json.dumps({**told, "busy": busy or {}}))

    def pass_s(self, seconds: float) -> None:
        """Ticks as the real one does, so much later."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 2.0, end)
            self.keeper.tick(self.now)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(made_plan(tmp_path / "run"))


def test_a_run_grows_with_its_backlog_and_shrinks_when_idle(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=6, busy={"7-0:0": 2})
    scene.pass_s(2)
    assert sorted(scene.slurm.jobs) == ["cpu-1", "cpu-2", "cpu-3"]
    assert scene.head.events == ["allocation_submitted"] * 3
    scene.slurm.state(Stage.running)
    scene.members(*({"member": f"{100 + n}-0:0", "job": str(100 + n), "since": NOW + 90} for n in (1, 2, 3)))
    scene.backlog(waiting=0, busy={"101-0:0": 2})
    scene.pass_s(28)
    assert scene.head.drained == []
    scene.pass_s(4)
    assert scene.head.drained == ["102-0:0", "103-0:0"]
    assert len(scene.slurm.jobs) == 3 and not scene.slurm.cancelled
    memory = read_memory(scene.plan.run.elastic)
    assert memory.groups["cpu"].waits_s == [90.0] * 3 and memory.groups["cpu"].lead_s != FIRST_LEAD_S


def test_a_keeper_that_was_killed_goes_on_from_files_and_slurm(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=8)
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == 3
    scene.start()
    scene.pass_s(60)
    assert len(scene.slurm.jobs) == 3, "what is in the queue is not asked for again"


def test_slurm_is_asked_at_a_slow_pace_and_slower_when_nothing_waits(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=8)
    scene.pass_s(60)
    assert scene.slurm.looks <= 60 / SOON_S + 2
    scene.slurm.state(Stage.running)
    scene.pass_s(SOON_S)
    before = scene.slurm.looks
    scene.pass_s(300)
    assert scene.slurm.looks - before <= 300 / SLOW_S + 1


def test_an_outage_of_the_controller_ends_nothing(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=8)
    scene.pass_s(2)
    scene.slurm.state(Stage.unknown, "the Slurm controller does not answer")
    scene.pass_s(SOON_S + 2)
    scene.backlog(waiting=0, busy={"7-0:0": 1})
    scene.pass_s(200)
    assert len(scene.slurm.jobs) == 3 and not scene.slurm.cancelled
    scene.slurm.state(Stage.pending)
    scene.pass_s(40)
    assert len(scene.slurm.cancelled) == 3


def test_failed_starts_pause_the_group_and_a_node_that_joins_ends_that(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=3)
    for _ in range(3):
        scene.pass_s(2)
        (name,) = scene.slurm.jobs
        scene.slurm.end(name, "FAILED")
        scene.pass_s(SOON_S)
    assert not scene.slurm.jobs
    assert scene.head.events.count("allocation_failed") == 3 and scene.head.events.count("paused") == 1
    assert "3 failed starts" in elastic_lines(scene.plan, now=scene.now)[0]
    scene.start()
    scene.pass_s(20)
    assert not scene.slurm.jobs, "the pause is remembered"
    scene.pass_s(FIRST_PAUSE_S)
    (made,) = scene.slurm.jobs.values()
    scene.members({"member": f"{made[0].job_id}-0:0", "job": made[0].job_id, "since": scene.now})
    scene.pass_s(2)
    assert read_memory(scene.plan.run.elastic).groups["cpu"].failures == 0


@pytest.mark.parametrize("word", ["CANCELLED", "PREEMPTED"])
def test_an_end_that_says_nothing_about_the_group_is_no_failed_start(scene: Scene, word: str) -> None:
    scene.members()
    scene.backlog(waiting=3)
    scene.pass_s(2)
    scene.slurm.end("cpu-1", word)
    scene.pass_s(SOON_S + 2)
    assert "allocation_failed" not in scene.head.events and list(scene.slurm.jobs) == ["cpu-2"]


@pytest.mark.parametrize("error", [SubmitError("refused: QOSMaxSubmitJobPerUserLimit"), OSError(28, "disk is full")])
def test_a_refused_submission_is_a_failed_start(scene: Scene, error: Exception) -> None:
    scene.slurm.refuses = error
    scene.members()
    scene.backlog(waiting=9)
    scene.pass_s(30)
    assert scene.head.events.count("allocation_failed") == 3, "one a tick, then it rests"
    assert scene.head.events.count("paused") == 1


def test_a_job_that_can_never_start_is_cancelled_and_counted(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=3)
    scene.pass_s(2)
    scene.slurm.state(Stage.pending, "AccountNotAllowed")
    scene.pass_s(SOON_S)
    assert scene.slurm.cancelled == ["cpu-1"]
    assert read_memory(scene.plan.run.elastic).groups["cpu"].failures == 1


def test_a_lost_node_is_replaced_before_slurm_is_asked(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=3)
    scene.pass_s(2)
    scene.slurm.state(Stage.running)
    scene.members({"member": "101-0:0", "job": "101"})
    scene.pass_s(SOON_S)
    looks = scene.slurm.looks
    scene.members({"member": "101-0:0", "job": "101", "state": "lost"})
    scene.pass_s(2)
    assert list(scene.slurm.jobs) == ["cpu-1", "cpu-2"] and scene.slurm.looks == looks


def test_a_job_that_slurm_queued_again_counts_as_queued(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=3)
    scene.pass_s(2)
    scene.members({"member": "101-0:0", "job": "101", "state": "lost"})
    scene.pass_s(SOON_S + 4)
    assert list(scene.slurm.jobs) == ["cpu-1"]


def test_a_persons_wish_is_carried_out_and_noted_once(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=1000)
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == 4, "max"
    write_wish(scene.plan.run, "cpu", 1)
    scene.pass_s(20)
    assert len(scene.slurm.jobs) == 1 and scene.head.events.count("scaled") == 1
    write_wish(scene.plan.run, "cpu", 6)
    scene.start()
    scene.pass_s(20)
    assert len(scene.slurm.jobs) == 6 and scene.head.events.count("scaled") == 2
    assert "6 nodes by hpcjet scale" in elastic_lines(scene.plan, now=scene.now)[0]


def test_the_backlog_of_a_driver_before_this_head_counts_as_none(scene: Scene) -> None:
    pointer = {"allocation": "7", "restart": 1, "addresses": [], "port": 1, "secret": "s", "started": NOW + 50}
    scene.plan.run.head.write_text(json.dumps(pointer))
    scene.members()
    scene.backlog(waiting=1000)
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == 1, "as many as at the start"


def test_a_driver_that_has_taken_its_backlog_away_is_done(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=9)
    scene.pass_s(2)
    scene.plan.run.backlog.unlink()
    scene.pass_s(60)
    assert not scene.slurm.jobs, "nor are there as many as at the start"


@pytest.mark.parametrize(("ray", "told", "bounded"), [(False, False, True), (True, False, False), (False, True, False)])
def test_where_nobody_can_tell_what_is_at_work_a_node_has_a_minute_to_drain(
    tmp_path: Path, ray: bool, told: bool, bounded: bool
) -> None:
    scene = Scene(replace(made_plan(tmp_path / "run"), ray=ray))
    scene.members({"member": "101-0:0", "job": "101"})
    if told:
        scene.backlog(waiting=9, busy={"101-0:0": 2})
    write_wish(scene.plan.run, "cpu", 0)
    scene.pass_s(2)
    (drain,) = [each for each in scene.head.words if each["word"] == "drain"]
    assert drain.get("by") == (scene.now + UNTOLD_S if bounded else None)


def test_no_more_nodes_than_tasks_that_may_be_at_work_at_once(tmp_path: Path) -> None:
    scene = Scene(made_plan(tmp_path / "run", GROUPS, "exp.in_flight=4"))
    scene.members()
    scene.backlog(waiting=1000)
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == 1


def test_nodes_of_unknown_size_are_guessed_until_one_joins(tmp_path: Path) -> None:
    scene = Scene(made_plan(tmp_path / "run", "{head: {nodes: 1}, cpu: {nodes: 0, max: 40}}"))
    scene.members()
    scene.backlog(waiting=UNKNOWN_CPUS * 3 + 2)
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == 3
    scene.members({"member": "101-0:0", "job": "101"})
    scene.pass_s(2)
    assert len(scene.slurm.jobs) == UNKNOWN_CPUS * 3 // 2, "nodes have two CPUs"


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '[{"member": 3}, null]', '{"updated": "x"}', '{"updated": 1e99}'])
def test_files_that_are_none_do_no_harm(scene: Scene, text: str) -> None:
    run = scene.plan.run
    run.scale.mkdir()
    for file in (run.members, run.backlog, run.head, run.elastic, run.scale / "cpu.json"):
        file.write_text(text)
    scene.start()
    scene.pass_s(4)
    assert len(scene.slurm.jobs) == 1, "as many as at the start"


def test_a_full_disk_is_said_once_and_the_run_goes_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, data: object, mode: int = 0) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hpcjet.elastic.memory.atomic_write", full)
    scene.slurm.refuses = SubmitError("no")
    scene.members()
    scene.backlog(waiting=9)
    scene.pass_s(30)
    assert scene.head.events.count("paused") == 1
    assert [each for each in caplog.messages if "No space left" in each] == [
        f"{scene.plan.run.elastic} cannot be written (No space left on device): "
        "failed starts are forgotten if this process ends"
    ]


def test_records_on_a_full_disk_leave_what_was_known(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=8)
    scene.pass_s(2)
    scene.slurm.is_full = True
    scene.backlog(waiting=0, busy={"7-0:0": 1})
    scene.pass_s(40)
    assert len(scene.slurm.cancelled) == 3


def test_without_sbatch_on_the_head_a_login_node_submits_and_the_head_drains(scene: Scene) -> None:
    scene.members({"member": "101-0:0", "job": "101"})
    scene.backlog(waiting=0, busy={"7-0:0": 1})
    scene.slurm.has_sbatch = False
    scene.pass_s(40)
    assert scene.head.drained == ["101-0:0"]
    assert scene.head.words[0]["facts"]["reason"] == NO_SBATCH and scene.head.events == ["allocation_failed"]
    assert elastic_lines(scene.plan, now=scene.now) == [NO_SBATCH]
    scene.members()
    scene.backlog(waiting=4)
    scene.pass_s(4)
    assert not scene.slurm.jobs
    login = StandInSlurm()
    first, second = LoginKeeper(scene.plan, login), LoginKeeper(scene.plan, login)
    assert first.keep() and len(login.jobs) == 1
    assert not first.keep(), "at its pace"
    assert not second.keep(), "only one acts"
    first.close()
    assert second.keep()
    second.close()


def test_a_login_node_leaves_it_to_a_head_that_can(scene: Scene) -> None:
    scene.members()
    scene.backlog(waiting=9)
    scene.pass_s(2)
    login = StandInSlurm()
    assert not LoginKeeper(scene.plan, login).keep() and not login.jobs


def test_the_process_lives_until_it_is_ended_and_says_what_it_does(tmp_path: Path) -> None:
    """The real program with a pipe for its words; there is no Slurm on its PATH."""
    plan = made_plan(tmp_path / "run")
    read, write = os.pipe()
    env = {**os.environ, "PATH": "/nowhere", "HPCJET_OUTBOX": str(write)}
    command = [sys.executable, "-m", "hpcjet.elastic.keeper", str(plan.run.plan)]
    process = subprocess.Popen(command, env=env, pass_fds=[write], stderr=subprocess.PIPE)
    os.close(write)
    word = json.loads(os.read(read, 65_536).splitlines()[0])
    assert (word["word"], word["facts"]["reason"]) == ("note", NO_SBATCH)
    deadline = time.monotonic() + 300
    while read_memory(plan.run.elastic).submits and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not read_memory(plan.run.elastic).submits and process.poll() is None
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=300)
    os.close(read)
    assert process.returncode == -signal.SIGTERM and b"Traceback" not in log
