"""Index and node pools through random lives: nodes and the index die, answers get lost, learners start again."""

from collections import Counter
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.config.swarm.pool import RateConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode, TooOld
from hpcjet.swarm.pool import Chosen, Entry, Index, Key, NodePool, Order, PoolConfig, Verdict, WhenFull

BATCH, PARTS = 4, 2


class Life:
    """Three nodes with a pool and a source each, and one learner. A source makes two fragments at a time."""

    def __init__(self, config: PoolConfig, staleness: StalenessConfig, seed: int, *, index_dies: float = 0.0) -> None:
        self.config, self.staleness, self.rng = config, staleness, np.random.default_rng(seed)
        self.index_dies = index_dies
        self.index = Index(config, staleness, seed=seed)
        self.pools: dict[str, NodePool] = {}
        self.starts: Counter[str] = Counter()
        self.numbers = count()
        self.running: dict[str, tuple[int, int] | None] = {}
        """Of each source: the version it acts with, and how many parts it has not handed in."""
        self.learned: Counter[Key] = Counter()
        self.ages: list[int] = []
        self.broken: set[Key] = set()
        self.updates = 0
        self.out: Any = None
        self.offers: list[tuple[Key, Entry]] = []
        """What the pools held when the index was started again, as far as that has not answered."""
        for node in ("n0", "n1", "n2"):
            self.start(node)

    def start(self, node: str) -> None:
        self.starts[node] += 1
        self.pools[node] = NodePool(f"{node}/{self.starts[node]}", 1000, self.config.when_full)
        self.index.join(self.pools[node].name, node)
        self.running[node] = None

    def act(self, node: str) -> None:
        attempt, doing = self.starts[node], self.running[node]
        if doing is None:
            if self.index.begin(node, attempt, node, PARTS):
                self.running[node] = (self.index.budget.version, PARTS)
            return
        version, left = doing
        pool = self.pools[node]
        if not pool.has_room(100):
            return
        step = 100 * next(self.numbers) + int(self.rng.integers(100))
        entry = Entry(
            source=node, attempt=attempt, node=node, first_world=0, worlds=1, policy="p", group=f"g{left}", steps=1,
            first_step=step, agent_steps=1, version=version, nbytes=100,
        )  # fmt: skip
        number, gone = pool.put(entry, 100)
        self.index.evicted(pool.name, gone)
        verdict = self.index.insert(Key(pool.name, number), entry)
        if verdict is not Verdict.admitted:
            pool.remove([number])
        elif self.rng.random() < 0.1:  # the answer was lost, and it is put there again
            assert self.index.insert(Key(pool.name, 10_000 + number), entry) is Verdict.counted
        if verdict is not Verdict.wait:
            self.running[node] = (version, left - 1) if left > 1 else None

    def learn(self) -> None:
        want = BATCH - (0 if self.out is None else self.out[1])
        sample = self.index.sample("p", want)
        if sample is None:
            return
        got, missing = list[Chosen](), []
        for chosen in sample.chosen:
            pool = self.pools[chosen.entry.node]
            assert pool.name == chosen.key.pool, "nothing is chosen of a pool that is gone"
            there = pool.get([chosen.key.number])[0] is not None
            assert there or chosen.key in self.broken, "all that is chosen is there"
            if not there or self.rng.random() < 0.05:  # it is lost under the fetch
                pool.remove([chosen.key.number])
                self.broken.add(chosen.key)
                missing.append(chosen.key)
                continue
            got.append(chosen)
        if self.rng.random() < 0.05:  # so did the learner
            self.index.recover(max(0, self.index.budget.version - 1))
            self.out = None
            return
        self.learned.update(chosen.key for chosen in got if chosen.valid)
        self.ages += [sample.version - chosen.entry.version for chosen in got if chosen.valid]
        if self.rng.random() < self.index_dies:  # before it is told of it
            self.start_index()
        self.index.done(sample.number, missing)
        whole = len(got) + (0 if self.out is None else self.out[1])
        self.out = (sample.version, whole) if whole < BATCH else None
        if self.out is None:
            self.updates += 1
            self.index.advance(self.index.budget.version + 1)

    def start_index(self) -> None:
        version, self.index = self.index.budget.version, Index(self.config, self.staleness, seed=9)
        self.index.used = dict(self.learned)
        for node, pool in self.pools.items():
            self.index.join(pool.name, node)
        self.index.recover(version)
        self.offers = [
            (Key(pool.name, number), entry) for pool in self.pools.values() for number, entry in pool.items()
        ]

    def offer(self) -> None:
        offers, self.offers = self.offers, []
        for key, entry in offers:
            pool = self.pools[key.pool.partition("/")[0]]
            if key.pool != pool.name or key.number not in pool:
                continue
            verdict = self.index.insert(key, entry)
            if verdict is Verdict.wait:
                self.offers.append((key, entry))
            elif verdict is not Verdict.admitted:
                pool.remove([key.number])

    def free(self) -> None:
        for pool, numbers in self.index.take_freed().items():
            self.pools[pool.partition("/")[0]].remove(numbers)

    def step(self, *, calm: bool) -> None:
        self.free()
        self.offer()
        node = f"n{self.rng.integers(3)}"
        if not calm and self.rng.random() < 0.02:
            self.index.node_lost(node)
            self.start(node)
        elif self.rng.random() < 0.6:
            self.act(node)
        else:
            self.learn()


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    mode=st.sampled_from(list(StalenessMode)), too_old=st.sampled_from(list(TooOld)),
    order=st.sampled_from(list(Order)), quota=st.sampled_from([0.4, 1.0]), buffer=st.sampled_from([0.0, 12.0]),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_it_goes_on_and_keeps_its_bounds(
    mode: StalenessMode, too_old: TooOld, order: Order, quota: float, buffer: float, seed: int
) -> None:
    config = PoolConfig(
        order=order, node_quota=quota, group_quota=0.75 if quota < 1 else 1.0, rate=RateConfig(error_buffer=buffer)
    )
    life = Life(config, StalenessConfig(mode, eta=1, too_old=too_old, fragments=BATCH), seed)
    for _ in range(300):
        life.step(calm=False)
    before = life.updates
    for _ in range(600):
        life.step(calm=True)
        if life.updates >= before + 3:
            break
    assert life.updates >= before + 3, (vars(life.index.budget), life.index.counts.limiter, life.running)
    bound = life.index.staleness.bound
    assert bound is None or max(life.ages) <= bound
    # Nothing stays in a pool that the index has forgotten, nor the other way round.
    life.free()
    held = set(life.index.shelf.held) | {each.key for those in life.index.out.values() for each in those}
    there = {Key(pool.name, number) for pool in life.pools.values() for number, _ in pool.items()}
    assert there <= held
    assert life.index.counts.losses.late == 0


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_replay_goes_on_in_bounded_memory(when_full: WhenFull) -> None:
    times = 0 if when_full is WhenFull.evict else 2
    config = PoolConfig(order=Order.prioritised, max_times=times, when_full=when_full, capacity=25)
    life = Life(config, StalenessConfig(StalenessMode["async"], fragments=BATCH), 3)
    for _ in range(2000):
        life.step(calm=False)
        assert all(pool.nbytes <= 1000 for pool in life.pools.values()) and len(life.index) <= 25
    assert life.updates > 100 and max(life.learned.values()) > 1


@settings(max_examples=30, deadline=None, derandomize=True)
@given(mode=st.sampled_from([StalenessMode.hybrid, StalenessMode["async"]]), times=st.integers(1, 3),
       seed=st.integers(0, 2**20))  # fmt: skip
def test_an_index_that_dies_lets_nothing_be_learned_from_too_often(mode: StalenessMode, times: int, seed: int) -> None:
    config = PoolConfig(order=Order.prioritised, max_times=times)
    life = Life(config, StalenessConfig(mode, eta=2, fragments=BATCH), seed, index_dies=0.3)
    for _ in range(300):
        life.step(calm=True)
    assert life.updates > 5, (vars(life.index.budget), life.running)
    assert max(life.learned.values()) <= times
