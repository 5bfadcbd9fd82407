"""Worlds that hang: in Python, in C, and in C that lets no other thread run."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import swarm_fakes
from swarm_fake_plane import Plane
from swarm_fakes import Scripted
from test_worlds_lives import scene

from hpcjet.config.swarm.environment import PettingZooConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.staleness import StalenessMode
from hpcjet.swarm.hosts.loop import Loop
from hpcjet.swarm.hosts.spec import HostSpec
from hpcjet.swarm.hosts.watcher import Watcher

ROOT = Path(__file__).parents[3]
LIMIT_S = 2.5
"""Long enough for a step that only had to wait for its CPU."""


class Stuck(Scripted):
    """A second step that waits in C for `free`."""

    def __init__(self, free: threading.Event) -> None:
        super().__init__([scene("ab")] * 500, ["a", "b"])
        self.free = free

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        if self.at == 2:
            self.free.wait()
        return super().step(actions)


def loop_of(kind: str, **kwargs: Any) -> Loop:
    env = PettingZooConfig(f"swarm_fakes:{kind}", kwargs=kwargs, limit_s=LIMIT_S, max_faults=500)
    spec = HostSpec(
        seat="seat-0012", env=env, worlds=2, first_world=12, seed=5, steps=5, node="here", cache="cache", pool="pool",
        policy=PolicyConfig(hidden=[4]),
    )  # fmt: skip
    plane = Plane(StalenessMode["async"])
    loop = Loop(spec, 0, plane.of(spec))
    plane.publish(0, loop.seat.policies)
    return loop


def run(loop: Loop, hang: Callable[[str], None], *, grace_s: float) -> threading.Thread:
    def work() -> None:
        with Watcher(loop.spec, LIMIT_S, hang, grace_s=grace_s) as watcher:
            watcher.seat = loop.seat
            loop.run()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """swarm_fakes:hangs and :stuck; the event frees those that are stuck."""
    made: list[int] = []

    def hangs() -> Scripted:
        made.append(0)
        return Scripted(
            [scene("ab"), scene("ab", does="hang" if len(made) == 1 else "")] + [scene("ab")] * 500, ["a", "b"]
        )

    free = threading.Event()
    monkeypatch.setattr(swarm_fakes, "hangs", hangs, raising=False)
    monkeypatch.setattr(swarm_fakes, "stuck", lambda: Stuck(free), raising=False)
    yield free
    free.set()


def test_python_that_hangs_is_interrupted_and_its_world_alone_has_failed() -> None:
    loop = loop_of("hangs")
    told: list[str] = []
    thread = run(loop, told.append, grace_s=60)
    try:
        while loop.seat.tally.fragments < 3:
            assert thread.is_alive()
            thread.join(0.01)
    finally:
        loop.stop()
        thread.join(300)
    assert not thread.is_alive()
    assert not told
    assert loop.seat.tally.take_faults() == [f"world 12, step 0: step 0 took longer than {LIMIT_S} s"]


def test_c_that_does_not_come_back_is_named_with_world_and_step(environments: threading.Event) -> None:
    loop = loop_of("stuck")
    told: list[str] = []
    hangs = threading.Event()

    def hang(what: str) -> None:
        told.append(what)
        hangs.set()

    thread = run(loop, hang, grace_s=0.2)
    assert hangs.wait(300)
    assert told[0].startswith("world 12, step 1: no answer for ")
    environments.set()
    loop.stop()
    thread.join(300)
    assert not thread.is_alive()


PROGRAM = """
import ctypes, sys
from hpcjet.config.swarm.environment import GymnasiumConfig
from hpcjet.swarm.hosts.spec import HostSpec
from hpcjet.swarm.hosts.watcher import Watcher

def step_that_never_returns():
    ctypes.PyDLL(None).sleep(100)  # keeps the interpreter to itself

spec = HostSpec("s", GymnasiumConfig(), 1, 0, 0, 1, "n", "c", "p")
with Watcher(spec, 1.0, print, grace_s=3.0, start_s=1.0):
    import time
    time.sleep(0.5)
    step_that_never_returns()
"""


def test_c_that_lets_no_thread_run_ends_the_process_and_says_where() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 1
    assert "Timeout" in done.stderr
    assert "step_that_never_returns" in done.stderr
