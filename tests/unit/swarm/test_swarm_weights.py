"""The parameter server's leases and history, and a node's cache: no Ray, no real clocks but asyncio's."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.config.swarm.weights import CacheConfig
from hpcjet.errors import ConfigError
from hpcjet.swarm.weights.cache import NoWeights, PolicyCache, ServerAway
from hpcjet.swarm.weights.digest import digest
from hpcjet.swarm.weights.lease import LeaseBook
from hpcjet.swarm.weights.server import NotPrimary, Published, ServerState


def primary(name: str = "a", *, epoch: int = 1, until: float = 10.0, keep: int = 2) -> ServerState:
    made = ServerState(name, keep=keep)
    made.granted(epoch, asked_at=0.0, seconds=until)
    return made


def published(version: int, epoch: int = 1, mark: str = "") -> Published:
    return Published(version, epoch, f"{version}{mark}", [f"weights {version}{mark}"])


# leases


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**20))
def test_two_are_never_primary(seed: int) -> None:
    """Three servers, delays, answers that are lost, clocks that differ, a book that is started again."""
    rng = np.random.default_rng(seed)
    servers = [ServerState(f"s{n}") for n in range(3)]
    offset, rate = rng.uniform(-50, 50, 3), rng.uniform(0.98, 1.02, 3)
    book, now, epochs, held = LeaseBook(5.0, now=0.0), 0.0, {0}, 0
    on_the_way: list[tuple[float, int, int | None, float]] = []

    def clock(n: int) -> float:
        return float(now * rate[n] + offset[n])

    for _ in range(300):
        now += rng.exponential(0.7)
        n = int(rng.integers(3))
        if rng.random() < 0.02:
            book = LeaseBook(5.0, now=now, epoch=int(now), anew=True)
        answer = book.ask(servers[n].name, epoch=servers[n].epoch, version=servers[n].version, now=now)
        if rng.random() < 0.8:
            on_the_way.append((now + rng.exponential(2.0), n, answer, clock(n) - rng.exponential(0.5)))
        for message in [message for message in on_the_way if message[0] <= now]:
            on_the_way.remove(message)
            servers[message[1]].granted(message[2], asked_at=message[3], seconds=book.seconds)
        primaries = [server for number, server in enumerate(servers) if server.is_primary(clock(number))]
        assert len(primaries) <= 1
        held += len(primaries)
        if primaries:
            epochs.add(primaries[0].epoch)
            assert primaries[0].epoch == max(epochs)
    assert held


def test_the_one_with_the_newest_version_takes_over() -> None:
    book = LeaseBook(5.0, now=0.0)
    assert book.ask("a", epoch=0, version=-1, now=0.0) == 1
    assert book.ask("b", epoch=1, version=7, now=1.0) is None
    assert book.ask("c", epoch=1, version=6, now=1.0) is None
    # Nobody becomes primary before the lease has run out: who seems dead may only be cut off.
    assert book.ask("b", epoch=1, version=7, now=5.2) is None
    assert book.ask("c", epoch=1, version=6, now=5.3) is None  # b has a newer version
    assert book.ask("b", epoch=1, version=7, now=5.4) == 2
    assert book.ask("c", epoch=2, version=8, now=10.6) is None
    assert book.ask("c", epoch=2, version=8, now=10.7) == 3
    with pytest.raises(ConfigError, match="lease_seconds=0"):
        LeaseBook(0, now=0)


def test_without_a_lease_nothing_is_answered() -> None:
    server = primary(until=10)
    server.publish(0, "0", ["w"], now=1.0)
    assert server.newer_than(None, 0, now=9.9) is not None
    for act in (lambda: server.newer_than(None, 0, now=10.0), lambda: server.publish(1, "1", [], now=10.0)):
        with pytest.raises(NotPrimary, match=r"server a \(epoch 1\).*lease of epoch 1 is over"):
            act()
    server.granted(1, asked_at=9.0, seconds=10)
    with pytest.raises(NotPrimary):  # the caller knows of another that was primary after it
        server.newer_than(None, 2, now=10.0)
    with pytest.raises(NotPrimary, match="no lease"):
        ServerState("b").publish(0, "0", [], now=0.0)


# history


def test_only_what_is_newer_is_given_and_the_history_is_bounded() -> None:
    server = primary(keep=3)
    assert server.version == -1 and server.newer_than(None, 1, now=1) is None
    for version in range(50):
        server.publish(version, str(version), [version], now=1)
    newest = server.newer_than(None, 1, now=1)
    assert newest is not None and newest.version == 49 and list(server.history) == [47, 48, 49]
    assert server.newer_than(newest, 1, now=1) is None
    server.publish(48, "48 of another line", ["w"], now=1)
    again = server.newer_than(newest, 1, now=1)
    assert again is not None and again.version == 48 and list(server.history) == [47, 48]
    with pytest.raises(ConfigError, match=r"weights\.keep=0"):
        ServerState("a", keep=0)


def test_a_standby_takes_over_with_what_the_primary_had() -> None:
    standby = ServerState("b")
    for version in range(4):
        standby.follow(published(version))
    standby.granted(2, asked_at=20.0, seconds=10)
    standby.follow(published(9, epoch=1))  # comes late, from the one that was primary before
    assert standby.newer_than(None, 1, now=21.0) == published(3)
    assert standby.publish(4, "4", ["w"], now=22.0).epoch == 2


def test_digests() -> None:
    one: dict[str, Any] = {"p": {"a": np.arange(6.0).reshape(2, 3), "b": np.float32(0).reshape(())}}
    same = {"p": dict(reversed(one["p"].items()))}
    assert digest(one) == digest(same)
    others: list[dict[str, Any]] = [
        {"p": {**one["p"], "a": one["p"]["a"].reshape(3, 2)}},
        {"p": {**one["p"], "a": one["p"]["a"].astype(np.float32)}},
        {"q": one["p"]},
        {"p": {**one["p"], "a": np.nextafter(one["p"]["a"], 9)}},
    ]
    assert len({digest(each) for each in [one, *others]}) == 5


# the cache


class Source:
    """A primary that answers after `delay_s`; or, while it is away, not at all."""

    def __init__(self, newest: Published | None = None, *, delay_s: float = 0.0) -> None:
        self.newest, self.delay_s, self.asked, self.away = newest, delay_s, 0, False

    async def pull(self, have: Published | None, wait_s: float) -> Published | None:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        if self.away:
            raise ServerAway("away")
        end = asyncio.get_running_loop().time() + wait_s
        while self.newest is None or (have is not None and have.same_as(self.newest)):
            if asyncio.get_running_loop().time() >= end:
                return None
            await asyncio.sleep(0.001)
        return self.newest


def cache(source: Source, **config: Any) -> PolicyCache:
    return PolicyCache("n1", source.pull, CacheConfig(**config))


def test_weights_come_to_a_node_once_however_many_ask() -> None:
    async def scene() -> None:
        source = Source(published(0), delay_s=0.01)
        node = cache(source)
        got = await asyncio.gather(*(node.weights(f"x{n}", -1, timeout_s=300) for n in range(20)))
        assert {each.weights[0] for each in got} == {"weights 0"} and source.asked == node.pulls == 1
        source.newest = published(1)
        got = await asyncio.gather(*(node.weights(f"x{n}", 0, at_least=1, timeout_s=300) for n in range(20)))
        assert {each.version for each in got} == {1} and source.asked == node.pulls == 2
        again = await node.weights("x3", 1, timeout_s=300)
        assert again.weights is None and again.version == 1
        assert set(node.versions().values()) == {1} and len(node.versions()) == 20

    asyncio.run(scene())


def test_nobody_acts_before_the_first_version() -> None:  # D9
    async def scene() -> None:
        source = Source()
        node = cache(source)
        waiting = asyncio.ensure_future(node.weights("x", -1, timeout_s=300))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        source.newest = published(0)
        assert (await waiting).weights == ["weights 0"]
        with pytest.raises(NoWeights, match=r"node n1: no weights of version 3 came in 0\.01 s, the newest here is 0"):
            await node.weights("x", 0, at_least=3, timeout_s=0.01)

    asyncio.run(scene())


def test_one_who_waits_for_long_does_not_hold_up_those_who_need_not() -> None:
    async def scene() -> None:
        node = cache(Source(published(0)))
        await node.weights("x", -1, timeout_s=300)
        waits = asyncio.ensure_future(node.weights("y", 0, at_least=1, timeout_s=900))
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(node.weights("x", 0, timeout_s=300), 300)).version == 0
        with pytest.raises(NoWeights):  # nor is one with little time held up by one with much
            await asyncio.wait_for(node.weights("z", 0, at_least=1, timeout_s=0.01), 300)
        waits.cancel()

    asyncio.run(scene())


def test_an_executor_goes_on_while_no_primary_answers() -> None:
    async def scene() -> None:
        source = Source(published(0))
        node = cache(source)
        await node.weights("x", -1, timeout_s=300)
        source.away = True
        assert (await node.weights("x", 0, timeout_s=300)).version == 0 and node.failures == 1
        waits = asyncio.ensure_future(node.weights("x", 0, at_least=1, timeout_s=300))
        await asyncio.sleep(0.01)
        source.away, source.newest = False, published(1, epoch=2)
        assert (await waits).version == 1

    asyncio.run(scene())


def test_sync_every() -> None:
    async def scene() -> None:
        source = Source(published(0))
        node = cache(source, sync_every=3)
        have, seen = -1, []
        for version in range(7):
            source.newest = published(version)
            have = (await node.weights("x", have, timeout_s=300)).version
            seen.append(have)
        assert seen == [0, 0, 0, 3, 3, 3, 6]
        assert (await node.weights("x", 6, at_least=6, timeout_s=300)).version == 6

    asyncio.run(scene())


def test_missed_pushes_are_counted_and_made_up_for() -> None:  # D1
    async def scene() -> None:
        source = Source(published(0))
        node = cache(source, push=True)
        await node.weights("x", -1, timeout_s=300)
        for version in range(1, 8):
            source.newest = published(version)
            if version not in (3, 4, 7):
                await node.announce(version)
                assert node.version == version
        assert node.missed_pushes == 2
        assert (await node.weights("x", 6, timeout_s=300)).version == 7 and node.missed_pushes == 3
        await node.announce(7)  # only late
        assert node.missed_pushes == 2 and node.pulls == 6

    asyncio.run(scene())


def test_versions_by_executor_name_the_culprit() -> None:  # D2, D3, D4, D6
    async def scene() -> None:
        source = Source(published(0))
        node = cache(source)
        await node.weights("a", -1, timeout_s=300)
        await node.weights("b", -1, timeout_s=300)
        source.newest = published(5)
        await node.weights("b", 0, timeout_s=300)
        assert node.versions() == {"a": 0, "b": 5} and node.laggards(3) == {"a": 0}
        got = await node.weights("b", 5, digest="its update went to a copy", timeout_s=300)
        assert node.wrong == {"b": 5} and got.weights == ["weights 5"]
        assert (await node.weights("b", 5, digest="5", timeout_s=300)).weights is None
        node.forget("a")
        node.forget("b")
        assert node.versions() == {} and node.wrong == {}

    asyncio.run(scene())


def test_a_learner_that_went_back_is_followed() -> None:
    async def scene() -> None:
        source = Source(published(9))
        node = cache(source, push=True)
        await node.weights("a", -1, timeout_s=300)
        for back in (published(4), published(4, mark="'")):  # a lower number, and the same one of another line
            source.newest = back
            assert (await node.weights("a", node.version, timeout_s=300)).weights == back.weights
        assert node.missed_pushes == 0

    asyncio.run(scene())
