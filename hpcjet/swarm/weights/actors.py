"""The Ray actor of the caches, and what a driver, executors and learners call to have weights.

All actors are detached: they outlive whoever made them, and end with the run's Ray. Methods are coroutines, so that one
who waits holds up nobody.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig
from hpcjet.swarm.actors import get_actor, local_copy, lost_errors, start_actor
from hpcjet.swarm.weights.cache import Delivery, PolicyCache, ServerAway
from hpcjet.swarm.weights.digest import Weights, digest
from hpcjet.swarm.weights.server import NotPrimary, Published
from hpcjet.swarm.weights.server_actor import BOOK, BookActor, ServerActor

__all__ = ["BOOK", "CacheActor", "Publisher", "ServerActor", "load", "start_cache", "start_servers"]


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
