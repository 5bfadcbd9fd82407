"""Nodes that come, drain and go, and what the driver moves then; without Ray."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from hpcjet.config.compose import compose
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import BootstrapError
from hpcjet.plan import Plan
from hpcjet.swarm.driver import plane as plane_module
from hpcjet.swarm.driver import processes as processes_module
from hpcjet.swarm.driver import seats as seats_module
from hpcjet.swarm.driver import turnover
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.nodes import Change, Nodes
from hpcjet.swarm.driver.parts import Parts
from hpcjet.swarm.driver.plane import Plane, cache_name, pool_name
from hpcjet.swarm.driver.seat import Seat
from hpcjet.swarm.driver.seats import Seats
from hpcjet.swarm.driver.turnover import Turnover
from hpcjet.swarm.placement import Learners, Needs, Node, place_learners


def node(name: str, *, cpus: int = 2) -> Node:
    return Node(node_id=f"id-{name}", name=name, cpus=cpus)


@dataclass
class FakeNodes:
    """Those that the test says there are."""

    usable: list[Node]
    draining: list[Node] = field(default_factory=list)
    change: Change = field(default_factory=Change)
    given_back: list[str] = field(default_factory=list)

    def __contains__(self, node_id: str) -> bool:
        return any(each.node_id == node_id for each in self.usable + self.draining)

    def look(self) -> Change:
        change, self.change = self.change, Change()
        return change

    def drains_by(self, node: Node) -> float | None:
        return None

    def give_back(self, node: Node) -> None:
        self.given_back.append(node.name)
        self.draining.remove(node)


@dataclass
class FakePlane:
    pool_at: str | None = None
    removed: list[tuple[str, list[str]]] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def add(self, nodes: Iterable[Node]) -> None:
        self.added += [each.name for each in nodes]

    def remove(self, node: Node, nodes: Iterable[Node], beside: Node) -> int:
        self.removed.append((node.name, [each.name for each in nodes]))
        return 3

    def holds(self, node: Node) -> bool:
        return False

    def expect(self, seats: Iterable[str]) -> None:
        self.expected = list(seats)

    def source_lost(self, seat: str, attempt: int) -> int:
        return 0


class HostlessSeats(Seats):
    """Seats whose hosts are never started."""

    def start(self, placed: Mapping[str, str]) -> None:
        for name, node_id in placed.items():
            self.all[name].node_id = node_id

    def stop(self, seats: Iterable[Seat]) -> None:
        pass


class FakeLearning:
    def __init__(self, nodes: list[Node], needs: Needs) -> None:
        self.placed: Learners = place_learners(nodes, needs)
        self.left: list[list[str]] = []

    @property
    def places(self) -> list[str]:
        return list(self.placed.ranks)

    def leave(self, nodes: list[Node], needs: Needs) -> None:
        self.left.append([each.name for each in nodes])
        self.placed = place_learners(nodes, needs)


class Scene:
    """A training with a learner of one CPU and seats on the others."""

    def __init__(self, folder: Path, nodes: list[Node], *words: str, seats: int = 2, jobs: bool = True) -> None:
        config = compose(["+exp=formation", "exp.learners=1", "exp.staleness.mode=async", f"exp.seats={seats}", *words])
        assert isinstance(config.exp, SwarmConfig)
        plan = SimpleNamespace(worker_groups=("cpu",) if jobs else (), run="RUN")
        self.nodes, self.plane, self.losses = FakeNodes(nodes), FakePlane(), Losses(folder / "losses.jsonl")
        spec: Any = None
        self.seats = HostlessSeats(spec, cast(Plane, self.plane), self.losses, folder / "layout.json")
        needs = Needs(learners=1, learner_cpus=0, waits=False, worlds=8)
        self.learning = FakeLearning(nodes, needs)
        parts = Parts(
            nodes=cast(Nodes, self.nodes), plane=cast(Plane, self.plane), seats=self.seats,
            learning=cast(Any, self.learning), playing=cast(Any, None), losses=self.losses,
        )  # fmt: skip
        self.turnover = Turnover(cast(Plan, plan), config.exp, parts)
        self.seats.add([(4 * number, 4) for number in range(seats)])
        self.turnover.fill()

    def comes(self, *nodes: Node) -> bool:
        self.nodes.usable += nodes
        self.nodes.change = Change(came=list(nodes))
        return self.turnover.look()

    def drains(self, one: Node) -> bool:
        self.nodes.usable.remove(one)
        self.nodes.draining.append(one)
        self.nodes.change = Change(drains=[one])
        return self.turnover.look()

    def is_lost(self, one: Node) -> bool:
        for there in (self.nodes.usable, self.nodes.draining):
            if one in there:
                there.remove(one)
        self.nodes.change = Change(lost=[one])
        return self.turnover.look()

    @property
    def where(self) -> list[str]:
        return [seat.node_id.removeprefix("id-") for seat in self.seats.all.values()]


def test_a_node_that_comes_takes_seats_of_a_crowded_one_and_new_ones_with_worlds_of_their_own(tmp_path: Path) -> None:
    scene = Scene(tmp_path, [node("a")])
    assert scene.where == ["a", "a"], "a has one CPU for seats, but there is no other node"
    assert scene.comes(node("b", cpus=3)) and scene.plane.added == ["b"]
    assert scene.where == ["a", "b", "b", "b"]
    worlds = [(seat.first_world, seat.worlds) for seat in scene.seats.all.values()]
    assert worlds == [(0, 4), (4, 4), (8, 4), (12, 4)]
    assert scene.plane.expected == list(scene.seats.all), "the index keeps the new ones in step"


@pytest.mark.parametrize("word", ["exp.grow=false", "exp.staleness.mode=sync"])
def test_where_worlds_are_not_to_grow_only_seats_move(tmp_path: Path, word: str) -> None:
    scene = Scene(tmp_path, [node("a", cpus=1)], word)
    scene.comes(node("b", cpus=5))
    assert len(scene.where) == 2 and "b" in scene.where


def test_what_is_on_a_node_that_drains_goes_elsewhere_and_it_is_given_back(tmp_path: Path) -> None:
    a, b = node("a", cpus=4), node("b")
    scene = Scene(tmp_path, [a, b], seats=4)
    assert sorted(scene.where) == ["a", "a", "b", "b"] or sorted(scene.where) == ["a", "a", "a", "b"]
    assert scene.drains(a)
    assert scene.where == ["b"] * 4 and scene.learning.left == [["b"]]
    assert scene.nodes.given_back == ["a"] and scene.plane.removed == [("a", ["b"])]
    assert not scene.losses.note, "nothing was lost with it"


def test_a_run_whose_only_node_is_lost_goes_on_with_the_next_one(tmp_path: Path) -> None:
    a = node("a")
    scene = Scene(tmp_path, [a])
    assert not scene.is_lost(a) and scene.where == ["", ""] and not scene.plane.removed
    assert not scene.turnover.look()
    assert scene.comes(node("b"))
    assert scene.where == ["b", "b"] and scene.plane.removed == [("a", ["b"])]
    assert scene.losses.note == "goes on without node a" and scene.losses.fragments == 3


def test_the_only_node_works_on_while_it_drains_until_there_is_another(tmp_path: Path) -> None:
    a = node("a")
    scene = Scene(tmp_path, [a])
    assert not scene.drains(a) and scene.where == ["a", "a"] and not scene.nodes.given_back
    assert scene.comes(node("b"))
    assert scene.where == ["b", "b"] and scene.nodes.given_back == ["a"] and scene.learning.left == [["b"]]


def test_one_that_is_lost_while_it_drains_is_not_drained_any_more(tmp_path: Path) -> None:
    a = node("a")
    scene = Scene(tmp_path, [a])
    scene.drains(a)
    scene.is_lost(a)
    assert scene.comes(node("b"))
    assert scene.where == ["b", "b"] and not scene.nodes.given_back and not scene.learning.left


def test_where_no_other_node_can_come_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turnover, "WAIT_S", -1.0)
    scene = Scene(tmp_path, [node("a")], jobs=False)
    with pytest.raises(BootstrapError, match="no node any more; go on with: hpcjet resume RUN"):
        scene.is_lost(scene.nodes.usable[0])


@pytest.mark.parametrize(("mode", "pools"), [("federated", ["a", "b"]), ("central", ["b", "b"])])
def test_pools_stand_with_their_producers_or_beside_the_learner(tmp_path: Path, mode: str, pools: list[str]) -> None:
    exp = compose(["+exp=formation", f"exp.pool.mode={mode}"]).exp
    assert isinstance(exp, SwarmConfig)
    a, b = node("a"), node("b", cpus=8)
    plane = Plane(exp, a.node_id, Losses(tmp_path / "losses.jsonl"))
    plane.place([a, b], place_learners([a, b], Needs(learners=1, learner_cpus=0, waits=True, worlds=8)))
    assert [plane.pool(each.node_id) for each in (a, b)] == [pool_name(each) for each in (node(name) for name in pools)]
    assert [plane.cache(each.node_id) for each in (a, b)] == [cache_name(a), cache_name(b)]
    assert plane.pools == [pool_name(node(name)) for name in dict.fromkeys(pools)]


def test_an_index_that_was_started_again_is_told_the_seats_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Ray: an answer of an actor is what the call returned."""
    exp = compose(["+exp=formation"]).exp
    assert isinstance(exp, SwarmConfig)
    ray = SimpleNamespace(get=lambda call, timeout=0.0: call, wait=lambda calls, timeout: (calls, []))
    monkeypatch.setitem(sys.modules, "ray", ray)
    for module in (plane_module, processes_module):
        for name in ("no_answer", "lost_errors"):
            monkeypatch.setattr(module, name, lambda: RuntimeError)
    pids, told = {"swarm-index": 1}, list[list[str]]()
    actors = {"swarm-index": SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _: pids["swarm-index"]))}
    monkeypatch.setattr(processes_module, "get_actor", lambda name: actors.get(name) or _nobody())
    plane = Plane(exp, "a", Losses(tmp_path / "losses.jsonl"))
    plane.index = SimpleNamespace(expect=SimpleNamespace(remote=told.append))
    plane.expect(["seat-0", "seat-1"])

    def look() -> None:
        for _ in range(2):  # one asks, the next has the answer
            plane._processes._again = 0.0
            plane.look(lambda: lambda: True)

    look()
    assert told == [["seat-0", "seat-1"]]
    pids["swarm-index"] = 2
    look()
    assert told == [["seat-0", "seat-1"]] * 2


