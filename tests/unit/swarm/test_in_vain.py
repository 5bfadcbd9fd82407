"""Environments that fail in every episode: fragments come all the same, and the run ends; no cluster."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
import swarm_fakes
from swarm_fake_plane import Plane
from swarm_fakes import Scene, Scripted
from test_hosts_loop import published, settle, spec
from test_worlds_lives import noop, scene

from hpcjet.config.swarm.environment import PettingZooConfig
from hpcjet.config.swarm.staleness import StalenessMode
from hpcjet.errors import WorkloadError, WorldError
from hpcjet.swarm.driver import hope as hope_module
from hpcjet.swarm.driver import plane as plane_module
from hpcjet.swarm.driver import seats as seats_module
from hpcjet.swarm.driver.hope import Hope
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.seats import Seats
from hpcjet.swarm.hosts import HostError, HostStatus, PlaneError
from hpcjet.swarm.hosts.loop import Loop
from hpcjet.swarm.hosts.tally import LONG_LIFE, Tally
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.worlds import ParallelWorld, Worlds
from hpcjet.swarm.worlds import seat as seat_module

FAULT = WorldError("it raised RuntimeError: the simulator broke", world=3, agent="b", step=2)
SCENES: dict[str, list[Scene]] = {}


@pytest.fixture
def scenes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[Scene]]]:
    """Environments swarm_fakes:always(name=...), all of which play these scenes."""
    made = lambda name: Scripted(SCENES[name], ["a", "b"])  # noqa: E731
    monkeypatch.setattr(swarm_fakes, "always", made, raising=False)
    yield SCENES
    SCENES.clear()


# what a host tells


def loop_of(name: str) -> tuple[Plane, Loop]:
    which = spec(3, env=PettingZooConfig("swarm_fakes:always", kwargs={"name": name}), steps=2)
    plane = published(which, StalenessMode["async"])
    return plane, Loop(which, 0, plane.of(which))


def test_worlds_that_fail_in_each_episode_give_fragments_in_vain(scenes: dict[str, list[Scene]]) -> None:
    scenes["bad"] = [scene("ab"), scene("ab"), scene("ab", does="raise")]
    plane, loop = loop_of("bad")
    loop.seat.begin()
    seen = []
    for _ in range(3):
        loop.once()
        settle(loop)
        seen.append(loop.seat.tally.in_vain)
    assert seen == [1, 2, 3] and len(plane.inserted) == 3 and all(entry.agent_steps for entry, _ in plane.inserted)


def test_an_episode_that_ends_is_not_in_vain(scenes: dict[str, list[Scene]]) -> None:
    """The second of its two worlds always fails."""
    scenes["good"] = [scene("ab"), scene("", "ab", truncated={"a", "b"})]
    _, loop = loop_of("good")
    loop.seat.begin()
    loop.once()
    settle(loop)
    for _ in range(9):
        loop.seat.tally.fault(WorldError("", world=4, step=0))
    assert loop.seat.tally.in_vain == 0
    for _ in range(2):
        loop.seat.tally.fault(WorldError("", world=3))
    assert loop.seat.tally.in_vain == 2
    loop.once()
    assert loop.seat.tally.in_vain == 0


def test_a_world_that_failed_late_has_come_to_something() -> None:
    tally = Tally()
    tally.begun([0])
    for step in (5, 5, LONG_LIFE, 5):
        tally.fault(WorldError("", world=0, step=step))
    assert tally.in_vain == 1


def test_a_world_that_hangs_is_told_of_before_the_others_are_reset(scenes: dict[str, list[Scene]]) -> None:
    scenes["bad"] = [scene("ab", does="raise")]
    _, loop = loop_of("bad")
    told: list[tuple[int, list[str]]] = []
    (_, second), begin = loop.seat.vector._seats, Worlds._begin  # type: ignore[attr-defined]

    def noted(self: Worlds, seat: Any, board: Any) -> None:
        if seat is second:
            told.append((loop.seat.tally.in_vain, loop.seat.tally.take_faults()))
        begin(self, seat, board)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(WorldError):
        patch.setattr(Worlds, "_begin", noted)
        loop.run()
    ((in_vain, faults),) = told
    assert in_vain == 4 and faults == ["world 3, reset: it raised RuntimeError: the simulator broke"] * 4


def test_agents_that_live_and_never_act_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat_module, "MOST_IDLE", 5)
    idle = Scene(["a", "b"], {})
    worlds = Worlds([lambda: ParallelWorld(Scripted([scene("ab"), *[idle] * 20], ["a", "b"]))], seed=1, max_faults=9)
    worlds.reset()
    faults = [fault for _ in range(12) for fault in worlds.step(noop(worlds)).faults]
    assert [str(fault) for fault in faults] == [
        "world 0, step 5: its agents live, but none of them was to act in 5 steps"
    ] * 2


# what the driver makes of it


class Hosts:
    """Seats whose hosts say what the test wants, and end with what it wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seats: int = 2) -> None:
        self.clock = 0.0
        monkeypatch.setattr(hope_module, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(seats_module, "BACK_OFF_S", (0.0,))
        monkeypatch.setattr(seats_module, "Ending", lambda _: SimpleNamespace(over=lambda: True))
        monkeypatch.setattr(seats_module, "start_host", lambda _node, name, _attempt, **_: self.host(name))
        monkeypatch.setattr(ray, "wait", lambda calls, **_: ([call for call in calls if self.over(call)], []))
        monkeypatch.setattr(ray, "get", self.get)
        self.ends: dict[str, Exception] = {}
        self.says: dict[str, HostStatus] = {}
        plane = cast(plane_module.Plane, SimpleNamespace(source_lost=lambda *_: 0))
        self.seats = Seats(
            cast(Any, lambda seat: seat.name), plane, Losses(tmp_path / "losses.jsonl"), tmp_path / "layout.json"
        )
        self.names = self.seats.add([(2 * number, 2) for number in range(seats)])
        self.hope = Hope()
        self.start()

    def start(self) -> None:
        self.seats.start({seat.name: "id-here" for seat in self.seats.waiting})

    def host(self, name: str) -> Any:
        run, status = SimpleNamespace(remote=lambda: ("run", name)), SimpleNamespace(remote=lambda: ("status", name))
        return SimpleNamespace(run=run, status=status)

    def over(self, call: tuple[str, str]) -> bool:
        return call[0] == "status" or call[1] in self.ends

    def get(self, call: tuple[str, str]) -> Any:
        what, name = call
        if what == "status":
            return self.says.get(name, status(name))
        error = self.ends[name]
        raise error if isinstance(error, ray.exceptions.RayError) else ray.exceptions.RayTaskError("run", "", error)

    def end(self, error: Exception, *names: str, **said: Any) -> None:
        """These hosts end, and are started again."""
        self.ends = dict.fromkeys(names, error)
        self.says |= {name: status(name, **said) for name in names}
        self.seats.look()
        self.ends, self.says = {}, {}
        self.look()
        self.start()

    def look(self) -> None:
        self.hope.look(self.seats.all.values())

    def later(self) -> None:
        self.clock += hope_module.STAYS_S + 1


def status(name: str, **said: Any) -> HostStatus:
    return HostStatus(name, 0, "here", 1, "step", **said)


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hosts:
    return Hosts(monkeypatch, tmp_path)


ENDED = Episode(0, 0, 5, returns={}, agents={})


def test_a_run_all_of_whose_worlds_fail_ends_though_fragments_come(hosts: Hosts) -> None:
    for _ in range(3):
        hosts.look()
        hosts.end(FAULT, *hosts.names, fragments=9)
    hosts.look()
    hosts.later()
    with pytest.raises(WorkloadError, match=r"all seats fail, .*: WorldError: world 3, agent b, step 2: .*broke$"):
        hosts.look()


def test_it_ends_while_hosts_stand_and_at_its_end_at_once(hosts: Hosts) -> None:
    said = {"fragments": 9, "in_vain": 3, "faults": [str(FAULT)]}
    hosts.says = {name: status(name, **said) for name in hosts.names}
    hosts.seats.ask(0.0)
    hosts.look()
    with pytest.raises(WorkloadError, match="world 3, agent b, step 2"):
        hosts.hope.look(hosts.seats.all.values(), last=True)
    hosts.later()
    with pytest.raises(WorkloadError, match="world 3, agent b, step 2"):
        hosts.look()


def test_worlds_that_all_fail_when_the_goal_is_reached_take_nothing_away(hosts: Hosts) -> None:
    hosts.says = {name: status(name, episodes=[ENDED]) for name in hosts.names}
    hosts.seats.ask(0.0)
    hosts.look()
    hosts.says = {name: status(name, fragments=9, in_vain=3, faults=[str(FAULT)]) for name in hosts.names}
    hosts.seats.ask(0.0)
    hosts.hope.look(hosts.seats.all.values(), last=True)


def test_deaths_far_apart_of_worlds_whose_episodes_never_end_are_not_in_a_row(hosts: Hosts) -> None:
    for _ in range(9):
        hosts.says = {name: status(name, fragments=9, world_steps=2 * LONG_LIFE) for name in hosts.names}
        hosts.seats.ask(0.0)
        hosts.end(ray.exceptions.ActorDiedError(), *hosts.names, fragments=9, world_steps=2 * LONG_LIFE)
        hosts.later()
        hosts.look()


def test_a_seat_whose_worlds_do_not_fail_keeps_the_run_going(hosts: Hosts) -> None:
    for _ in range(9):
        hosts.end(FAULT, hosts.names[0], fragments=9)
        hosts.later()
        hosts.look()


def test_episodes_that_ended_before_the_worlds_failed_count_though_nobody_had_asked(hosts: Hosts) -> None:
    for _ in range(9):
        hosts.end(FAULT, *hosts.names, fragments=9, episodes=[ENDED])
        hosts.later()
        hosts.look()
    assert len(hosts.seats.take_episodes()) >= 2 * 9


def test_hosts_that_hang_at_their_end_hold_up_the_driver_together_as_long_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hosts = Hosts(monkeypatch, tmp_path, seats=20)
    speaks, waited = hosts.names[7], []

    def wait(calls: list[tuple[str, str]], *, timeout: float, **_: object) -> tuple[list[tuple[str, str]], list[Any]]:
        waited.append(timeout)
        return [call for call in calls if hosts.over(call) and call in (*runs, ("status", speaks))], []

    runs = [("run", name) for name in hosts.names]
    monkeypatch.setattr(ray, "wait", wait)
    hosts.end(FAULT, *hosts.names, fragments=9, episodes=[ENDED])
    assert sum(waited) == 2 * seats_module.LAST_WORDS_S
    assert hosts.seats.take_episodes() and hosts.seats.all[speaks].vain_before == 1


def test_what_all_worlds_need_may_be_away_for_a_moment(hosts: Hosts) -> None:
    for _ in range(3):
        hosts.end(FAULT, *hosts.names, fragments=9)
    hosts.says = {name: status(name, episodes=[ENDED]) for name in hosts.names}
    hosts.seats.ask(0.0)
    hosts.look()
    hosts.later()
    hosts.look()


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (HostError("worlds 0 to 1 hang"), "HostError: worlds 0 to 1 hang"),
        (ray.exceptions.ActorDiedError(), r"the host of seat-0001 \(worlds 2 to 3\): ActorDiedError"),
        (PlaneError("no pool"), ""),
    ],
)
def test_hangs_and_deaths_are_of_the_worlds_and_a_pool_that_is_away_is_not(
    hosts: Hosts, error: Exception, ends: str
) -> None:
    hosts.says = {name: status(name, fragments=9) for name in hosts.names}
    for _ in range(4):
        hosts.seats.ask(0.0)
        hosts.end(error, *hosts.names, fragments=9)
        hosts.says = {name: status(name, fragments=9) for name in hosts.names}
    hosts.later()
    if ends:
        with pytest.raises(WorkloadError, match=ends):
            hosts.look()
    else:
        hosts.look()


def test_a_node_that_is_gone_takes_what_failed_there_with_it(hosts: Hosts) -> None:
    for _ in range(3):
        hosts.end(FAULT, *hosts.names, fragments=9)
    hosts.seats.node_lost("id-here")
    hosts.later()
    hosts.look()
    hosts.later()
    hosts.look()
