"""Ray actors of the parameter server: two servers, and the book that says which of them is primary.

Methods are coroutines, so that one who waits holds up nobody.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcjet.config.swarm.weights import WeightsConfig
from hpcjet.swarm.actors import get_actor, local_copy, lost_errors
from hpcjet.swarm.weights.lease import LeaseBook
from hpcjet.swarm.weights.server import NotPrimary, Published, ServerState

BOOK = "swarm-lease-book"
TICK = 3
"""A server asks for its lease so many times in one."""
AGAIN_S = 0.2
"""And so often while the other one, which was primary, is away."""


class BookActor:
    """The lease book. On the head's node: without that there is no run."""

    def __init__(self, lease_s: float) -> None:
        # One that Ray started again knows nothing of the leases that the one before it gave.
        self._book = LeaseBook(lease_s, now=time.monotonic(), epoch=int(time.time()), anew=_restarted())

    async def ask(self, server: str, epoch: int, version: int, restarted: str = "") -> int | None:
        """See `LeaseBook.ask`; `server` names the process, `restarted` the actor of which it is not the first one."""
        now = time.monotonic()
        if restarted:
            self._book.died(f"{restarted}/", server, now=now)
        return self._book.ask(server, epoch=epoch, version=version, now=now)


class ServerActor:
    """One server; `other` is the one that it follows while it is not primary."""

    def __init__(self, name: str, other: str, config: WeightsConfig) -> None:
        self._name, self._other, self._config = name, other, config
        # With Ray's number of the actor: one of the same name on another node need not be the only one that lives.
        actor = f"{name}/{_actor_id()}"
        self._state = ServerState(f"{actor}/{secrets.token_hex(4)}", keep=config.keep)
        self._news, self._hurry = asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._restarted = actor if _restarted() else ""
        if self._restarted:
            self._first = asyncio.ensure_future(self.start())  # who was primary waits for its word

    async def start(self) -> None:
        """Begin to ask for the lease and to follow; once."""
        if not self._tasks:
            self._tasks = [asyncio.ensure_future(self._renew()), asyncio.ensure_future(self._follow())]

    async def publish(self, version: int, made: str, weights: Sequence[Any]) -> int:
        """Take a version, with a list of one reference to its weights and their digest; its epoch. Raises NotPrimary.

        The server keeps a copy of its own, which does not end with the process of the learner.
        """
        await self.start()
        self._check()
        kept = await local_copy(weights[0])
        published = self._state.publish(version, made, [kept], now=time.monotonic())
        self._tell()
        return published.epoch

    async def newer_than(self, have: Published | None, epoch: int, wait_s: float) -> Published | None:
        """What is newer, after at most `wait_s`; None if nothing is. Raises NotPrimary."""
        await self.start()
        deadline = time.monotonic() + wait_s
        while (found := self._state.newer_than(have, epoch, now=time.monotonic())) is None:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            await self._told(min(left, self._config.lease_s / TICK))
        return found

    async def copy_for(self, version: int, made: str, wait_s: float) -> Published | None:
        """What a standby lacks. Answered by a primary only."""
        have = Published(version, 0, made, None) if version >= 0 else None
        return await self.newer_than(have, 0, wait_s)

    async def status(self) -> dict[str, Any]:
        state = self._state
        primary = state.is_primary(time.monotonic())
        return {"name": self._name, "primary": primary, "epoch": state.epoch, "version": state.version,
                "kept": len(state.history)}  # fmt: skip

    def _check(self) -> None:
        self._state.newer_than(None, 0, now=time.monotonic())

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _told(self, wait_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._news.wait(), wait_s)

    async def _renew(self) -> None:
        lease_s, state = self._config.lease_s, self._state
        while True:
            asked_at = time.monotonic()
            with suppress(*lost_errors()):  # the lease goes on to its end, and the book is asked again
                ask = get_actor(BOOK).ask.remote(state.name, state.epoch, state.version, self._restarted)
                state.granted(await asyncio.wait_for(ask, lease_s), asked_at=asked_at, seconds=lease_s)
            await self._pause()

    async def _pause(self) -> None:
        """Until the lease is to be asked for again."""
        tick_s = self._config.lease_s / TICK
        if self._state.is_primary(time.monotonic()):
            self._hurry.clear()
        if self._hurry.is_set():
            await asyncio.sleep(min(AGAIN_S, tick_s))
            return
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), tick_s)

    async def _follow(self) -> None:
        lease_s, state = self._config.lease_s, self._state
        while True:
            if state.is_primary(time.monotonic()):
                await asyncio.sleep(lease_s / TICK)
                continue
            newest = state.newest
            have = (-1, "") if newest is None else (newest.version, newest.digest)
            try:
                call = get_actor(self._other).copy_for.remote(*have, lease_s)
                found = await asyncio.wait_for(call, 3 * lease_s)
                self._hurry.clear()
                if found is not None:
                    state.follow(replace(found, weights=[await local_copy(found.weights[0])]))
                    self._tell()
            except NotPrimary:
                await asyncio.sleep(min(AGAIN_S, lease_s / TICK))
            except lost_errors():
                self._hurry.set()
                await asyncio.sleep(min(AGAIN_S, lease_s / TICK))


def _restarted() -> bool:
    import ray

    return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def _actor_id() -> str:
    import ray

    return str(ray.get_runtime_context().get_actor_id())
