"""The index as a Ray actor."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.errors import HpcjetError
from hpcjet.swarm.actors import get_actor, lost_errors
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.index import Index
from hpcjet.swarm.pool.index_state import load_state, state_of
from hpcjet.swarm.pool.leave import Leave, Refusal, Wish
from hpcjet.swarm.pool.news import News
from hpcjet.swarm.pool.sample import Sample
from hpcjet.swarm.pool.verdict import Verdict

INDEX = "swarm-index"
"""The actor's name."""


class IndexIsNew(HpcjetError):
    """The index was started (again) and knows of no learner: call `recover`."""


class IndexActor:
    """The index. Nothing is begun, admitted or sampled before a learner has said by `recover` at which version it is.

    One that Ray started again is empty; its pools see that by `life`, and offer all that they hold.
    """

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, seed: int, seats: Sequence[str] = ()) -> None:
        self._index = Index(config, staleness, seed=seed, seats=seats)
        self._life, self._ready = secrets.token_hex(4), False
        # Apart, since thousands may wait to begin while others come and go.
        self._begins, self._inserts, self._samples = News(), News(), News()
        self._calls: Counter[str] = Counter()

    async def recover(
        self, version: int, state: Mapping[str, Any] | None = None, used: Mapping[Key, int] | None = None
    ) -> int:
        """A learner begins, or goes on, at this version, with a checkpoint's metadata if given; entries lost.

        `used` says of fragments that pools may still hold how often they were learned from. This and the metadata are
        for an index that was started (again). One that lived on knows better.
        """
        self._calls["recover"] += 1
        lost = 0
        if not self._ready:
            self._index.used = dict(used or {})
            lost = 0 if state is None else load_state(self._index, state)
        self._index.recover(version)
        self._ready = True
        self._all_changed()
        return lost

    async def join(self, pool: str, node: str) -> str:
        """This index's life."""
        self._calls["join"] += 1
        self._index.join(pool, node)
        self._all_changed()
        return self._life

    async def outlive(self, life: str) -> None:
        """Returns, or breaks, when this life of the index is over: so pools learn of it at once."""
        if life == self._life:
            await asyncio.Event().wait()

    async def expect(self, sources: Sequence[str]) -> None:
        """These are the seats from now on, and kept in step."""
        self._calls["expect"] += 1
        self._index.expect(sources)
        self._begins.tell()

    async def node_lost(self, node: str) -> int:
        self._calls["node_lost"] += 1
        lost = self._index.node_lost(node)
        self._all_changed()
        return lost

    async def source_lost(self, source: str, attempt: int | None = None) -> int:
        self._calls["source_lost"] += 1
        lost = self._index.source_lost(source, attempt)
        self._all_changed()
        return lost

    async def begin(
        self, source: str, attempt: int, node: str, n: int, ticket: int, wait_s: float
    ) -> Leave | Refusal | None:
        """None: not within this time; ask again."""
        return (await self.begin_all(self._life, [Wish(source, attempt, node, n, ticket)], wait_s) or [None])[0]

    async def begin_all(self, life: str, wishes: Sequence[Wish], wait_s: float) -> list[Leave | Refusal | None] | None:
        """Answers once one of them may begin, or never may; None for those that may not yet.

        None for all if they were asked under another life.
        """
        self._calls["begin"] += 1
        if life != self._life:
            return None
        found: list[Leave | Refusal | None] = [None] * len(wishes)
        least = self._index.pacing.least
        await self._begins.wait(lambda: self._ready and self._may_begin(wishes, found), wait_s)
        if self._index.pacing.least != least:
            self._begins.tell()
        return found

    async def insert(self, life: str, items: Sequence[tuple[Key, Entry]], wait_s: float) -> list[Verdict] | None:
        """None for a pool that has not joined this life. Answers once there is a verdict on one that is not `wait`."""
        self._calls["insert"] += 1
        if life != self._life:
            return None
        found = [Verdict.wait] * len(items)
        await self._inserts.wait(lambda: self._ready and self._try(items, found), wait_s)
        return found

    async def evicted(self, pool: str, numbers: Sequence[int]) -> None:
        self._calls["evicted"] += 1
        self._index.evicted(pool, numbers)
        self._all_changed()

    async def sample(self, policy: str, n: int, wait_s: float) -> Sample | None:
        """None: not within this time; ask again. Raises IndexIsNew."""
        self._calls["sample"] += 1
        self._check()
        found = await self._samples.wait(lambda: self._index.sample(policy, n), wait_s)
        if found is not None:
            self._inserts.tell()
        return found

    async def done(self, number: int, missing: Sequence[Key]) -> None:
        self._calls["done"] += 1
        self._index.done(number, missing)
        self._free()
        if missing:
            self._all_changed()

    async def update_priorities(self, keys: Sequence[Key], priorities: Sequence[float]) -> None:
        self._calls["update_priorities"] += 1
        self._index.update_priorities(keys, priorities)
        self._samples.tell()

    async def advance(self, version: int) -> None:
        """To be called before the version is published. Raises IndexIsNew."""
        self._calls["advance"] += 1
        self._check()
        self._index.advance(version)
        self._all_changed()

    async def state_dict(self) -> dict[str, Any]:
        return state_of(self._index)

    async def status(self) -> dict[str, Any]:
        """What is here, and what was counted since this life began; by node under `nodes`."""
        index = self._index
        counts, nodes = index.counts, {name: asdict(each) for name, each in index.counts.nodes.items()}
        return {"entries": len(index), "version": index.budget.version, "ready": self._ready, "life": self._life,
                "running": dict(index.budget.running), "rounds": index.pacing.rounds(),
                "losses": asdict(counts.losses), "over_quota": counts.over_quota,
                "inserted": sum(each.inserted for each in counts.nodes.values()),
                "sampled": sum(each.sampled for each in counts.nodes.values()),
                "calls": dict(self._calls), "nodes": nodes}  # fmt: skip

    def _check(self) -> None:
        if not self._ready:
            raise IndexIsNew(f"index {self._life} was started (again) and knows of no learner: call recover")

    def _may_begin(self, wishes: Sequence[Wish], found: list[Leave | Refusal | None]) -> bool:
        found[:] = [self._begin(wish) for wish in wishes]
        return any(found)

    def _begin(self, wish: Wish) -> Leave | Refusal | None:
        if self._index.is_over(wish.source, wish.attempt):
            return Refusal.over
        if not self._index.begin(*wish[:4], ticket=wish.ticket):
            return None
        budget = self._index.budget
        return Leave(budget.version, budget.freshness.oldest)

    def _try(self, items: Sequence[tuple[Key, Entry]], found: list[Verdict]) -> bool:
        found[:] = [self._index.insert(key, entry) for key, entry in items]
        if Verdict.admitted in found:
            self._samples.tell()
        if Verdict.stale in found or Verdict.late in found:
            self._begins.tell()
        self._free()
        return any(verdict is not Verdict.wait for verdict in found)

    def _all_changed(self) -> None:
        self._free()
        for news in (self._inserts, self._samples, self._begins):  # what is made counts before more is begun
            news.tell()

    def _free(self) -> None:
        for pool, numbers in self._index.take_freed().items():
            with suppress(*lost_errors()):
                get_actor(pool.partition("/")[0]).free.remote(pool, numbers)
