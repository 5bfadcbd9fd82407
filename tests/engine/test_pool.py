"""The pool with a real router and a real gateway; its node and its engines are stand-ins, around them our real part of
vLLM's server. What a pool makes of real engines on real nodes is in tests/lab."""

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from scene import HOST, free_port

from hpcjet.cluster.lifeline import Line, connect
from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.config.engine import Device, VllmConfig
from hpcjet.engine.gateway import read_calls
from hpcjet.engine.http import request
from hpcjet.engine.pool import Pool
from hpcjet.engine.run_keys import engine_key
from hpcjet.engine.words import PLACE, REPLICA, RESTART, NodeFacts, ShareOrder
from hpcjet.errors import ConfigError, EngineError, NodeLostError
from hpcjet.rundir import RunDir

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from engine_vllm_stub import StubVllm, checkpoint, served, text

pytest.importorskip("vllm_router")


class StubNode(threading.Thread):
    """The sidecar of a node: starts what the pool places, and says what becomes of it."""

    def __init__(self, model: Path, port: int, key: str) -> None:
        super().__init__()
        self._model, self._port, self._key = model, port, key
        self._orders: dict[int, ShareOrder] = {}
        self._running: dict[int, contextlib.ExitStack] = {}
        self._lock = threading.Lock()
        self._line: Line
        self.stubs: dict[int, StubVllm] = {}
        self.restarts = {0: 0, 1: 0}
        self.reasons: list[str] = []

    def run(self) -> None:
        facts: dict[str, Any] = {"host": "n1", "address": HOST, "gpus": (), "cores": tuple(range(8)), "cpus": 8}
        facts["blocks"] = (free_port(), free_port())
        where = asdict(NodeFacts(**facts))
        self._line = connect([HOST], self._port, secret=self._key, rank=0, facts=where, timeout_s=5)
        with contextlib.suppress(NodeLostError):
            while True:
                for said in self._line.hear(0.1):
                    self._take(said)

    def _take(self, said: dict[str, Any]) -> None:
        if said["word"] == PLACE:
            for order in map(ShareOrder.of, said["shares"]):
                if order.number not in self._orders:
                    self._orders[order.number] = order
                    self._begin(order.number)
        elif said["word"] == RESTART:
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
            running = served(self._model, name=f"replica-{number}", pooled=True, key=self._key, port=order.port)
            self.stubs[number] = stack.enter_context(running)
            self._tell(number, "ready")

    def _tell(self, number: int, state: str) -> None:
        news = {"number": number, "rank": 0, "state": state, "reason": "", "restarts": self.restarts[number]}
        self._line.say(REPLICA, **news)

    def close(self) -> None:
        for stack in self._running.values():
            stack.close()
        self.join()
        self._line.close()


class Scene:
    """A pool that serves, and sessions that ask."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.first, self.second = checkpoint(folder / "first"), checkpoint(folder / "second")
        self.third = checkpoint(folder / "third")
        self.run = RunDir(folder)
        self.run.write_secret(RAY_TOKEN, "secret-of-the-run-" + "x" * 32)
        config = VllmConfig(model=str(self.first), served_model_name="tiny", device=Device.cpu, replicas="2")
        ports = {"engine": free_port(), "router": free_port(), "pool": free_port()}
        (folder / "logs").mkdir()
        self.pool = Pool(config, self.run, address=HOST, ports=ports, hosts=["n1"], logs=folder / "logs")
        self.node = StubNode(self.first, ports["pool"], engine_key(self.run))
        self.pool.start()
        stack.callback(self.node.close)
        stack.callback(self.pool.stop)
        self.node.start()
        self.pool.wait_ready(deadline=time.monotonic() + 60)
        self.until_both_are_routed()
        self.over = threading.Event()
        self.said: dict[str, list[str]] = {f"task~{number}~1": [] for number in range(6)}
        self.failed: list[int] = []
        for session in self.said:
            thread = threading.Thread(target=self._ask, args=(session,))
            thread.start()
            stack.callback(thread.join)
        stack.callback(self.over.set)

    def _ask(self, session: str) -> None:
        where = self.pool.endpoint(session, valid_s=600)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
        while not self.over.is_set():
            url = f"{where.base_url}/chat/completions"
            answer = request("POST", url, timeout_s=60, api_key=where.api_key, body=body)
            if answer.status == 200:
                self.said[session].append(text(answer))
            else:
                self.failed.append(answer.status)
            time.sleep(0.02)

    def until_all_say(self, word: str) -> None:
        until(lambda: all(said and said[-1] == word for said in self.said.values()))

    def until_both_are_routed(self) -> None:
        until(lambda: [row["routed"] for row in self.status()["replicas"]] == [True, True])

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = (
            json.loads(self.run.engine.read_text()) if self.run.engine.exists() else {"replicas": []}
        )
        return found


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 40
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(tmp_path, stack)


def test_weights_change_and_replicas_come_back_with_them(scene: Scene) -> None:
    scene.until_all_say("first")
    found = scene.pool.update_weights(scene.second, 1)
    assert {name: (each.version, each.problem) for name, each in found.items()} == {
        "replica-0": (1, ""), "replica-1": (1, ""),
    }  # fmt: skip
    scene.until_all_say("second")

    # One that starts again, with its first weights: so quickly that the router never knew.
    scene.node.crash(0)
    until(lambda: scene.node.stubs[0].loaded == "second")
    scene.until_both_are_routed()

    # One that is too slow to end its requests has to wait, and then has them as well.
    scene.node.stubs[1].delay_s = 3
    until(lambda: any(row["routed"] for row in scene.status()["replicas"]))
    time.sleep(0.5)
    found = scene.pool.update_weights(scene.third, 2, timeout_s=0.5)
    assert found["replica-0"].updated and "still run" in found["replica-1"].problem
    scene.node.stubs[1].delay_s = 0
    until(lambda: scene.node.stubs[1].loaded == "third")
    scene.until_both_are_routed()
    scene.until_all_say("third")

    # One that a load spoils is started again.
    scene.node.stubs[0].spoils = True
    found = scene.pool.update_weights(scene.first, 3, policy="abort")
    assert found["replica-0"].version is None and "invalid offset" in found["replica-0"].problem
    until(lambda: scene.node.reasons and "invalid offset" in scene.node.reasons[0])
    until(lambda: scene.node.restarts[0] == 2)
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
    assert scene.failed == [] and scene.node.restarts == {0: 0, 1: 0}
