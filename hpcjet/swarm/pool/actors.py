"""Ray actors of the index and of the node pools, and what executors and learners call."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.errors import HpcjetError
from hpcjet.swarm.actors import get_actor, lost_errors, start_actor
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool.compression import compress
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.pool.fetching import Batch, join
from hpcjet.swarm.pool.index import Index, Verdict
from hpcjet.swarm.pool.node_pool import NodePool, PoolFull
from hpcjet.swarm.pool.sample import Sample

INDEX = "swarm-index"
AGAIN_S = 0.2
Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Leave:
    """A source may begin."""

    version: int
    """Of the learner."""
    at_least: int
    """The oldest version that it may act with."""


class IndexIsNew(HpcjetError):
    """The index was started (again) and knows of no learner: call `recover`."""


class News:
    """Waits until a question has an answer, asked again each time that something changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait(self, ask: Callable[[], Answer], wait_s: float) -> Answer:
        """The first answer that is true, or the last one after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while not (answer := ask()) and (left := deadline - time.monotonic()) > 0:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return answer


class IndexActor:
    """The index. Nothing is begun, admitted or sampled before a learner has said by `recover` at which version it is.

    One that Ray started again is empty; its pools see that by `life` and offer all that they hold.
    """

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, seed: int, seats: Sequence[str] = ()) -> None:
        self._index = Index(config, staleness, seed=seed, seats=seats)
        self._news, self._life, self._ready = News(), secrets.token_hex(4), False

    async def recover(self, version: int, state: Mapping[str, Any] | None = None) -> int:
        """A learner begins, or goes on, at this version, with a checkpoint's metadata if given; entries lost."""
        lost = 0 if state is None else self._index.load_state_dict(state)
        self._index.recover(version)
        self._ready = True
        self._changed()
        return lost

    async def join(self, pool: str, node: str) -> str:
        """This index's life."""
        self._index.join(pool, node)
        self._changed()
        return self._life

    async def expect(self, sources: Sequence[str]) -> None:
        """These are the seats from now on, and kept in step."""
        self._and_tell(self._index.expect(sources))  # type: ignore[func-returns-value]

    async def node_lost(self, node: str) -> int:
        return self._and_tell(self._index.node_lost(node))

    async def source_lost(self, source: str) -> int:
        return self._and_tell(self._index.source_lost(source))

    async def begin(self, source: str, attempt: int, node: str, n: int, ticket: int, wait_s: float) -> Leave | None:
        """None: not within this time; ask again."""
        index = self._index
        may = await self._news.wait(
            lambda: self._ready and index.begin(source, attempt, node, n, ticket=ticket), wait_s
        )
        if not may:
            return None
        self._changed()
        return Leave(index.budget.version, index.budget.freshness.oldest)

    async def insert(self, life: str, items: Sequence[tuple[Key, Entry]], wait_s: float) -> list[Verdict] | None:
        """None for a pool that has not joined this life. Those that have to wait do so, at most so long."""
        if life != self._life:
            return None
        deadline = time.monotonic() + wait_s
        verdicts = []
        for key, entry in items:
            found: list[Verdict] = []
            await self._news.wait(lambda k=key, e=entry, f=found: self._ready and self._try(k, e, f),  # type: ignore[misc]
                                  deadline - time.monotonic())  # fmt: skip
            verdicts.append(found[-1] if found else Verdict.wait)
            self._changed()
        return verdicts

    async def evicted(self, pool: str, numbers: Sequence[int]) -> None:
        self._index.evicted(pool, numbers)

    async def sample(self, policy: str, n: int, wait_s: float) -> Sample | None:
        """None: not within this time; ask again. Raises IndexIsNew."""
        self._check()
        return self._and_tell(await self._news.wait(lambda: self._index.sample(policy, n), wait_s))

    async def done(self, number: int, missing: Sequence[Key]) -> None:
        self._and_tell(self._index.done(number, missing))  # type: ignore[func-returns-value]

    async def update_priorities(self, keys: Sequence[Key], priorities: Sequence[float]) -> None:
        self._index.update_priorities(keys, priorities)

    async def advance(self, version: int) -> None:
        """To be called before the version is published. Raises IndexIsNew."""
        self._check()
        self._and_tell(self._index.advance(version))  # type: ignore[func-returns-value]

    async def state_dict(self) -> dict[str, Any]:
        return self._index.state_dict()

    async def status(self) -> dict[str, Any]:
        index = self._index
        return {"entries": len(index), "version": index.budget.version, "ready": self._ready,
                "running": dict(index.budget.running),
                "losses": asdict(index.losses), "over_quota": index.over_quota}  # fmt: skip

    def _check(self) -> None:
        if not self._ready:
            raise IndexIsNew(f"index {self._life} was started (again) and knows of no learner: call recover")

    def _try(self, key: Key, entry: Entry, found: list[Verdict]) -> bool:
        found.append(self._index.insert(key, entry))
        return found[-1] is not Verdict.wait

    def _and_tell(self, answer: Answer) -> Answer:
        self._changed()
        return answer

    def _changed(self) -> None:
        for pool, numbers in self._index.take_freed().items():
            with suppress(*lost_errors()):
                get_actor(pool.partition("/")[0]).free.remote(pool, numbers)
        self._news.tell()


