"""The pool with a real router and a real gateway; its node and its engines are stand-ins, around them our real part of
vLLM's server. What a pool makes of real engines on real nodes is in tests/lab."""

import contextlib
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from engine_vllm_stub import StubVllm, checkpoint, served, text
from free_port import free_port
from scene import HOST

from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.config.engine import Device, VllmConfig
from hpcjet.engine.gateway import read_calls
from hpcjet.engine.http import request
from hpcjet.engine.pool import Pool
from hpcjet.engine.run_keys import engine_key
from hpcjet.engine.serving import awaits_nothing
from hpcjet.engine.words import PLACE, REPLICA, RESTART, NodeFacts, ShareOrder
from hpcjet.errors import ConfigError, EngineError, NodeLostError
from hpcjet.rundir import RunDir

pytest.importorskip("vllm_router")

FOR_EVER_S = 100.0
"""Until the test says otherwise."""
HEAD = "7-0"
"""The head allocation."""


class StubNode(threading.Thread):
    """The sidecar of a node: starts what the pool places, and says what becomes of it."""

    def __init__(self, model: Path, port: int, key: str, *, rank: int = 0, member: str = "", **facts: Any) -> None:
        super().__init__()
        self.member = member
        self._model, self._port, self._key, self._rank, self._facts = model, port, key, rank, facts
        self._orders: dict[int, ShareOrder] = {}
        self._running: dict[int, contextlib.ExitStack] = {}
        self._lock = threading.Lock()
        self._line: Line
        self.stubs: dict[int, StubVllm] = {}
        self.restarts: Counter[int] = Counter()
        self.reasons: list[str] = []
        self._ended = False

    def run(self) -> None:
        facts: dict[str, Any] = {"address": HOST, "gpus": (), "cores": tuple(range(8)), "cpus": 8}
        facts |= {"host": f"n{self._rank + 1}", "blocks": (free_port(), free_port()), **self._facts}
        where = asdict(NodeFacts(**facts))
        self._line = connect(
            [HOST], self._port, secret=self._key, rank=self._rank, facts=where, timeout_s=120, member=self.member
        )
        with contextlib.suppress(NodeLostError):
            while not self._ended:
                for said in self._line.hear(0.1):
                    self._take(said)
            self._line.close()

    def _take(self, said: dict[str, Any]) -> None:
        if said["word"] == PLACE:
            for order in map(ShareOrder.of, said["shares"]):
                if order.number not in self._orders:
                    self._orders[order.number] = order
                    self._begin(order.number)
        elif said["word"] == RESTART and said["restarts"] == self.restarts[said["number"]]:
            self.reasons.append(said["reason"])
            self.crash(said["number"])

    def crash(self, number: int) -> None:
        """It ends, and another one is there a moment later, with the first weights."""
        with self._lock:
            self._running.pop(number).close()
            self.restarts[number] += 1
            self._tell(number, "restarting")
        self._begin(number)

    def _begin(self, number: int) -> None:
        with self._lock:
            stack = self._running[number] = contextlib.ExitStack()
            order = self._orders[number]
            if order.rank == 0:
                running = served(self._model, name=f"replica-{number}", pooled=True, key=self._key, port=order.port)
                self.stubs[number] = stack.enter_context(running)
            self._tell(number, "ready")

    def _tell(self, number: int, state: str) -> None:
        rank = self._orders[number].rank
        news = {"number": number, "rank": rank, "state": state, "reason": "", "restarts": self.restarts[number]}
        self._line.say(REPLICA, **news)

    def end(self) -> None:
        """As at the end of its allocation: the engines die, and the line with them."""
        for stack in self._running.values():
            stack.close()
        self._running.clear()
        self._ended = True

    def close(self) -> None:
        self.end()
        self.join()
        self._line.close()