class Ends:
    """Actors that end when the test says so."""

    def __init__(self, name: str) -> None:
        self._name = name

    def over(self) -> bool:
        return self._name not in self.stay

    stay: ClassVar[set[str]] = set()


def test_nobody_waits_for_ray_to_see_that_a_node_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The parameter server of that node begins elsewhere once its name is free; the index hears of the node at once."""
    exp = compose(["+exp=formation"]).exp
    assert isinstance(exp, SwarmConfig)
    a, b, c = (node(name, cpus=cpus) for name, cpus in (("a", 8), ("b", 2), ("c", 2)))
    plane = Plane(exp, b.node_id, Losses(tmp_path / "losses.jsonl"))
    learners = place_learners([a, b, c], Needs(learners=1, learner_cpus=0, waits=True, worlds=8))
    plane.place([a, b, c], learners)
    lost, started = list[str](), list[tuple[str, str]]()
    plane.index = SimpleNamespace(node_lost=SimpleNamespace(remote=lambda name: lost.append(name) or 7))
    start = SimpleNamespace(remote=lambda: None)

    def start_server(_kind: object, name: str, node_id: str, *_: object) -> Any:
        started.append((name, node_id))
        return SimpleNamespace(start=start)

    ray = SimpleNamespace(get=lambda call, timeout=0.0: call, wait=lambda calls, timeout: (calls, []))
    monkeypatch.setitem(sys.modules, "ray", ray)
    for name, to in (("Ending", Ends), ("start_actor", start_server), ("no_answer", lambda: RuntimeError)):
        monkeypatch.setattr(plane_module, name, to)
    monkeypatch.setattr(processes_module, "get_actor", lambda name: _nobody())
    monkeypatch.setattr(processes_module, "lost_errors", lambda: RuntimeError)
    (server,) = [name for name, at in plane._servers.items() if at == a.node_id]
    monkeypatch.setattr(Ends, "stay", {server})
    assert plane.remove(a, [b, c], b) == 7 and lost == ["a"]
    plane.look(lambda: lambda: True)
    assert not started
    monkeypatch.setattr(Ends, "stay", set())
    for _ in range(2):
        plane.look(lambda: lambda: True)
    others = {at for name, at in plane._servers.items() if name != server}
    assert [name for name, _ in started] == [server] and started[0][1] == plane._servers[server] not in others


def test_a_server_begins_on_a_node_that_came_later_where_all_others_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = compose(["+exp=formation"]).exp
    assert isinstance(exp, SwarmConfig)
    b, c, d = (node(name, cpus=2) for name in "bcd")
    plane = Plane(exp, b.node_id, Losses(tmp_path / "losses.jsonl"))
    started: list[str] = []
    start = SimpleNamespace(remote=lambda: None)

    def start_server(_kind: object, name: str, node_id: str, *_: object) -> Any:
        started.append(node_id)
        return SimpleNamespace(start=start)

    monkeypatch.setattr(plane_module, "start_actor", start_server)
    plane._servers = dict.fromkeys(plane_module.SERVERS, "id-of-a")
    plane._replaced = {plane_module.SERVERS[0]: (Ends("a"), [b, c], b)}
    plane._replace()
    assert not started and plane._replaced
    plane._on[d.node_id] = d
    plane._replace()
    assert started == [d.node_id] and not plane._replaced


def test_a_seat_whose_host_has_not_ended_waits_and_the_others_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began: list[str] = []

    def start_host(_node: str, name: str, _attempt: int, **_: object) -> Any:
        began.append(name)
        return SimpleNamespace(run=SimpleNamespace(remote=object))

    monkeypatch.setattr(seats_module, "Ending", Ends)
    monkeypatch.setattr(seats_module, "start_host", start_host)
    monkeypatch.setattr(Ends, "stay", {"swarm-host-seat-0000"})
    seats = Seats(cast(Any, lambda seat: seat.name), cast(Plane, None), cast(Losses, None), tmp_path / "layout.json")
    placed = dict.fromkeys(seats.add([(0, 2), (2, 2)]), "id-a")
    seats.start(placed)
    assert began == ["seat-0001"] and [seat.name for seat in seats.waiting] == ["seat-0000"]
    monkeypatch.setattr(Ends, "stay", set())
    seats.start({"seat-0000": "id-a"})
    assert began == ["seat-0001", "seat-0000"] and not seats.waiting


def _nobody() -> None:
    raise RuntimeError
