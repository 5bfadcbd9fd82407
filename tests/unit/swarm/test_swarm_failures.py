"""Hosts and learners that die by themselves, which ends a run after some times, or with their node; no cluster."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from hpcjet.config.compose import compose
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import WorkloadError
from hpcjet.swarm.driver import learning as learning_module
from hpcjet.swarm.driver import seats as seats_module
from hpcjet.swarm.driver.learning import Learning
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.plane import Plane
from hpcjet.swarm.driver.seats import Seats
from hpcjet.swarm.form import form_of
from hpcjet.swarm.learners import LearnerStatus, RankStatus
from hpcjet.swarm.learners.group import LearnerGroup
from hpcjet.swarm.placement import Needs, Node
from hpcjet.swarm.row import Row
from hpcjet.swarm.watch import SwarmFiles

HERE, THERE = (Node(node_id=f"id-{name}", name=name, cpus=cpus) for name, cpus in (("here", 2), ("there", 4)))
NEEDS = Needs(learners=1, learner_cpus=0, waits=True, worlds=2)
DIED = ray.exceptions.RayActorError()


class StartlessLearning(Learning):
    """Generations that are never started."""

    def _begin(self) -> None:
        self.began.append(self.places)

    began: list[list[str]]


@pytest.fixture
def learning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StartlessLearning:
    monkeypatch.setattr(learning_module, "BACK_OFF_S", (0.0, 0.0, 0.0))
    exp = compose(["+exp=formation"]).exp
    assert isinstance(exp, SwarmConfig)
    files, losses = SwarmFiles(tmp_path), Losses(tmp_path / "losses.jsonl")
    made = StartlessLearning(exp, form_of(exp), files, losses, seed=0, servers=("a", "b"))
    made.began = []
    made._group = cast(Any, SimpleNamespace())
    made.place([HERE, THERE], NEEDS)
    return made


def test_learners_that_end_three_times_on_nodes_that_are_there_end_the_run(learning: StartlessLearning) -> None:
    for _ in range(2):
        learning._failed("it ran out of memory", fatal=False, lost=[])
        learning.look([HERE, THERE], NEEDS)
    learning._failed("it ran out of memory", fatal=False, lost=[])
    with pytest.raises(WorkloadError, match="ended 3 times without an update, the last time: it ran out of memory"):
        learning.look([HERE, THERE], NEEDS)
    assert learning.began == [["id-there"]] * 2


def test_learners_whose_node_was_gone_before_that_was_known_go_on_elsewhere(learning: StartlessLearning) -> None:
    for _ in range(2):
        learning._failed("no answer", fatal=False, lost=[])
        learning.look([HERE, THERE], NEEDS)
    learning._failed("no answer", fatal=False, lost=[])
    learning.look([HERE], NEEDS)
    learning._failed("no answer", fatal=False, lost=[])
    learning.look([HERE], NEEDS)
    assert learning.began == [["id-there"], ["id-there"], ["id-here"], ["id-here"]]


def test_one_failure_more_after_learners_left_a_node_that_drains_ends_the_run(learning: StartlessLearning) -> None:
    for _ in range(3):
        learning._failed("no answer", fatal=False, lost=[])
    learning.leave([HERE], NEEDS)
    learning._failed("no answer", fatal=False, lost=[])
    with pytest.raises(WorkloadError, match="ended 4 times"):
        learning.look([HERE], NEEDS)


def test_between_failures_there_is_a_pause(learning: StartlessLearning, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_module, "BACK_OFF_S", (900.0, 900.0, 900.0))
    learning._failed("no answer", fatal=False, lost=[])
    learning.look([HERE, THERE], NEEDS)
    assert not learning.began
    learning.look([HERE], NEEDS)
    assert learning.began == [["id-here"]], "nobody waits for a node that is known to be gone"


class Hosts:
    """What `start_host` gives: hosts that die at once of what is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.error: BaseException = DIED
        monkeypatch.setattr(seats_module, "BACK_OFF_S", (0.0,))
        monkeypatch.setattr(seats_module, "Ending", lambda _: SimpleNamespace(over=lambda: True))
        monkeypatch.setattr(seats_module, "start_host", lambda *_, **__: self)
        monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls, []))
        monkeypatch.setattr(ray, "get", self._raise)
        self.run = SimpleNamespace(remote=object)
        self.status = SimpleNamespace(remote=object)
        plane = cast(Plane, SimpleNamespace(source_lost=lambda *_: 0))
        spec: Any = lambda seat: None  # noqa: E731
        self.seats = Seats(spec, plane, Losses(tmp_path / "losses.jsonl"), tmp_path / "layout.json")
        (self.name,) = self.seats.add([(0, 2)])

    def _raise(self, call: object) -> None:
        raise self.error

    def die(self, node: Node, times: int) -> None:
        for _ in range(times):
            self.seats.start({self.name: node.node_id})
            self.seats.look()


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hosts:
    return Hosts(monkeypatch, tmp_path)


