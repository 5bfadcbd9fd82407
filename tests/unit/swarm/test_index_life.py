"""Index and pool as actors, without Ray: attempts that are over, and an index that is started again."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.swarm.actors import ActorGone
from hpcjet.swarm.pool import Entry, Key, PoolConfig, Verdict, index_actor, pool_actor
from hpcjet.swarm.pool.index_actor import INDEX, IndexActor
from hpcjet.swarm.pool.leave import Leave, Refusal
from hpcjet.swarm.pool.pool_actor import PoolActor

SEATS = ["s0", "s1"]
SOON_S = 300


class Remote:
    """An actor that can die."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *args: asyncio.ensure_future(self._call(name, args)))

    async def _call(self, name: str, args: tuple[Any, ...]) -> Any:
        work, death = asyncio.ensure_future(getattr(self.actor, name)(*args)), asyncio.ensure_future(self.dead.wait())
        await asyncio.wait({work, death}, return_when=asyncio.FIRST_COMPLETED)
        death.cancel()
        if not work.done():
            work.cancel()
            raise ActorGone("it died")
        return work.result()


class Scene:
    """An index and one pool."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: dict[str, Remote] = {}
        for module in (index_actor, pool_actor):
            monkeypatch.setattr(module, "get_actor", self._get)
        monkeypatch.setattr(pool_actor, "AGAIN_S", 0.01)

    async def begin(self) -> None:
        await self.new_index()
        self.pool = PoolActor("pool", "n0", PoolConfig())
        self.there["pool"] = Remote(self.pool)
        await self.pool.start()

    async def new_index(self, used: dict[Key, int] | None = None) -> None:
        if INDEX in self.there:
            self.there[INDEX].dead.set()
        self.index = IndexActor(PoolConfig(), StalenessConfig(fragments=2), 0, SEATS)
        await self.index.recover(0, None, used)
        self.there[INDEX] = Remote(self.index)

    async def wish(self, source: str, attempt: int, ticket: int) -> Any:
        return await asyncio.wait_for(self.pool.begin(source, attempt, "n0", 1, ticket, 3600), SOON_S)

    async def insert(self, source: str, step: int) -> Verdict:
        entry = Entry(source, 0, "n0", 0, 1, "p", "g", step, 5, 5, 0, 10)
        return await asyncio.wait_for(self.pool.insert(entry, "payload"), SOON_S)  # type: ignore[arg-type]

    async def holds(self, number: int) -> None:
        while (await self.pool.status())["fragments"] != number:
            await asyncio.sleep(0.01)

    async def waits(self, number: int) -> None:
        while len(self.pool._wishes.waiting) < number:
            await asyncio.sleep(0.01)

    def _get(self, name: str) -> Remote:
        if name not in self.there:
            raise ActorGone(name)
        return self.there[name]


def play(scene: Scene, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def all_of_it() -> None:
        await scene.begin()
        await what()

    asyncio.run(all_of_it())


def test_an_attempt_that_is_over_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)

    async def run() -> None:
        assert await scene.wish("s0", 0, 0) == Leave(0, 0)
        waits = asyncio.ensure_future(scene.wish("s0", 0, 1))
        await scene.waits(1)
        assert await scene.index.source_lost("s0", 0) == 1
        assert await waits is Refusal.over
        assert await scene.wish("s0", 0, 2) is Refusal.over
        assert await scene.wish("s0", 1, 0) == Leave(0, 0)
        assert await scene.wish("s0", 0, 3) is Refusal.over

    play(scene, run)


def test_an_index_that_was_started_again_counts_nobody_who_does_not_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)

    async def run() -> None:
        for source in SEATS:
            assert await scene.wish(source, 0, 0) == Leave(0, 0)
        dead, alive = (asyncio.ensure_future(scene.wish(source, 0, 1)) for source in SEATS)
        await scene.waits(2)
        await scene.new_index()
        assert [await dead, await alive] == [None, None]  # asked under the other index: who is alive asks again
        assert await scene.wish("s1", 0, 1) == Leave(0, 0)
        status = await scene.index.status()
        assert status["running"] == {"s1": 1} and not any(status["losses"].values())
        assert await scene.wish("s0", 2, 1) == Leave(0, 0)  # the next attempt: nothing is lost with the one before
        assert not any((await scene.index.status())["losses"].values())

    play(scene, run)


def test_what_was_freed_before_its_insert_was_answered_is_not_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index admits, a learner takes, the pool frees, and then the index dies before its answer is there."""
    scene = Scene(monkeypatch)
    answers = asyncio.Event()

    async def run() -> None:
        first, ask = scene.index, scene.index.insert

        async def late(*args: Any) -> Any:
            found = await ask(*args)
            await answers.wait()
            return found

        monkeypatch.setattr(first, "insert", late)
        insert = asyncio.ensure_future(scene.insert("s0", 0))
        while (sample := await first.sample("p", 1, 0.1)) is None:
            pass
        await first.done(sample.number, [])
        while (await scene.pool.status())["fragments"]:
            await asyncio.sleep(0.01)
        await scene.new_index()
        assert await asyncio.wait_for(insert, SOON_S) is Verdict.admitted
        assert (await scene.index.status())["entries"] == 0

    play(scene, run)


def test_a_copy_of_what_was_admitted_is_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)

    async def run() -> None:
        assert [await scene.insert("s0", 0) for _ in range(3)] == [Verdict.admitted, Verdict.counted, Verdict.counted]
        assert (await scene.pool.status())["fragments"] == 1 and (await scene.index.status())["inserted"] == 1

    play(scene, run)


def test_what_was_learned_from_under_the_index_before_is_freed_and_the_rest_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)

    async def run() -> None:
        assert [await scene.insert("s0", step) for step in (0, 5)] == [Verdict.admitted] * 2
        sample = await scene.index.sample("p", 1, 0.0)
        assert sample is not None
        await scene.new_index({sample.chosen[0].key: 1})  # it was fetched, and the index died before it was told
        await asyncio.wait_for(scene.holds(1), SOON_S)
        rest = await asyncio.wait_for(scene.index.sample("p", 1, 3600), SOON_S)
        assert rest is not None and rest.chosen[0].entry.first_step == 5
        assert await scene.index.sample("p", 1, 0.0) is None
        await scene.new_index()  # another one is not told
        status = await scene.index.status()
        assert not any(status["losses"].values())

    play(scene, run)