class PoolActor:
    """A node's pool. What executors hand in lies in this node's object store, and is read where it lies."""

    def __init__(self, name: str, node: str, config: PoolConfig) -> None:
        self._pool = NodePool(f"{name}/{secrets.token_hex(4)}", config.node_bytes, config.when_full)
        self._node, self._config = node, config
        self._news, self._life = News(), ""
        self._joining = asyncio.Lock()

    async def start(self) -> str:
        """Join the index; the name of this pool in keys. Once it is back, executors may insert."""
        await self._join("")
        return self._pool.name

    async def insert(self, entry: Entry, fragment: Fragment) -> Verdict:
        """Returns when the index has decided. Raises PoolFull if that, or room, did not come in time."""
        deadline = time.monotonic() + self._config.insert_timeout_s
        await self._news.wait(lambda: self._pool.has_room(entry.nbytes), self._config.insert_timeout_s)
        number, gone = self._pool.put((entry, fragment), entry.nbytes)
        if gone:
            with suppress(*lost_errors()):
                get_actor(INDEX).evicted.remote(self._pool.name, gone)
        verdict = await self._offer([(Key(self._pool.name, number), entry)], deadline)
        if verdict is not Verdict.admitted:
            await self.free(self._pool.name, [number])
        if verdict is Verdict.wait:
            raise PoolFull(
                f"pool {self._pool.name}: the index admitted nothing for {self._config.insert_timeout_s:g} s "
                "(pool.insert_timeout_s); see whether the learner still learns"
            )
        return verdict

    async def fetch(self, pool: str, numbers: Sequence[int], kind: Compression) -> list[Fragment | None]:
        """One answer for all; None for what is not there."""
        held = self._pool.get(numbers) if pool == self._pool.name else [None] * len(numbers)
        return [None if each is None else compress(each[1], kind) for each in held]

    async def free(self, pool: str, numbers: Sequence[int]) -> None:
        if pool == self._pool.name:
            self._pool.remove(numbers)
            self._news.tell()

    async def status(self) -> dict[str, Any]:
        pool = self._pool
        return {"name": pool.name, "fragments": len(pool), "nbytes": pool.nbytes, "fill": pool.fill,
                "evicted": pool.evicted}  # fmt: skip

    async def _offer(self, items: list[tuple[Key, Entry]], deadline: float) -> Verdict:
        """The verdict on the last one; goes on when the index is started again."""
        while (left := deadline - time.monotonic()) > 0:
            life = self._life
            try:
                verdicts = await get_actor(INDEX).insert.remote(life, items, left)
                if verdicts:
                    last: Verdict = verdicts[-1]
                    return last
                await self._join(life)
            except lost_errors():
                await asyncio.sleep(AGAIN_S)
        return Verdict.wait

    async def _join(self, known: str) -> None:
        """Join the index that there is, and offer it what the one before it had admitted."""
        async with self._joining:
            if self._life != known:
                return
            life = await get_actor(INDEX).join.remote(self._pool.name, self._node)
            if known:
                held = [(Key(self._pool.name, number), each[0]) for number, each in self._pool.items()]
                verdicts = await get_actor(INDEX).insert.remote(life, held, AGAIN_S)
                refused = [key.number for (key, _), verdict in zip(held, verdicts or [], strict=False)
                           if verdict in (Verdict.stale, Verdict.late)]  # fmt: skip
                await self.free(self._pool.name, refused)
            self._life = life


def start_index(
    head: str, config: PoolConfig, staleness: StalenessConfig, *, seed: int, seats: Sequence[str] = ()
) -> Any:
    """On this node (Ray's id); everybody finds it by its name. `staleness` is a resolved one.

    `seats` are the sources that are kept in step, also in an index that Ray started again; `expect` changes them.
    """
    return start_actor(IndexActor, INDEX, head, config, staleness, seed, list(seats))


def start_pool(node: str, name: str, node_name: str, config: PoolConfig) -> Any:
    """A pool on this node (Ray's id), found by its name; `node_name` is what quotas and losses count by.

    Federated: one on each node. Central: one, on the learner's node. Executors insert into the one they are given.
    """
    import ray

    made = start_actor(PoolActor, name, node, name, node_name, config)
    ray.get(made.start.remote())
    return made


def fetch(sample: Sample, kind: Compression, *, timeout_s: float = 60.0) -> Batch:
    """What was chosen: one request to each pool, all at once. What a pool that does not answer had is missing.

    Tell the index by `done`.
    """
    import ray

    calls = {}
    for pool, numbers in sample.by_pool().items():
        with suppress(*lost_errors()):
            calls[pool] = get_actor(pool.partition("/")[0]).fetch.remote(pool, numbers, kind)
    ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
    answers = {}
    for pool, call in calls.items():
        if call in ready:
            with suppress(*lost_errors()):
                answers[pool] = ray.get(call)
    return join(sample, answers)
