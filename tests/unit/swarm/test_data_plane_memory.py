"""Memory of the data plane stays flat over thousands of updates: index, pools, servers and caches, without Ray."""

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from hpcjet.config.swarm.pool import Order, PoolConfig, RateConfig, WhenFull
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.config.swarm.weights import CacheConfig
from hpcjet.swarm.pool import Entry, Index, Key, NodePool, Verdict
from hpcjet.swarm.weights.cache import PolicyCache
from hpcjet.swarm.weights.server import Published, ServerState

SEATS = 4
NEW_NODE_EACH = 250
"""Updates after which a node dies and comes back with another pool, and its seat with another attempt."""


class Swarm:
    """Two nodes of two seats, a server and its standby. Seats act for two policies, of which one is learned."""

    def __init__(self, config: PoolConfig, staleness: StalenessConfig) -> None:
        self.seats = [f"seat-{number}" for number in range(SEATS)]
        self.index = Index(config, staleness, seed=0, seats=self.seats)
        self.config, self.starts = config, 0
        self.pools: dict[str, NodePool] = {}
        for node in ("n0", "n1"):
            self.start(node)
        self.servers = [ServerState("a"), ServerState("b")]
        self.servers[0].granted(1, asked_at=0.0, seconds=1e9)
        self.caches = [PolicyCache(node, self._pull(), CacheConfig()) for node in self.pools]
        self.rng = np.random.default_rng(0)

    def start(self, node: str) -> None:
        self.starts += 1
        self.index.node_lost(node)
        self.pools[node] = NodePool(f"{node}/{self.starts}", 4000, self.config.when_full)
        self.index.join(self.pools[node].name, node)

    def act(self, version: int) -> None:
        for number, seat in enumerate(self.seats):
            node = f"n{number % 2}"
            if not self.index.begin(seat, self.starts, node, 2, ticket=version):
                continue
            for policy in ("learned", "frozen"):
                pool = self.pools[node]
                made, gone = pool.put(np.zeros(4), 100)
                self.index.evicted(pool.name, gone)
                entry = Entry(
                    source=seat, attempt=self.starts, node=node, first_world=0, worlds=1, policy=policy, group="g",
                    first_step=version, steps=1, agent_steps=1, version=version, nbytes=100,
                )  # fmt: skip
                if self.index.insert(Key(pool.name, made), entry) is not Verdict.admitted:
                    pool.remove([made])

    async def update(self, version: int) -> bool:
        self.act(version)
        sample = self.index.sample("learned", SEATS)
        if sample is not None:
            self.index.update_priorities([each.key for each in sample.chosen], list(self.rng.random(SEATS)))
            self.index.done(sample.number)
        self.index.advance(version + 1)
        for name, numbers in self.index.take_freed().items():
            if (pool := self.pools[name.partition("/")[0]]).name == name:
                pool.remove(numbers)
        published = self.servers[0].publish(version + 1, f"{version}", [np.zeros(4)], now=0.0)
        self.servers[1].follow(published)
        for cache in self.caches:
            for seat in self.seats:
                await cache.weights(seat, version, at_least=version + 1, timeout_s=60)
        return sample is not None

    def _pull(self) -> Callable[[Published | None, float], Awaitable[Published | None]]:
        async def pull(have: Published | None, wait_s: float) -> Published | None:
            return self.servers[0].newer_than(have, 0, now=0.0)

        return pull


SYNC = (PoolConfig(), StalenessConfig(fragments=2 * SEATS))
REPLAY = (
    PoolConfig(order=Order.prioritised, max_times=0, when_full=WhenFull.evict, capacity=60, ahead=-1,
               rate=RateConfig(min_size=8)),
    StalenessConfig(StalenessMode.hybrid, eta=3, fragments=2 * SEATS),
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "updates"), [(SYNC, 10_000), (REPLAY, 2500)], ids=["sync", "replay"])
def test_memory_is_flat(settings: tuple[PoolConfig, StalenessConfig], updates: int) -> None:  # G2, G3
    async def life() -> list[int]:
        swarm, blocks, learned = Swarm(*settings), [], 0
        for version in range(updates):
            if version % NEW_NODE_EACH == 0:
                swarm.start("n1")
            learned += await swarm.update(version)
            if (version + 1) % (updates // 10) == 0:
                gc.collect()
                blocks.append(sys.getallocatedblocks())
        assert learned > 0.9 * updates
        return blocks

    blocks = asyncio.run(life())
    assert max(blocks[2:]) - blocks[1] < updates / 25, blocks  # not one block in twenty updates
