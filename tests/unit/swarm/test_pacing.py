"""Seats are kept in step; with sync what is learned from, and its order, does not depend on who comes first."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.swarm.pool import Entry, Index, Key, PoolConfig
from hpcjet.swarm.pool.pacing import Pacing

ASYNC = StalenessConfig(StalenessMode["async"], fragments=4)


@dataclass
class Seats:
    """Seats on nodes of their own that make n fragments at a time, and ask in any order."""

    index: Index
    names: list[str]
    n: int
    step: Counter[str] = field(default_factory=Counter)
    owes: dict[str, list[Entry]] = field(default_factory=dict)
    number: int = 0

    def __post_init__(self) -> None:
        for name in self.names:
            self.index.join(name, name)

    def act(self, name: str) -> None:
        """Begin, or hand in one of what was begun."""
        if not self.owes.get(name):
            if self.index.begin(name, 0, name, self.n, ticket=self.step[name]):
                self.owes[name] = [self._entry(name, part) for part in range(self.n)]
                self.step[name] += 5
            return
        self.number += 1
        self.index.insert(Key(name, self.number), self.owes[name].pop())

    def _entry(self, name: str, part: int) -> Entry:
        return Entry(
            source=name, attempt=0, node=name, first_world=0, worlds=1, policy="p", group=f"g{part}", steps=5,
            first_step=self.step[name], agent_steps=1, version=self.index.budget.version, nbytes=1,
        )  # fmt: skip


def sync_orders(seed: int, *, seats: int, n: int, fragments: int, updates: int = 6) -> list[Any]:
    """What each update learned from, while seats of different speed ask in an order that the seed says."""
    names = [f"seat-{at}" for at in range(seats)]
    staleness = StalenessConfig(fragments=fragments).resolved(seats, n)
    index = Index(PoolConfig(), staleness, seed=0, seats=names)
    life, rng, orders = Seats(index, names, n), np.random.default_rng(seed), []
    speed = rng.dirichlet(np.full(seats, 0.5)) + 0.02
    for _ in range(200_000):
        life.act(names[rng.choice(seats, p=speed / speed.sum())])
        if (sample := index.sample("p", staleness.fragments)) is not None:
            orders.append([chosen.entry for chosen in sample.chosen])
            index.done(sample.number)
            if len(orders) == updates:
                return orders
            index.advance(index.budget.version + 1)
    raise AssertionError(f"{len(orders)} updates: seats wait for each other for ever")


@pytest.mark.parametrize(("seats", "n", "fragments"), [(1, 1, 0), (5, 1, 0), (4, 3, 0), (3, 1, 7), (4, 2, 6)])
def test_sync_learns_from_the_same_in_the_same_order_whoever_comes_first(seats: int, n: int, fragments: int) -> None:
    first, *others = [sync_orders(seed, seats=seats, n=n, fragments=fragments) for seed in range(4)]
    assert all(order == first for order in others)
    if not fragments:
        for version, order in enumerate(first):
            assert Counter(entry.source for entry in order) == {f"seat-{at}": n for at in range(seats)}
            assert {(entry.version, entry.first_step) for entry in order} == {(version, 5 * version)}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 3), st.integers(1, 6), st.integers(1, 3), st.integers(0, 2**20))
def test_nobody_runs_further_ahead_of_the_slowest_than_it_may(ahead: int, seats: int, n: int, seed: int) -> None:
    names, rng = [f"seat-{at}" for at in range(seats)], np.random.default_rng(seed)
    index = Index(PoolConfig(ahead=ahead), ASYNC, seed=0, seats=names)
    life, slow = Seats(index, names, n), names[0]
    for _ in range(100):
        life.act(names[rng.integers(1, seats)] if seats > 1 and rng.random() < 0.95 else slow)
        rounds = index.pacing.rounds()
        assert max(rounds.values()) - min(rounds.values()) <= ahead + 1
    for _ in range(300):
        life.act(str(rng.choice(names)))
    assert min(index.pacing.rounds().values()) > 5


def test_the_bound_is_reached_and_can_be_left_out() -> None:
    paced = Pacing(1, ["a", "b"])
    begun = []
    for pacing in (paced, Pacing(None, ["a", "b"]), Pacing(1)):
        count = 0
        while count < 9 and pacing.may_begin("a", 2, None):
            pacing.began("a", 2)
            count += 1
        begun.append(count)
    assert begun == [2, 9, 9]
    assert paced.may_begin("not a seat", 1, None)


def test_a_seat_that_is_lost_or_left_holds_up_nobody_and_comes_back_at_the_least_of_the_others() -> None:
    index = Index(PoolConfig(ahead=0), ASYNC, seed=0, seats=["a", "b", "c"])
    assert index.begin("a", 0, "n0") and index.begin("b", 0, "n1") and not index.begin("a", 0, "n0")
    index.node_lost("n1")
    assert not index.begin("a", 0, "n0")  # c has not come yet
    index.expect(["a", "b"])
    for _ in range(4):
        assert index.begin("a", 0, "n0")
    assert index.begin("b", 1, "n1") and not index.begin("b", 1, "n1")
    assert index.pacing.rounds() == {"a": 5, "b": 6}


def test_a_seat_that_joins_late_counts_from_the_least_of_the_others() -> None:
    pacing = Pacing(1, ["a", "b"])
    for name in ["a", "b"] * 3:
        assert pacing.may_begin(name, 2, None)
        pacing.began(name, 2)
    pacing.began("a", 2)
    pacing.expect(["a", "b", "c"])
    assert pacing.rounds() == {"a": 4, "b": 3, "c": 3}


def test_who_lost_what_it_made_makes_it_again() -> None:
    index = Index(PoolConfig(), StalenessConfig(fragments=2), seed=0, seats=["a", "b"])
    life = Seats(index, ["a", "b"], 1)
    for name in "abab":
        life.act(name)
    assert len(index) == 2 and not index.begin("a", 0, "a") and not index.begin("b", 0, "b")
    index.join("b again", "b")  # its pool was started again
    assert not index.begin("a", 0, "a") and index.begin("b", 0, "b")


def test_a_new_index_counts_what_the_one_before_had_let_begin() -> None:
    """Else who has made its fragment of this version would begin another one in place of who has not."""
    index = Index(PoolConfig(), StalenessConfig(fragments=4), seed=0, seats=["a", "b"])
    life = Seats(index, ["a", "b"], 2)
    life.owes["a"] = [life._entry("a", 0), life._entry("a", 1)]
    life.act("a"), life.act("a")
    assert not index.begin("a", 0, "a", 2) and index.begin("b", 0, "b", 2)
    assert index.pacing.rounds() == {"a": 1, "b": 1}
