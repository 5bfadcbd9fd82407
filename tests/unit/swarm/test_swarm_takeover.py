"""Who becomes primary when the process of one is known to have ended: no Ray, no real clocks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.swarm.weights.lease import LeaseBook
from hpcjet.swarm.weights.server import ServerState


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**20))
def test_two_are_never_primary_where_processes_end_and_are_started_again(seed: int) -> None:
    """As the test of that name without ends: delays, answers that are lost, clocks that differ."""
    rng = np.random.default_rng(seed)
    servers = [ServerState(f"s{n}/actor/0") for n in range(2)]
    life, offset, rate = [0, 0], rng.uniform(-50, 50, 2), rng.uniform(0.98, 1.02, 2)
    book, now, epochs, held = LeaseBook(5.0, now=0.0), 0.0, [0], 0
    on_the_way: list[tuple[float, ServerState, int, int | None, float]] = []

    def clock(n: int) -> float:
        return float(now * rate[n] + offset[n])

    for _ in range(300):
        now += rng.exponential(0.7)
        n = int(rng.integers(2))
        if rng.random() < 0.05:
            was_primary = servers[n].is_primary(clock(n))
            life[n] += 1
            servers[n] = ServerState(f"s{n}/actor/{life[n]}")
            book.died(f"s{n}/actor/", servers[n].name, now=now)
            other = servers[1 - n]
            took_over = book.ask(other.name, epoch=other.epoch, version=other.version, now=now) is not None
            assert took_over or not was_primary
        answer = book.ask(servers[n].name, epoch=servers[n].epoch, version=servers[n].version, now=now)
        if rng.random() < 0.8:
            on_the_way.append((now + rng.exponential(2.0), servers[n], n, answer, clock(n) - rng.exponential(0.5)))
        for message in [message for message in on_the_way if message[0] <= now]:
            on_the_way.remove(message)
            message[1].granted(message[3], asked_at=message[4], seconds=book.seconds)
        primaries = [server for number, server in enumerate(servers) if server.is_primary(clock(number))]
        assert len(primaries) <= 1
        held += len(primaries)
        epochs += [server.epoch for server in primaries]
    assert held and epochs == sorted(epochs)


def test_the_standby_takes_over_at_once_with_what_it_has() -> None:
    book = LeaseBook(60.0, now=0.0)
    assert book.ask("a/actor/1", epoch=0, version=7, now=0.0) == 1
    assert book.ask("b/actor/1", epoch=1, version=6, now=1.0) is None
    book.died("a/actor/", "a/actor/2", now=2.0)
    assert book.ask("a/actor/2", epoch=0, version=-1, now=2.0) is None  # it has nothing
    assert book.ask("b/actor/1", epoch=1, version=6, now=2.1) == 2
    book.died("a/actor/", "a/actor/2", now=2.2)  # said again with each question
    assert book.ask("b/actor/1", epoch=2, version=6, now=3.0) == 2


def test_only_an_end_that_is_certain_ends_a_lease() -> None:
    book = LeaseBook(60.0, now=0.0)
    assert book.ask("a/actor/1", epoch=0, version=7, now=0.0) == 1
    assert book.ask("b/actor/1", epoch=1, version=7, now=1.0) is None
    # Another actor of the same name stands elsewhere: the first one may live on a node that is cut off.
    book.died("a/other/", "a/other/2", now=2.0)
    book.died("b/actor/", "b/actor/1", now=2.0)
    assert book.ask("b/actor/1", epoch=1, version=7, now=60.0) is None
    assert book.ask("b/actor/1", epoch=1, version=7, now=63.1) == 2
    # A book that was started again does not know whose leases there are.
    anew = LeaseBook(60.0, now=100.0, epoch=9, anew=True)
    anew.died("a/actor/", "a/actor/2", now=101.0)
    assert anew.ask("b/actor/1", epoch=2, version=7, now=102.0) is None
