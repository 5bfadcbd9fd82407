"""The head's dealings with members: scripted members on real sockets, with a clock that the test moves."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcjet.cluster import crew as crew_module
from hpcjet.cluster.crew import Crew
from hpcjet.cluster.events import Events, read_events
from hpcjet.cluster.lifeline import Hub, proof, proves_head
from hpcjet.cluster.lifeline.hub import MOST_UNSENT
from hpcjet.cluster.members import BYE, FAILED, JOINED, LEAVING
from hpcjet.cluster.register import MOST_GONE, Member, Register, Standing
from hpcjet.cluster.times import drained_by, is_useful, must_drain
from hpcjet.config.compose import compose
from hpcjet.plan import NodeGroup, Plan, make_plan
from hpcjet.rundir import RunDir

SECRET = "of this start"


def group(name: str, *, time_min: int | None = None) -> NodeGroup:
    return NodeGroup(name=name, nodes=1, cpus=1, gpus=0, memory_gb=1.0, max_nodes=9, time_min=time_min)


def planned(folder: Path, **changes: Any) -> Plan:
    plan = make_plan(compose(["+exp=noop", "cluster=slurm"]), run_dir=RunDir(folder), python="python")
    groups = (group("head"), group("cpu"))
    return replace(plan, **{"form": "jobs", "groups": groups, "signal_delay_s": 60, "ray": True, **changes})


class Scripted:
    """A member's side of the lifeline."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=300)
        self._received = b""

    def hello(self, secret: str = SECRET, **about: Any) -> None:
        facts = {"host": "n7", "started": 5.0, "links": [], "nonce": "mine", "group": "cpu", "job": "7", "ends": None}
        answer = {"rank": 0, "member": "7-0:0", "facts": {**facts, "cpus": 4, "gpus": 1, **about.pop("facts", {})}}
        self.send(proof=proof(secret, self.heard(1)[0]["nonce"]), **{**answer, **about})

    def say(self, word: str, **facts: Any) -> None:
        self.send(word=word, **facts)

    def send(self, **said: Any) -> None:
        self.socket.sendall(json.dumps(said).encode() + b"\n")

    def heard(self, count: int) -> list[dict[str, Any]]:
        while self._received.count(b"\n") < count:
            data = self.socket.recv(65_536)
            assert data, f"closed after {self._received!r}"
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]


