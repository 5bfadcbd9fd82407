"""The Ray actor of a seat, and what a driver calls to have it."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from hpcjet.errors import HpcjetError
from hpcjet.swarm.actors import end_actor, get_actor, lost_errors, start_actor
from hpcjet.swarm.hosts.loop import Loop
from hpcjet.swarm.hosts.plane import RayPlane
from hpcjet.swarm.hosts.spec import HostError, HostSpec, HostState, HostStatus
from hpcjet.swarm.hosts.watcher import Watcher
from hpcjet.swarm.worlds.deadline import TimeLimit

LAST_WORDS_S = 3.0
"""Between the answer that a world hangs and the end of the process."""
AGAIN_S = 0.05

log = logging.getLogger(__name__)


class HostActor:
    """One attempt at a seat. Its worlds are made and stepped by a thread, which `run` waits for."""

    def __init__(self, spec: HostSpec, attempt: int, state: HostState | None) -> None:
        self._spec, self._attempt, self._state = spec, attempt, state
        self._loop: Loop | None = None
        self._stopped = False
        self._error = ""
        self._ended: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Returns when it was stopped; raises what ended it: WorldError, HostError, ConfigError. To be called once."""
        assert self._ended is None, "run is called once"
        self._ended, events = asyncio.get_running_loop().create_future(), asyncio.get_running_loop()

        def end(error: BaseException | None) -> None:
            events.call_soon_threadsafe(self._end, error)

        threading.Thread(target=self._work, args=(end,), name=self._spec.seat, daemon=True).start()
        await self._ended

    async def stop(self) -> None:
        self._stopped = True
        if self._loop is not None:
            self._loop.stop()

    async def status(self) -> HostStatus:
        """Episodes and faults are told once."""
        spec, loop = self._spec, self._loop
        if loop is None:
            doing = "end" if self._error else "start"
            return HostStatus(spec.seat, self._attempt, spec.node, os.getpid(), doing, error=self._error)
        tally = loop.seat.tally
        return HostStatus(
            seat=spec.seat, attempt=self._attempt, node=spec.node, pid=os.getpid(), version=loop.version,
            fragments=tally.fragments, refused=tally.refused, world_steps=tally.steps * spec.worlds,
            agent_steps=tally.agent_steps, agent_steps_per_s=tally.rate(),
            episodes=tally.take_episodes(), faults=tally.take_faults(),
            episodes_ended=tally.episodes_ended, faults_seen=tally.faults_seen, in_vain=tally.in_vain,
            seconds=dict(tally.seconds),
            seeds=loop.seat.seeds, state=loop.doing, error=self._error,
        )  # fmt: skip

    async def snapshot(self, version: int, wait_s: float = 0.0) -> HostState | None:
        """At the begin of its first fragment of this version, or a newer one; None if it has begun none in time."""
        deadline = time.monotonic() + wait_s
        while True:
            found = None if self._loop is None else self._loop.snapshots.of(version)
            if found is not None or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(AGAIN_S)

    def _work(self, end: Callable[[BaseException | None], None]) -> None:
        error: BaseException | None = None
        try:
            _one_thread(self._spec.backend)
            limit_s = getattr(self._spec.env, "limit_s", None)
            with ExitStack() as stack:
                watcher = None
                if limit_s is not None:
                    watcher = stack.enter_context(Watcher(self._spec, limit_s, lambda what: self._hangs(what, end)))
                self._go(watcher)
        except TimeLimit:
            error = HostError(f"{self._spec.seat}: a call of its worlds took too long")
        except HpcjetError as known:
            error = known
        except BaseException as other:  # of whatever kind, also one that could not travel
            error = HostError(f"{self._spec.seat}: it ended by {type(other).__name__}: {other}")
            error.__cause__ = other
        end(error)

    def _go(self, watcher: Watcher | None) -> None:
        plane = RayPlane(self._spec, self._attempt)
        loop = Loop(self._spec, self._attempt, plane, self._state)
        self._loop, self._state = loop, None
        log.info("%s, attempt %d: seeds %s", self._spec.seat, self._attempt, loop.seat.seeds)
        if watcher is not None:
            watcher.seat = loop.seat
        if self._stopped:
            loop.stop()
        loop.run()

    def _hangs(self, what: str, end: Callable[[BaseException | None], None]) -> None:
        """Its thread will not come back, and no process can go on without the worlds that are in it."""
        end(HostError(f"{self._spec.seat}: {what}, and its process was ended"))
        time.sleep(LAST_WORDS_S)
        os._exit(1)

    def _end(self, error: BaseException | None) -> None:
        assert self._ended is not None
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
            return
        self._error = f"{type(error).__name__}: {error}"
        self._ended.set_exception(error)


def host_name(seat: str) -> str:
    return f"swarm-host-{seat}"


def start_host(node_id: str, spec: HostSpec, attempt: int, *, state: HostState | None = None) -> Any:
    """The actor of a seat on this node (Ray's id), which ends what there is of an earlier attempt.

    It does nothing before `run` is called. `state` is where the seat goes on from. Raises BootstrapError if an earlier
    attempt does not end.
    """
    end_host(spec.seat)
    return start_actor(HostActor, host_name(spec.seat), node_id, spec, attempt, state, restarts=0)


def end_host(seat: str) -> None:
    """End what there is of a seat. Raises BootstrapError if it does not end."""
    end_actor(host_name(seat))


def host_snapshots(seats: Sequence[str], version: int, timeout_s: float) -> dict[str, HostState]:
    """For each seat that answers in time, its state at the begin of its first fragment of this version or a newer one.

    Waits for seats that have not begun it yet.
    """
    import ray

    calls: dict[Any, str] = {}
    for seat in seats:
        try:
            calls[get_actor(host_name(seat)).snapshot.remote(version, timeout_s)] = seat
        except lost_errors():
            continue
    done, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s + 1) if calls else ([], [])
    found: dict[str, HostState] = {}
    for call in done:
        try:
            state = ray.get(call)
        except lost_errors():
            continue
        if state is not None:
            found[calls[call]] = state
    return found


def _one_thread(backend: str) -> None:
    """A host has one core; the threads of many hosts would get into each other's way."""
    os.environ["OMP_NUM_THREADS"] = "1"
    if backend == "torch":
        import torch

        torch.set_num_threads(1)
