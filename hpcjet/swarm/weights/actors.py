"""Ray actors of the parameter server and of the caches, and what a driver calls to have them.

All are detached: they outlive whoever made them, and end with the run's Ray. Methods are coroutines, so that one who
waits holds up nobody.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import get_actor, local_copy, lost_errors, start_actor
from hpcjet.swarm.weights.cache import Delivery, PolicyCache, ServerAway
from hpcjet.swarm.weights.digest import Weights, digest
from hpcjet.swarm.weights.lease import LeaseBook
from hpcjet.swarm.weights.server import NotPrimary, Published, ServerState

BOOK = "swarm-lease-book"
TICK = 3
"""A server asks for its lease so many times in one."""


class BookActor:
    """The lease book. On the head's node: without that there is no run."""

    def __init__(self, lease_s: float) -> None:
        # One that Ray started again knows nothing of the leases that the one before it gave.
        self._book = LeaseBook(lease_s, now=time.monotonic(), epoch=int(time.time()), anew=_restarted())

    async def ask(self, server: str, epoch: int, version: int) -> int | None:
        """See `LeaseBook.ask`; `server` names the process."""
        return self._book.ask(server, epoch=epoch, version=version, now=time.monotonic())


class ServerActor:
    """One server; `other` is the one that it follows while it is not primary."""

    def __init__(self, name: str, other: str, config: WeightsConfig) -> None:
        self._name, self._other, self._config = name, other, config
        self._state = ServerState(f"{name}/{secrets.token_hex(4)}", keep=config.keep)
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

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
                ask = get_actor(BOOK).ask.remote(state.name, state.epoch, state.version)
                state.granted(await asyncio.wait_for(ask, lease_s), asked_at=asked_at, seconds=lease_s)
            await asyncio.sleep(lease_s / TICK)

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
                if found is not None:
                    state.follow(replace(found, weights=[await local_copy(found.weights[0])]))
                    self._tell()
            except NotPrimary:
                await asyncio.sleep(lease_s / TICK)
            except lost_errors():
                await asyncio.sleep(lease_s / TICK)


class CacheActor:
    """The cache of a node. Executors call `weights`."""

    def __init__(self, node: str, servers: Sequence[str], config: CacheConfig) -> None:
        self._servers = Servers(servers)
        self.cache = PolicyCache(node, self._pull, config)

    async def weights(self, executor: str, version: int, made: str | None, at_least: int, timeout_s: float) -> Delivery:
        """See `PolicyCache.weights`; what comes is a list with a reference into this node's object store."""
        return await self.cache.weights(executor, version, digest=made, at_least=at_least, timeout_s=timeout_s)

    async def announce(self, version: int) -> None:
        """A push."""
        await self.cache.announce(version)

    async def forget(self, executor: str) -> None:
        self.cache.forget(executor)

    async def status(self, oldest: int = 0) -> dict[str, Any]:
        """What is known here; `laggards` act with less than `oldest`."""
        cache = self.cache
        return {"node": cache.node, "version": cache.version, "pulls": cache.pulls, "failures": cache.failures,
                "missed_pushes": cache.missed_pushes, "executors": cache.versions(), "wrong": dict(cache.wrong),
                "laggards": cache.laggards(oldest)}  # fmt: skip

    async def _pull(self, have: Published | None, wait_s: float) -> Published | None:
        bare = None if have is None else replace(have, weights=None)
        found: Published | None = await self._servers.call("newer_than", bare, self._servers.epoch, wait_s)
        if found is None:
            return None
        self._servers.epoch = max(self._servers.epoch, found.epoch)
        try:
            return replace(found, weights=[await local_copy(found.weights[0])])
        except lost_errors() as error:
            raise ServerAway(f"version {found.version} was lost on its way: {error}") from error


class Servers:
    """Finds the primary, and asks the other one when it is gone."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names, self.epoch, self._at = list(names), 0, 0

    async def call(self, method: str, *args: Any) -> Any:
        """Raises ServerAway if no server that can be reached is primary."""
        why: list[str] = []
        for _ in self.names:
            name = self.names[self._at]
            try:
                return await getattr(get_actor(name), method).remote(*args)
            except NotPrimary as error:
                why.append(str(error))
            except lost_errors() as error:
                why.append(f"{name}: {error}")
            self._at = (self._at + 1) % len(self.names)
        raise ServerAway(f"no parameter server is primary just now: {'; '.join(why)}")


class Publisher:
    """What a learner has of the parameter server."""

    def __init__(self, servers: Sequence[str], caches: Sequence[Any] = ()) -> None:
        self._servers, self.caches = Servers(servers), list(caches)

    def publish(self, version: int, weights: Weights, *, timeout_s: float = 60.0) -> int:
        """Returns the epoch once the primary has the weights. With caches, each is told and not waited for.

        Raises ServerAway when no server became primary in time.
        """
        import ray

        reference, made = ray.put(dict(weights)), digest(weights)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                epoch: int = asyncio.run(self._servers.call("publish", version, made, [reference]))
                break
            except ServerAway:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        for cache in self.caches:
            cache.announce.remote(version)
        return epoch


def start_servers(
    config: WeightsConfig,
    *,
    head: str,
    primary: str,
    standby: str,
    names: tuple[str, str] = ("swarm-ps-0", "swarm-ps-1"),
) -> tuple[str, str]:
    """Lease book and both servers, on these nodes (Ray's node ids); the names of the servers."""
    import ray

    start_actor(BookActor, BOOK, head, config.lease_s)
    made = [
        start_actor(ServerActor, name, node, name, other, config)
        for name, other, node in ((names[0], names[1], primary), (names[1], names[0], standby))
    ]
    for each in made:  # in this order: who asks first becomes primary
        ray.get(each.start.remote())
    return names


def start_cache(node: str, name: str, servers: Sequence[str], config: CacheConfig) -> Any:
    """The cache of a node (Ray's node id); executors find it by the name."""
    return start_actor(CacheActor, name, node, name, list(servers), config)


def load(policies: Mapping[str, Any], delivery: Delivery) -> None:
    """Give an executor's policies what its cache delivered: arrays are read where they lie, in shared memory."""
    if delivery.weights is None:
        return
    import ray

    for name, weights in ray.get(delivery.weights[0]).items():
        if name in policies:
            policies[name].load_weights(weights, delivery.version)


def _restarted() -> bool:
    import ray

    return bool(ray.get_runtime_context().was_current_actor_reconstructed)