class Scene:
    """A pool that serves, and sessions that ask."""

    def __init__(
        self, folder: Path, stack: contextlib.ExitStack, *nodes: dict[str, Any], replicas: int = 2,
        awaited: Callable[[], str] = awaits_nothing, timeout_s: float = 300, **settings: Any,
    ) -> None:  # fmt: skip
        """`nodes`: what is special about each of those of the head allocation; without any the pool grows, and is as
        large as its nodes make it; `awaited` and `timeout_s` are of the wait for the first replica."""
        self.first, self.second = checkpoint(folder / "first"), checkpoint(folder / "second")
        self.third = checkpoint(folder / "third")
        self.run = RunDir(folder)
        self.run.write_secret(RAY_TOKEN, "secret-of-the-run-" + "x" * 32)
        config = VllmConfig(
            model=str(self.first), served_model_name="tiny", replicas=str(replicas) if nodes else "auto", **settings
        )
        ports = {"engine": free_port(), "router": free_port(), "pool": free_port()}
        (folder / "logs").mkdir()
        hosts = {rank: f"n{rank + 1}" for rank in range(len(nodes))}
        self.pool = Pool(
            config, self.run, address=HOST, ports=ports, hosts=hosts, logs=folder / "logs", head=HEAD, grows=not nodes
        )
        self._stack, self._pool_port = stack, ports["pool"]
        self.nodes = [self._node(rank=rank, member=f"{HEAD}:{rank}", **each) for rank, each in enumerate(nodes)]
        self.pool.start()
        stack.callback(self._close_nodes)
        stack.callback(self.pool.stop)
        for node in self.nodes:
            node.start()
        self.pool.wait_ready(deadline=time.monotonic() + timeout_s, awaited=awaited)
        drains = min((each["ends"] - settings["drain_s"] for each in nodes if "ends" in each), default=math.inf)
        wanted = replicas if nodes else len(self.nodes)
        until(lambda: self.routed() == [True] * wanted or time.time() > drains)
        self.over = threading.Event()
        self.said: dict[str, list[str]] = {f"task~{number}~1": [] for number in range(6)}
        self.failed: list[int] = []
        for session in self.said:
            thread = threading.Thread(target=self._ask, args=(session,))
            thread.start()
            stack.callback(thread.join)
        stack.callback(self.over.set)

    def join(self, member: str, **facts: Any) -> StubNode:
        """A node of another allocation."""
        self.nodes.append(self._node(rank=int(member.rpartition(":")[2]), member=member, **facts))
        self.nodes[-1].start()
        return self.nodes[-1]

    def _node(self, **about: Any) -> StubNode:
        return StubNode(self.first, self._pool_port, engine_key(self.run), **about)

    def _close_nodes(self) -> None:
        for node in self.nodes:
            node.close()

    def _ask(self, session: str) -> None:
        where = self.pool.endpoint(session, valid_s=600)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        while not self.over.is_set():
            url = f"{where.base_url}/chat/completions"
            answer = request("POST", url, timeout_s=300, api_key=where.api_key, body=body)
            if answer.status == 200:
                self.said[session].append(text(answer))
            else:
                self.failed.append(answer.status)
            time.sleep(0.02)

    def until_all_say(self, word: str) -> None:
        until(lambda: all(said and said[-1] == word for said in self.said.values()))

    def until_both_are_routed(self) -> None:
        until(lambda: self.routed() == [True, True])

    def routed(self) -> list[bool]:
        return [row["routed"] for row in self.status()["replicas"]]

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (
            json.loads(self.run.engine.read_text()) if self.run.engine.exists() else {"replicas": []}
        )
        return found


