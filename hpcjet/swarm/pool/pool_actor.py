"""A node's pool as a Ray actor."""

import asyncio
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from hpcjet.config.swarm.compression import Compression
from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.swarm.actors import ActorGone, get_actor, lost_errors
from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.pool.compression import compress
from hpcjet.swarm.pool.entry import Entry, Key, nbytes_of
from hpcjet.swarm.pool.index_actor import INDEX
from hpcjet.swarm.pool.leave import Leave, Refusal, Wish
from hpcjet.swarm.pool.news import News
from hpcjet.swarm.pool.node_pool import NodePool, PoolFull
from hpcjet.swarm.pool.pace import Pace
from hpcjet.swarm.pool.together import Together
from hpcjet.swarm.pool.verdict import Verdict

AGAIN_S = 0.2
JOIN_S = 60


class PoolActor:
    """A node's pool. What executors hand in lies in this node's object store, and is read where it lies.

    It joins the index by itself whenever it, or the index, was started (again).
    """

    def __init__(self, name: str, node: str, config: PoolConfig) -> None:
        self._pool = NodePool(f"{name}/{secrets.token_hex(4)}", config.node_bytes, config.when_full)
        self._node, self._config = node, config
        self._news = News()
        self._pace = Pace()
        self._offers = Together(self._ask_insert, self._pace.pause_s)
        self._wishes = Together(self._ask_begin, self._pace.pause_s)
        self._life = ""
        self._joined = asyncio.Event()
        self._again: set[asyncio.Future[Verdict]] = set()
        self._member = asyncio.ensure_future(self._stay_joined())
        self.produced = self.produced_bytes = self.fetched = self.fetched_bytes = 0

    async def start(self) -> str:
        """The name of this pool in keys, once it has joined the index; then executors may insert. Raises ActorGone."""
        try:
            await asyncio.wait_for(self._joined.wait(), JOIN_S)
        except asyncio.TimeoutError:
            raise ActorGone(f"pool {self._pool.name} found no {INDEX} in {JOIN_S} s: it is started first") from None
        return self._pool.name

    async def begin(
        self, source: str, attempt: int, node: str, n: int, ticket: int, wait_s: float
    ) -> Leave | Refusal | None:
        """See `IndexActor.begin`. Asked here, the seats of a node need one call of the index and not one each."""
        answer = await self._wishes.ask((self._life, Wish(source, attempt, node, n, ticket)), wait_s)
        return answer if isinstance(answer, Leave) or answer is Refusal.over else None

    async def insert(self, entry: Entry, fragment: Fragment) -> Verdict:
        """Returns when the index has decided. Raises PoolFull if that, or room, did not come in time."""
        timeout_s = self._config.insert_timeout_s
        deadline = time.monotonic() + timeout_s
        await self._news.wait(lambda: self._pool.has_room(entry.nbytes), timeout_s)
        number, gone = self._pool.put((entry, fragment), entry.nbytes)
        self._pace.inserted(entry.source, entry.first_step, time.monotonic())
        self.produced += 1
        self.produced_bytes += entry.nbytes
        if gone:
            with suppress(*lost_errors()):
                get_actor(INDEX).evicted.remote(self._pool.name, gone)
        verdict = await self._offer(number, entry, deadline - time.monotonic())
        if verdict is Verdict.wait:
            raise PoolFull(
                f"pool {self._pool.name}: the index admitted nothing for {timeout_s:g} s "
                "(pool.insert_timeout_s); see whether the learner still learns"
            )
        return verdict

    async def fetch(self, pool: str, numbers: Sequence[int], kind: Compression) -> list[Fragment | None]:
        """One answer for all; None for what is not there."""
        held = self._pool.get(numbers) if pool == self._pool.name else [None] * len(numbers)
        found = [None if each is None else compress(each[1], kind) for each in held]
        self.fetched += sum(each is not None for each in found)
        self.fetched_bytes += sum(nbytes_of(each) for each in found if each is not None)
        return found

    async def free(self, pool: str, numbers: Sequence[int]) -> None:
        if pool == self._pool.name:
            self._pool.remove(numbers)
            self._news.tell()

    async def status(self) -> dict[str, Any]:
        """What is here, and what was counted since this pool began; fetched bytes are those that were sent."""
        pool = self._pool
        return {"name": pool.name, "node": self._node, "fragments": len(pool), "nbytes": pool.nbytes,
                "fill": pool.fill, "evicted": pool.evicted, "index_calls": self._offers.calls + self._wishes.calls,
                "produced": self.produced, "produced_bytes": self.produced_bytes,
                "fetched": self.fetched, "fetched_bytes": self.fetched_bytes}  # fmt: skip

    async def _offer(self, number: int, entry: Entry, timeout_s: float) -> Verdict:
        verdict = await self._offers.ask((Key(self._pool.name, number), entry), timeout_s) or Verdict.wait
        if verdict is not Verdict.admitted:
            await self.free(self._pool.name, [number])
        return verdict

    async def _ask_insert(self, items: Sequence[tuple[Key, Entry]], wait_s: float) -> Sequence[Verdict | None]:
        here = [item for item in items if item[0].number in self._pool]
        verdicts = await self._index("insert", self._life, here, wait_s) if here else []
        answers = dict(zip((key for key, _ in here), verdicts or [Verdict.wait] * len(here), strict=True))
        # What is here no more was freed before its answer came: an index had taken it in, and is done with it.
        found = [answers.get(key, Verdict.admitted) for key, _ in items]
        return [None if verdict is Verdict.wait else verdict for verdict in found]

    async def _ask_begin(self, asked: Sequence[tuple[str, Wish]], wait_s: float) -> Sequence[Leave | Refusal | None]:
        life = self._life
        wishes = [wish for under, wish in asked if under == life]
        answers = iter(await self._index("begin_all", life, wishes, wait_s) or [None] * len(wishes) if wishes else [])
        return [next(answers) if under == life else Refusal.again for under, _ in asked]

    async def _index(self, method: str, *args: Any) -> Any:
        """None where the index is new, or away; meanwhile this pool joins."""
        await self._joined.wait()
        with suppress(*lost_errors()):
            if (answer := await getattr(get_actor(INDEX), method).remote(*args)) is not None:
                return answer
        await asyncio.sleep(AGAIN_S)
        return None

    async def _stay_joined(self) -> None:
        while True:
            with suppress(*lost_errors()):
                self._life = await get_actor(INDEX).join.remote(self._pool.name, self._node)
                self._offer_again()
                self._joined.set()
                await get_actor(INDEX).outlive.remote(self._life)
            self._joined.clear()
            await asyncio.sleep(AGAIN_S)

    def _offer_again(self) -> None:
        """What an index before had admitted."""
        on_their_way = {key for key, _ in self._offers.waiting}
        for number, (entry, _) in self._pool.items():
            if Key(self._pool.name, number) not in on_their_way:
                task = asyncio.ensure_future(self._offer(number, entry, self._config.insert_timeout_s))
                self._again.add(task)
                task.add_done_callback(self._again.discard)