class Scene:
    """A hub and a crew, the time, and what the driver was told."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.now = plan, 1000.0
        self.hub = Hub(0, secret=SECRET, earlier=["of the start before"])
        self.told: list[dict[str, Any]] = []
        self.crew = Crew(
            plan, "1-0", self.hub, Events(plan.run.events, allocation="1", restart=0), hosts=["n1", "n2"],
            secret=SECRET, tell=lambda line: self.told.append(json.loads(line)), clock=lambda: self.now,
        )  # fmt: skip
        self.members: list[Scripted] = []

    def connect(self) -> Scripted:
        self.members.append(Scripted(self.hub.port))
        self.turn()
        return self.members[-1]

    def joined(self, **about: Any) -> Scripted:
        member = self.connect()
        member.hello(**about)
        self.turn()
        assert [said["word"] for said in member.heard(1)] == ["welcome"]
        member.say(JOINED, address="10.0.0.7", interface="eth0")
        self.turn()
        return member

    def turn(self) -> None:
        for _ in range(3):
            self.crew.hear(self.hub.serve(0.03))
        self.crew.look(at_once=True)

    def standing(self, name: str = "7-0:0") -> str:
        member = self.crew.register.get(name)
        return member.state.value if member else "unknown"

    def events(self) -> list[tuple[str, str]]:
        return [(entry.event, str(entry.facts.get("reason", ""))) for entry in read_events(self.plan.run.events)]

    def close(self) -> None:
        for member in self.members:
            member.socket.close()
        self.hub.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(planned(tmp_path))
    yield made
    made.close()


def test_a_member_of_another_allocation_joins_and_is_told_of(scene: Scene) -> None:
    member = scene.connect()
    member.hello(facts={"ends": 5000})
    scene.turn()
    [welcome] = member.heard(1)
    assert proves_head(welcome["proof"], secret=SECRET, nonce="mine"), "the head proves itself too"
    assert not proves_head(welcome["proof"], secret=SECRET, nonce="another's")
    assert scene.told == [] and scene.standing() == "hello"
    member.say(JOINED, address="10.0.0.7", interface="eth0")
    scene.turn()
    facts = {"member": "7-0:0", "host": "n7", "group": "cpu"}
    assert scene.told == [{"word": "node", **facts, "address": "10.0.0.7", "ends": 5000.0}]
    [written] = json.loads(scene.plan.run.members.read_text())
    assert written == {
        **facts, "job": "7", "rank": 0, "address": "10.0.0.7", "state": "joined", "since": 1000.0, "ends": 5000.0,
        "cpus": 4, "gpus": 1, "reason": "", "by": None,
    }  # fmt: skip
    assert scene.events() == [("agent_up", ""), ("ray_up", "")]


def test_a_node_of_the_head_allocation_is_known_by_its_rank(scene: Scene) -> None:
    scene.joined(member="1-0:1", rank=1, facts={"host": "n2.cluster", "group": "cpu"})
    assert [(each["host"], each["group"]) for each in scene.told] == [("n2", "head")]


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"facts": {"group": "gpu"}}, "there is no group 'gpu' of worker allocations in this run: cpu"),
        ({"facts": {"started": "now"}}, "what it says of itself cannot be understood"),
        ({"facts": {"ends": []}}, "what it says of itself cannot be understood"),
        ({"rank": "x"}, "what it says of itself cannot be understood"),
        ({"member": 7}, "what it says of itself cannot be understood"),
        ({"member": "1-0:9", "rank": 9}, "what it says of itself cannot be understood"),
        ({"secret": "of the start before"}, "it belongs to an earlier start of this run"),
    ],
    ids=["group", "started", "ends", "rank", "member", "no such rank", "earlier start"],
)
def test_who_proved_itself_is_told_why_it_is_refused(scene: Scene, about: dict[str, Any], reason: str) -> None:
    member = scene.connect()
    member.hello(**about)
    scene.turn()
    [refused] = member.heard(1)
    assert refused["word"] == "refused" and refused["reason"] == reason
    assert scene.events() == [("refused", reason)] and scene.told == []
    assert not list(scene.crew.register)


def test_a_stranger_is_noted_once_however_often_it_comes(scene: Scene) -> None:
    for _ in range(5):
        scene.connect().hello(secret="guessed")
        scene.turn()
    assert scene.events() == [("refused", "it does not know the secret of this run")]


def test_drain_and_the_drivers_word(scene: Scene) -> None:
    member = scene.joined(facts={"ends": 5000})
    scene.crew.drain("7-0:0", "idle")
    assert member.heard(1) == [{"word": "drain", "reason": "idle", "by": 4995.0}]
    assert scene.told[-1] == {"word": "node_drains", "member": "7-0:0", "host": "n7", "reason": "idle", "by": 4995.0}
    scene.crew.drain("7-0:0", "again")
    scene.crew.idle("7-0:0")
    scene.crew.idle("7-0:0")
    assert member.heard(1) == [{"word": "done"}]
    member.say(BYE)
    scene.turn()
    assert scene.standing() == "left" and scene.told[-1]["word"] == "node_drains", "no loss"
    assert scene.events()[-2:] == [("drain", "idle"), ("left", "idle")]
    member.socket.close()
    scene.turn()
    assert scene.standing() == "left"


def test_idle_of_a_node_that_does_not_drain_is_nothing(scene: Scene) -> None:
    scene.joined()
    scene.crew.idle("7-0:0")
    scene.crew.idle("8-0:0")
    scene.crew.drain("8-0:0", "who?")
    scene.crew.drain("1-0:1", "the head allocation stays")
    assert scene.standing() == "joined"


def test_the_last_moment_of_a_drain_ends_what_is_busy(scene: Scene) -> None:
    member = scene.joined(facts={"ends": 2000})
    scene.now = 1900.0
    scene.turn()
    assert scene.standing() == "joined"
    scene.now = 1941.0
    scene.turn()
    assert member.heard(1) == [{"word": "drain", "reason": "time limit", "by": 1995.0}]
    scene.now = 1994.0
    scene.turn()
    assert scene.told[-1]["word"] == "node_drains"
    scene.now = 1996.0
    scene.turn()
    scene.turn()
    assert member.heard(1) == [{"word": "done"}]
    assert scene.told[-1]["reason"] == "time limit; its time to drain is over"
    assert [each["word"] for each in scene.told] == ["node", "node_drains", "node_lost"]


def test_preempted_and_then_known_to_be_cancelled(scene: Scene) -> None:
    member = scene.joined()
    member.say(LEAVING, reason="preempted", by=1001.0)
    scene.turn()
    assert scene.told[-1] == {"word": "node_lost", "member": "7-0:0", "host": "n7", "reason": "preempted"}
    member.say(LEAVING, reason="cancelled", by=1003.0)
    member.say(BYE)
    member.socket.close()
    scene.turn()
    assert scene.standing() == "lost" and len(scene.told) == 2
    [written] = json.loads(scene.plan.run.members.read_text())
    assert written["reason"] == "cancelled"
    assert [name for name, _ in scene.events()] == ["agent_up", "ray_up", "leaving", "node_lost", "leaving"]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (lambda member: member.say(FAILED, reason="no disk"), "no disk"),
        (lambda member: member.socket.close(), "its node agent was killed, or the node is down"),
    ],
    ids=["failed", "killed"],
)
def test_a_loss(scene: Scene, last: Callable[[Scripted], None], reason: str) -> None:
    member = scene.joined()
    last(member)
    scene.turn()
    assert scene.told[-1]["word"] == "node_lost" and scene.told[-1]["reason"] == reason
    assert scene.standing() == "lost"


def test_who_comes_again_is_new_and_who_drained_is_not_let_in_again(scene: Scene) -> None:
    scene.joined()
    scene.joined()
    assert [each["word"] for each in scene.told] == ["node", "node_lost", "node"] and scene.standing() == "joined"
    scene.crew.drain("7-0:0", "idle")
    third = scene.connect()
    third.hello()
    scene.turn()
    assert third.heard(1)[0]["reason"] == "it is being given back: idle"
    assert scene.standing() == "left"


def test_words_that_are_none_do_no_harm(scene: Scene) -> None:
    member = scene.joined()
    for said in ({"word": 7}, {"a": 1}, {"word": "what"}, {"word": JOINED}, {"word": LEAVING, "by": "x"}):
        member.send(**said)
    scene.turn()
    assert scene.standing() == "lost", "leaving for no known reason is a loss"


def test_a_member_that_does_not_read_is_lost_and_holds_nobody_up(scene: Scene) -> None:
    scene.joined()
    other = scene.joined(member="8-0:0")
    began = time.monotonic()
    for _ in range(3 * MOST_UNSENT // 8192 + 3000):
        scene.hub.tell("7-0:0", "drain", reason="x" * 8192, by=0)
    assert time.monotonic() - began < 200
    scene.turn()
    assert scene.standing() == "lost" and scene.standing("8-0:0") == "joined"
    scene.hub.tell("8-0:0", "done")
    assert other.heard(1) == [{"word": "done"}]


def test_members_are_written_at_most_once_a_second(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []
    monkeypatch.setattr(crew_module, "atomic_write", lambda file, text: writes.append(text))
    for number in range(30):
        scene.crew.register.put(stub(f"9-{number}:0", Standing.joined))
        scene.now += 0.1
        scene.crew.look()
    assert 1 <= len(writes) <= 4
    scene.now += 5
    scene.crew.look()
    scene.now += 5
    before = len(writes)
    scene.crew.look()
    assert len(writes) == before, "nothing is new"


def test_many_members_cost_in_proportion(tmp_path: Path) -> None:
    seconds = [
        min(cpu_of_a_life_in(tmp_path / f"{count}-{again}", count) for again in range(3)) for count in (125, 500)
    ]
    assert seconds[1] < 10 and seconds[1] < 4 * 2.5 * max(seconds[0], 0.05), seconds


def cpu_of_a_life_in(folder: Path, count: int) -> float:
    """Other work on the machine can only add: who gets a word at a time looks through all members for each."""
    folder.mkdir()
    made = Scene(planned(folder))
    try:
        return cpu_of_a_life(made, count)
    finally:
        made.close()


def cpu_of_a_life(scene: Scene, count: int) -> float:
    """CPU seconds of the head's part, and of the members': all join, half drain, half are killed."""
    members = [Scripted(scene.hub.port) for _ in range(count)]
    scene.members += members
    began = time.process_time()
    until(scene, lambda: len(scene.hub._strangers) == count)
    for number, member in enumerate(members):
        member.hello(member=f"{number}-0:0", facts={"host": f"n{number}", "ends": 5000})
    until(scene, lambda: len(list(scene.crew.register)) == count)
    for member in members:
        member.say(JOINED, address="10.0.0.7")
    until(scene, lambda: len(scene.told) == count)
    for number in range(0, count, 2):
        scene.crew.drain(f"{number}-0:0", "idle")
        scene.crew.idle(f"{number}-0:0")
        members[number].say(BYE)
    for number in range(1, count, 2):
        members[number].socket.close()
    until(scene, lambda: all(each.is_gone for each in scene.crew.register))
    assert {each.state for each in scene.crew.register} == {Standing.left, Standing.lost}
    return time.process_time() - began


def until(scene: Scene, reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not reached():
        assert time.monotonic() < deadline
        scene.crew.hear(scene.hub.serve(0.05))
        scene.now += 0.05
        scene.crew.look()


# register


def stub(name: str, state: Standing) -> Member:
    return Member(member=name, host="n", group="cpu", job="9", rank=0, since=1.0, state=state)


def test_of_those_that_are_gone_the_newest_are_kept() -> None:
    register = Register()
    register.put(stub("stays", Standing.joined))
    for number in range(MOST_GONE + 50):
        register.put(stub(f"{number}-0:0", Standing.joined))
        register.put(stub(f"{number}-0:0", Standing.lost))
    assert len(list(register)) == MOST_GONE + 1
    assert register.get("stays") and not register.get("49-0:0") and register.get("50-0:0")


def test_one_that_came_again_is_kept_whatever_it_was_before() -> None:
    register = Register()
    register.put(stub("1-0:0", Standing.lost))
    register.put(stub("1-0:0", Standing.joined))
    for number in range(MOST_GONE + 50):
        register.put(stub(f"x{number}", Standing.lost))
    assert register.get("1-0:0")


# times


@pytest.mark.parametrize(
    ("time_min", "left_s", "drains", "useful"),
    [(None, 61, False, False), (None, 60, True, False), (None, 81, False, True), (1, 21, False, False),
     (1, 20, True, False), (1, 41, False, True), (600, 60, True, False)],
)  # fmt: skip
def test_when_a_node_drains_and_until_when_it_joins(
    tmp_path: Path, time_min: int | None, left_s: float, drains: bool, useful: bool
) -> None:
    plan, nodes = planned(tmp_path), group("cpu", time_min=time_min)
    assert must_drain(plan, nodes, 1000 + left_s, now=1000) == drains
    assert is_useful(plan, nodes, 1000 + left_s, now=1000) == useful
    assert is_useful(plan, nodes, None, now=1000)


@pytest.mark.parametrize(
    ("ends", "by", "until"),
    [(None, None, 2800), (None, 1010, 1010), (1100, None, 1095), (1100, 1010, 1010), (1100, 1200, 1095),
     (1001, None, 1000)],
)  # fmt: skip
def test_until_when_a_node_drains(ends: float | None, by: float | None, until: float) -> None:
    assert drained_by(ends, by, now=1000) == until