def until(true: Callable[[], object], *, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(tmp_path, stack, {}, device=Device.cpu)


def test_weights_change_and_replicas_come_back_with_them(scene: Scene) -> None:
    scene.until_all_say("first")
    found = scene.pool.update_weights(scene.second, 1)
    assert {name: (each.version, each.problem) for name, each in found.items()} == {
        "replica-0": (1, ""), "replica-1": (1, ""),
    }  # fmt: skip
    scene.until_all_say("second")

    # One that starts again, with its first weights: so quickly that the router never knew.
    scene.nodes[0].crash(0)
    until(lambda: scene.nodes[0].stubs[0].loaded == "second")
    scene.until_both_are_routed()

    # One that is too slow to end its requests has to wait, and then has them as well.
    scene.nodes[0].stubs[1].delay_s = FOR_EVER_S
    until(lambda: any(row["routed"] for row in scene.status()["replicas"]))
    until(lambda: scene.nodes[0].stubs[1].running)
    found = scene.pool.update_weights(scene.third, 2, timeout_s=5)
    assert found["replica-0"].updated and "still run" in found["replica-1"].problem
    scene.nodes[0].stubs[1].delay_s = 0
    until(lambda: scene.nodes[0].stubs[1].loaded == "third")
    scene.until_both_are_routed()
    scene.until_all_say("third")

    # One that a load spoils is started again.
    scene.nodes[0].stubs[0].spoils = True
    found = scene.pool.update_weights(scene.first, 3, policy="abort")
    assert found["replica-0"].version is None and "invalid offset" in found["replica-0"].problem
    until(lambda: scene.nodes[0].reasons and "invalid offset" in scene.nodes[0].reasons[0])
    until(lambda: scene.nodes[0].restarts[0] == 2)
    scene.until_both_are_routed()
    scene.until_all_say("first")
    until(lambda: scene.status()["version"] == 3)

    order = ["first", "second", "third", "first"]
    for said in scene.said.values():
        steps = [word for at, word in enumerate(said) if at == 0 or said[at - 1] != word]
        assert steps == order, steps
    assert scene.failed == []
    versions: dict[str, list[int]] = {}
    for call in sorted(read_calls(scene.run.calls), key=lambda each: each.ended):
        versions.setdefault(call.attempt, []).append(int(call.model_version))
    assert all(each == sorted(each) for each in versions.values())


def test_what_cannot_be_changed_is_told_and_the_pool_goes_on(scene: Scene) -> None:
    with pytest.raises(ConfigError, match=r"version=0 is not newer .* the next may be 1"):
        scene.pool.update_weights(scene.second, 0)
    with pytest.raises(ConfigError, match="policy='soon' is none of wait, abort"):
        scene.pool.update_weights(scene.second, 1, policy="soon")
    with pytest.raises(EngineError, match=r"were not changed: replica-0, replica-1: .* no such folder"):
        scene.pool.update_weights(scene.second / "none", 1)
    scene.until_all_say("first")
    scene.pool.check()
    assert scene.failed == [] and not scene.nodes[0].restarts.total()


def that_ends(folder: Path, stack: contextlib.ExitStack, drain_s: float) -> tuple[Scene, float]:
    """A pool whose first node will drain soon, and when the allocation of that ends. A slow machine gets more time."""
    for up_s in (30, 100, 300):
        ends = time.time() + up_s + drain_s
        with contextlib.ExitStack() as own:
            (folder / str(up_s)).mkdir()
            nodes: list[dict[str, Any]] = [{"ends": ends}, {"ends": ends + 3600}]
            scene = Scene(folder / str(up_s), own, *nodes, device=Device.cpu, drain_s=drain_s)
            if time.time() < ends - drain_s - 5:
                stack.push(own.pop_all())
                return scene, ends
    raise AssertionError("too slow a machine: it drains before it is looked at")


def test_a_replica_drains_before_its_allocation_ends(tmp_path: Path) -> None:
    drain_s = 20.0
    with contextlib.ExitStack() as stack:
        scene, ends = that_ends(tmp_path, stack, drain_s)
        slow = scene.nodes[0].stubs[0]
        slow.delay_s = 3.0
        until(lambda: scene.routed() == [False, True], timeout_s=300)
        told = time.time()
        assert ends - drain_s - 1 <= told < ends, "neither before its time nor after its end"
        time.sleep(2 * slow.delay_s)
        until(lambda: not slow.running)
        time.sleep(1)
        served = {name: count for name, count in asked(scene).items() if name == "replica-0"}
        until(lambda: all(len(said) > 20 for said in scene.said.values()))
        assert served == {name: count for name, count in asked(scene).items() if name == "replica-0"}
        # Its end, which nobody notices.
        scene.nodes[0].end()
        before = asked(scene)["replica-1"]
        until(lambda: asked(scene)["replica-1"] > before + 20)
        scene.pool.check()
        assert scene.failed == []
        calls = [call for call in read_calls(scene.run.calls) if call.replica == "replica-0"]
        assert all(call.began < told + 1 and not call.error for call in calls)
        # Not `told`: a busy machine sees it late.
        assert any(call.began < ends - drain_s < call.ended for call in calls), "none was under way when it began"
        assert max(call.ended for call in calls) < ends


def asked(scene: Scene) -> Counter[str]:
    """Answers by replica."""
    return Counter(call.replica for call in read_calls(scene.run.calls))


@pytest.mark.parametrize("first", [0, 1], ids=["leader", "follower"])
def test_the_parts_of_a_spread_replica_begin_anew_together(tmp_path: Path, first: int) -> None:
    with contextlib.ExitStack() as stack:
        scene = Scene(tmp_path, stack, {"gpus": ("0",)}, {"gpus": ("0",)}, replicas=1, tensor_parallel=2)
        scene.until_all_say("first")
        scene.nodes[first].crash(0)
        until(lambda: [node.restarts[0] for node in scene.nodes] == [1, 1])
        assert "began anew" in scene.nodes[1 - first].reasons[0]
        until(lambda: scene.routed() == [True])
        counts = {name: len(said) for name, said in scene.said.items()}
        until(lambda: all(len(said) > counts[name] + 2 for name, said in scene.said.items()))
        assert scene.failed == [] and [node.restarts[0] for node in scene.nodes] == [1, 1]


def test_nodes_of_other_allocations_join_drain_and_are_lost(tmp_path: Path) -> None:
    """All of them have rank 0. The engines are stand-ins."""
    with contextlib.ExitStack() as stack:
        scene = Scene.__new__(Scene)  # the wait, within its making, has nodes join
        asked_for, began = list[str](), time.monotonic()

        def awaited() -> str:
            """The first node is longer in coming than a replica may take to start."""
            asked_for.append("a node of gpu")
            if time.monotonic() < began + 21:
                return "a node of gpu"
            if not scene.nodes:
                scene.join("8-0:0")
            return ""

        scene.__init__(tmp_path, stack, awaited=awaited, timeout_s=300, device=Device.cpu, drain_s=30.0)  # type: ignore[misc]
        assert len(asked_for) > 5
        scene.until_all_say("first")

        # Weights that change before another one joins are the weights of that one as well.
        scene.pool.update_weights(scene.second, 1)
        scene.until_all_say("second")
        first, second = scene.nodes[0], scene.join("9-0:0")
        scene.until_both_are_routed()
        assert list(first.stubs) == [0] and list(second.stubs) == [1] and second.stubs[1].loaded == "second"

        # One drains: no more requests, and the node is free when those under way have ended, none of which fails.
        for stub in (first.stubs[0], second.stubs[1]):
            stub.delay_s = 3.0
        until(lambda: first.stubs[0].running)
        assert not scene.pool.has_left("8-0:0")
        scene.pool.drain("8-0:0", reason="idle", by=time.time() + 3600)
        until(lambda: scene.routed() == [False, True])
        until(lambda: scene.pool.has_left("8-0:0"))
        assert first.stubs[0].running == 0 and not scene.pool.has_left("9-0:0")
        second.stubs[1].delay_s = 0.0
        first.end()
        scene.pool.lose("8-0:0")
        until(lambda: [row["name"] for row in scene.status()["replicas"]] == ["replica-1"])
        said = {name: len(each) for name, each in scene.said.items()}
        until(lambda: all(len(each) > said[name] + 2 for name, each in scene.said.items()))
        assert scene.failed == []

        # The last one drains: it goes on until another one serves.
        scene.pool.drain("9-0:0", reason="time limit", by=time.time() + 3600)
        time.sleep(1)
        assert scene.routed() == [True] and not scene.pool.has_left("9-0:0")
        third = scene.join("9-1:0")
        until(lambda: scene.pool.has_left("9-0:0"))
        assert scene.routed() == [False, True] and scene.failed == []

        # One is lost, with all the conversations: another one goes on with them.
        scene.join("10-0:0")
        until(lambda: scene.routed() == [False, True, True])
        third.end()
        scene.pool.lose("9-1:0")
        until(lambda: [row["name"] for row in scene.status()["replicas"]] == ["replica-1", "replica-3"])
        said = {name: len(each) for name, each in scene.said.items()}
        until(lambda: all(len(each) > said[name] + 2 for name, each in scene.said.items()))
        scene.pool.check()
        assert scene.failed == [] and len(asked(scene)) == 4


def test_a_node_that_drains_with_a_request_that_does_not_end_is_free_after_drain_s(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        scene = Scene(tmp_path, stack, {}, {}, device=Device.cpu, drain_s=4.0)
        slow = scene.nodes[0].stubs[0]
        slow.delay_s = FOR_EVER_S
        until(lambda: slow.running)
        scene.pool.drain(f"{HEAD}:0", reason="idle", by=time.time() + 3600)
        until(lambda: scene.routed() == [False, True])
        until(lambda: scene.pool.has_left(f"{HEAD}:0"))
        assert slow.running, "it was still at work"
        slow.delay_s = 0.0