def test_a_host_that_dies_three_times_on_a_node_that_is_there_ends_the_run(hosts: Hosts) -> None:
    hosts.die(THERE, 3)
    with pytest.raises(WorkloadError, match=r"worlds 0 to 1\) ended 3 times without a fragment, .*ActorError"):
        hosts.die(THERE, 1)


def test_a_host_whose_node_was_gone_before_that_was_known_gets_another_node(hosts: Hosts) -> None:
    hosts.die(THERE, 3)
    assert hosts.seats.node_lost(THERE.node_id) == []
    hosts.die(HERE, 3)
    hosts.seats.node_lost(THERE.node_id)
    with pytest.raises(WorkloadError, match="ended 3 times"):
        hosts.die(HERE, 1)


def test_what_a_world_fails_with_ends_the_run_at_once(hosts: Hosts) -> None:
    hosts.die(THERE, 2)
    hosts.error = ray.exceptions.RayTaskError("run", "", ValueError("a wall"))
    with pytest.raises(WorkloadError, match="a wall"):
        hosts.die(THERE, 1)


def learners_status(begun: int, *versions: int) -> LearnerStatus:
    rows: list[Row] = [{"version": version} for version in versions]
    return LearnerStatus(version=0, agent_steps=0, done=False, error="", fatal=False, rows=rows, begun=begun)


def test_rows_that_came_with_the_checkpoint_are_told_and_are_no_update(learning: StartlessLearning) -> None:
    learning._failed("it ran out of memory", fatal=False, lost=[])
    is_back = learning._more_rows()
    learning._take(learners_status(70, 69, 70))
    assert len(learning.take_rows()) == 2 and not is_back() and learning._failures == 1
    learning._take(learners_status(70, 71))
    assert len(learning.take_rows()) == 1 and is_back() and not learning._failures


class Answers(LearnerGroup):
    """Of a rank 0 whose generation began with version 70."""

    def told(self, *versions: int, begun: int = 70) -> list[float | str]:
        rows: list[Row] = [{"version": version} for version in versions]
        status = RankStatus(
            rank=0, pid=0, version=versions[-1], agent_steps=0, doing="", since_s=0, done=False, rows=rows, begun=begun
        )
        self._answers = lambda timeout_s: {0: status}  # type: ignore[method-assign]
        self._ask()
        return [row["version"] for row in self._take().rows]


def test_of_a_checkpoints_rows_those_are_told_that_were_not(learning: StartlessLearning) -> None:
    group = Answers(learning.spec, told=67)
    assert group.told(66, 67, 68, 69, 70, 71) == [68, 69, 70, 71]
    assert group.told(72, 73) == [72, 73]
    group._seen, group._had = -1, 73  # what was learned after version 72 is gone
    assert group.told(71, 72, 73, begun=72) == [73]
    assert Answers(learning.spec).told(1, 2, begun=0) == [1, 2]
