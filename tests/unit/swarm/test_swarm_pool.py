"""The experience pool without Ray: what is admitted, chosen, lost and freed."""

from collections import Counter
from dataclasses import replace
from itertools import count as numbers_from
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.config.swarm.pool import RateConfig
from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode, TooOld
from hpcjet.errors import ConfigError
from hpcjet.swarm.pool import Entry, Index, Key, NodePool, Order, PoolConfig, PoolFull, Verdict, WhenFull
from hpcjet.swarm.pool.index_state import load_state, state_of

ASYNC = StalenessConfig(StalenessMode["async"], fragments=4)
REPLAY: dict[str, Any] = {"max_times": 0, "when_full": WhenFull.evict}
STEPS = numbers_from(1000)
"""No two fragments are the same where a test does not say so."""


def index_of(staleness: StalenessConfig = ASYNC, *, pools: int = 2, seed: int = 0, **config: Any) -> Index:
    made = Index(PoolConfig(**config), staleness, seed=seed)
    for n in range(pools):
        made.join(f"n{n}", f"n{n}")
    return made


def entry(node: int = 0, **changes: Any) -> Entry:
    made = Entry(
        source=f"host-{node}", attempt=0, node=f"n{node}", first_world=0, worlds=1, policy="p", group="g",
        first_step=next(STEPS), steps=5, agent_steps=10, version=0, nbytes=100,
    )  # fmt: skip
    return replace(made, **changes)


def fill(index: Index, counts: dict[int, int], **changes: Any) -> None:
    for node, count in counts.items():
        for number in range(count):
            changes["first_step"] = number * 5
            assert index.insert(Key(f"n{node}", number), entry(node, **changes)) is Verdict.admitted


def keys(sample: Any) -> list[Key]:
    assert sample is not None
    return [chosen.key for chosen in sample.chosen]


# choosing


def test_in_order_does_not_depend_on_when_fragments_came() -> None:
    orders = []
    for seed in range(2):
        index = index_of()
        items = [(node, step) for node in range(2) for step in range(4)]
        for node, step in [items[at] for at in np.random.default_rng(seed).permutation(8)]:
            index.insert(Key(f"n{node}", step), entry(node, first_step=step))
        assert index.available("p") == 8 and index.sample("other", 1) is None
        orders.append([keys(index.sample("p", 4)), keys(index.sample("p", 4))])
        assert index.sample("p", 1) is None
    assert orders[0] == orders[1]
    assert orders[0][0] == [("n0", 0), ("n1", 0), ("n0", 1), ("n1", 1)]


def test_prioritised_draws_over_nodes_are_those_of_one_pool() -> None:
    """The chi-square statistic of 30 classes stays below 60 in all but one case of a thousand; the seed is fixed."""
    index = index_of(pools=3, order=Order.prioritised, alpha=0.7, beta=0.5, **REPLAY)
    fill(index, {0: 20, 1: 9, 2: 1})
    rng = np.random.default_rng(3)
    everything = [Key("n0", n) for n in range(20)] + [Key("n1", n) for n in range(9)] + [Key("n2", 0)]
    priority = rng.gamma(0.5, size=30) + 0.01
    priority[4] = 0
    index.update_priorities([*everything, Key("n9", 0)], [*priority, 1.0])
    counts: Counter[Key] = Counter()
    weights: dict[Key, float] = {}
    for _ in range(40):
        sample = index.sample("p", 500)
        counts.update(keys(sample))
        weights.update({chosen.key: chosen.weight for chosen in sample.chosen})  # type: ignore[union-attr]
    mass = np.where(priority > 0, priority**0.7, 0)
    expected = 20_000 * mass / mass.sum()
    got = np.array([counts[key] for key in everything])
    there = expected > 0
    assert got[4] == 0 and ((got - expected)[there] ** 2 / expected[there]).sum() < 60
    for key, each in zip(everything, mass, strict=True):
        if key in weights:
            assert weights[key] == pytest.approx((mass[there].min() / each) ** 0.5)


def test_a_new_entry_is_as_likely_as_the_likeliest_of_all_nodes() -> None:  # C9
    index = index_of(order=Order.prioritised, alpha=1.0, **REPLAY)
    fill(index, {0: 2})
    index.update_priorities([Key("n0", 0), Key("n0", 1)], [1e-3, 1e-4])
    index.insert(Key("n1", 0), entry(1))
    index.insert(Key("n1", 1), entry(1, priority=0.5e-3))
    counts = Counter(keys(index.sample("p", 20_000)))
    assert counts[Key("n1", 0)] == pytest.approx(counts[Key("n0", 0)], rel=0.1)
    assert counts[Key("n1", 1)] == pytest.approx(counts[Key("n0", 0)] / 2, rel=0.1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(1, 12), st.sampled_from([0.2, 0.5, 1.0]),
    st.sampled_from(list(Order)), st.integers(1, 3), st.integers(0, 999),
)  # fmt: skip
def test_quotas_and_times_hold(counts: list[int], n: int, quota: float, order: Order, most: int, seed: int) -> None:
    index = index_of(pools=5, seed=seed, order=order, node_quota=quota, max_times=most, when_full=WhenFull.evict)
    fill(index, dict(enumerate(counts)))
    seen: Counter[Key] = Counter()
    there = {node for node, count in enumerate(counts) if count}
    while (sample := index.sample("p", n)) is not None:
        nodes = Counter(chosen.entry.node for chosen in sample.chosen)
        alive = len({key.pool for key in (*index.shelf.held, *keys(sample))})
        assert len(sample.chosen) == n and max(nodes.values()) <= np.ceil(max(quota, 1 / alive) * n - 1e-9)
        seen.update(keys(sample))
        index.done(sample.number)
    assert max(seen.values(), default=0) <= most
    if quota == 1.0 and order is not Order.in_order:
        assert most * sum(counts) - sum(seen.values()) < n
    freed = index.take_freed()
    assert sum(map(len, freed.values())) == sum(times == most for times in seen.values())
    assert len(index) == sum(counts) - sum(map(len, freed.values())) and len(there) >= len(freed)


def test_a_prolific_node_and_group_do_not_dominate() -> None:
    index = index_of(order=Order.uniform, node_quota=0.5, **REPLAY)
    fill(index, {0: 99, 1: 3})
    assert Counter(key.pool for key in keys(index.sample("p", 40))) == {"n0": 20, "n1": 20}
    index = index_of(order=Order.uniform, group_quota=0.75, **REPLAY)
    fill(index, {0: 99})
    index.insert(Key("n1", 0), entry(1, group="few"))
    sample = index.sample("p", 40)
    assert Counter(chosen.entry.group for chosen in sample.chosen) == {"g": 30, "few": 10}  # type: ignore[union-attr]


def test_quotas_wait_for_others_only_while_there_is_hope() -> None:
    index = index_of(StalenessConfig(fragments=4), node_quota=0.5)
    assert index.begin("host-0", 0, "n0", 3) and index.begin("host-1", 0, "n1")
    fill(index, {0: 3})
    index.insert(Key("n1", 0), entry(1))
    sample = index.sample("p", 4)  # all that sync allows is there
    assert sample is not None and sample.over_quota == index.counts.over_quota == 1
    index = index_of(StalenessConfig(fragments=4), node_quota=0.5)
    assert index.begin("host-0", 0, "n0", 3) and index.begin("host-1", 0, "n1")
    fill(index, {0: 3})
    assert index.sample("p", 3) is not None  # one node has all there is: its quota is the whole
    index.insert(Key("n0", 9), entry(0))
    assert index.sample("p", 4) is None


# staleness


def hybrid(too_old: TooOld = TooOld.drop) -> StalenessConfig:
    return StalenessConfig(StalenessMode.hybrid, eta=1, too_old=too_old, fragments=2)


def test_what_got_too_old_is_dropped_and_replaced() -> None:
    index = index_of(hybrid())
    assert index.begin("host-0", 0, "n0", 4) and not index.begin("host-0", 0, "n0")
    fill(index, {0: 3})
    index.advance(1)
    assert index.available("p") == 3 and index.budget.room == 2
    index.advance(2)
    assert index.available("p") == 0 and index.counts.losses.stale == 3 and index.take_freed() == {"n0": [0, 1, 2]}
    assert index.budget.room == (2 + 1 + 1) * 2 - 1
    assert index.insert(Key("n0", 3), entry()) is Verdict.stale and index.budget.in_flight == 0
    assert index.insert(Key("n0", 4), entry(version=3)) is Verdict.stale  # of a learner that went back
    assert index.insert(Key("n0", 5), entry(version=1)) is Verdict.admitted


def test_what_got_too_old_is_masked_and_not_fetched() -> None:
    index = index_of(hybrid(TooOld.mask))
    index.begin("host-0", 0, "n0", 4)
    fill(index, {0: 1})
    index.advance(2)
    index.insert(Key("n0", 1), entry(version=2, first_step=9))
    sample = index.sample("p", 2)
    assert sample is not None and [chosen.valid for chosen in sample.chosen] == [False, True]
    assert sample.valid_share == 0.5 and sample.by_pool() == {"n0": [1]}
    index.done(sample.number)
    assert index.take_freed() == {"n0": [0, 1]} and len(index) == 0


def test_modes_are_one_path() -> None:
    """In which modes a fragment of version 0 is still learned from, by the learner's version."""
    lived = {}
    for mode in StalenessMode:
        index = index_of(StalenessConfig(mode, eta=2, fragments=1))
        fill(index, {0: 1})
        version = 0
        while index.available("p") and version < 9:
            version += 1
            index.advance(version)
        lived[mode.name] = version
    assert lived == {"sync": 1, "hybrid": 3, "async": 9}


# losses


def test_a_dead_node_is_never_chosen_and_what_it_owed_is_given_to_others() -> None:
    index = index_of(StalenessConfig(fragments=6))
    assert index.begin("host-0", 0, "n0", 3) and index.begin("host-1", 0, "n1", 3)
    fill(index, {0: 2, 1: 3})
    assert index.node_lost("n0") == 3 and index.counts.losses.node == 2 and index.counts.losses.begun == 1
    assert index.available("p") == 3 and index.budget.room == 3
    assert index.insert(Key("n0", 7), entry(0, attempt=1)) is Verdict.late  # its pool has not joined again
    index.join("n0 again", "n0")
    assert index.insert(Key("n0 again", 0), entry(0)) is Verdict.late  # E8: the attempt is an old one
    assert index.begin("host-0", 1, "n0", 3) and not index.begin("host-0", 0, "n0")
    assert index.insert(Key("n0 again", 0), entry(0, attempt=1)) is Verdict.admitted
    assert index.counts.losses.late == 2
    assert index.insert(Key("n0 again", 0), entry(0, attempt=1)) is Verdict.admitted and len(index) == 4  # said twice


def test_who_asks_twice_since_an_answer_was_lost_counts_once() -> None:
    index = index_of(StalenessConfig(fragments=4))
    assert all(index.begin("host-0", 0, "n0", 2, ticket=0) for _ in range(3)) and index.budget.in_flight == 2
    assert index.begin("host-0", 0, "n0", 2, ticket=5) and index.budget.room == 0
    assert not index.begin("host-0", 0, "n0", 2, ticket=10)
    index.source_lost("host-0")
    assert index.begin("host-0", 1, "n0", 2, ticket=5) and index.budget.in_flight == 2


def test_a_fragment_that_is_offered_again_counts_once_wherever_it_lies() -> None:
    index = index_of(StalenessConfig(StalenessMode.hybrid, eta=1, fragments=2))
    assert index.begin("host-0", 0, "n0", 2)
    fill(index, {0: 2})
    assert index.insert(Key("n0", 2), entry(first_step=5)) is Verdict.counted
    sample = index.sample("p", 2)
    assert sample is not None
    assert index.insert(Key("n0", 1), entry(first_step=5)) is Verdict.admitted  # its pool must keep it: it is fetched
    index.done(sample.number)
    assert index.insert(Key("n0", 1), entry(first_step=5)) is Verdict.counted
    assert len(index) == 0 and index.budget.room == 2 and index.budget.in_flight == 0
    assert index.counts.nodes["n0"].inserted == 2
    again = [entry(first_step=5, **change) for change in ({"policy": "q"}, {"group": "h"}, {"source": "host-1"})]
    for number, other in enumerate(again):
        assert index.insert(Key("n0", 10 + number), other) is Verdict.admitted


def test_what_was_lost_with_its_pool_is_new_when_it_is_offered_again() -> None:
    index = index_of()
    fill(index, {0: 2})
    first = index.sample("p", 1)
    assert first is not None
    index.done(first.number)
    index.join("n0 again", "n0")
    verdicts = [index.insert(Key("n0 again", number), entry(first_step=5 * number)) for number in range(2)]
    assert verdicts == [Verdict.counted, Verdict.admitted]  # the first was learned from


def test_an_attempt_that_ended_is_refused_even_by_an_index_that_never_heard_of_it() -> None:
    index = index_of(StalenessConfig(fragments=4))
    index.source_lost("host-0", 0)
    assert index.is_over("host-0", 0) and not index.begin("host-0", 0, "n0")
    assert not index.is_over("host-0", 1) and index.begin("host-0", 1, "n0")
    assert index.source_lost("host-0", 0) == 0 and index.budget.in_flight == 1  # told late: another one acts by now
    assert index.source_lost("host-0", 1) == 1 and index.is_over("host-0", 1)


def test_a_pool_that_was_started_again_has_nothing_of_the_one_before() -> None:
    index = index_of()
    fill(index, {0: 3})
    index.join("n0 again", "n0")
    assert len(index) == 0 and index.counts.losses.node == 3


def test_what_is_missing_when_fetched_may_be_made_again() -> None:
    index = index_of(StalenessConfig(fragments=4))
    index.begin("host-0", 0, "n0", 4)
    fill(index, {0: 4})
    sample = index.sample("p", 4)
    assert sample is not None and index.budget.room == 0
    index.done(sample.number, missing=[Key("n0", 2)])
    assert index.counts.losses.missing == 1 and index.begin("host-0", 0, "n0") and not index.begin("host-0", 0, "n0")
    assert index.insert(Key("n0", 4), entry()) is Verdict.admitted
    assert keys(index.sample("p", 1)) == [("n0", 4)]


def test_what_a_lost_learner_had_chosen_is_chosen_again() -> None:
    index = index_of(StalenessConfig(fragments=4), rate=RateConfig(error_buffer=8.0))
    index.begin("host-0", 0, "n0", 4)
    fill(index, {0: 4})
    first = index.sample("p", 4)
    assert first is not None and len(index) == 0
    index.recover(0)
    second = index.sample("p", 4)
    assert keys(first) == keys(second) and index.take_freed() == {} and index.budget.room == 0
    index.done(first.number)  # comes late: nothing is freed under the second
    assert index.take_freed() == {}


def test_evicted_and_full() -> None:
    index = index_of(capacity=3, **REPLAY)
    fill(index, {0: 4})
    assert len(index) == 3 and index.counts.losses.evicted == 1 and index.take_freed() == {"n0": [0]}
    index.evicted("n0", [1, 77])
    assert len(index) == 2
    index = index_of(replace(ASYNC, fragments=2), capacity=3)
    fill(index, {0: 3})
    assert index.insert(Key("n0", 3), entry()) is Verdict.wait
    index.sample("p", 1)
    assert index.insert(Key("n0", 3), entry()) is Verdict.admitted


# the rate limit


def test_the_rate_limit_holds_inserts_and_samples_back() -> None:
    index = index_of(rate=RateConfig(min_size=3, error_buffer=5.0))
    fill(index, {0: 2})
    assert index.sample("p", 1) is None
    fill(index, {1: 6})
    assert index.insert(Key("n0", 9), entry()) is Verdict.wait
    assert index.sample("p", 4) is not None
    assert index.insert(Key("n0", 9), entry()) is Verdict.admitted


def test_lost_entries_do_not_stop_inserts_for_ever() -> None:
    index = index_of(rate=RateConfig(min_size=3, error_buffer=5.0))
    for round_number in range(5):
        pool = f"n0 {round_number}"
        index.join(pool, "n0")
        for number in range(8 if round_number == 0 else 5):
            assert index.insert(Key(pool, number), entry()) is Verdict.admitted
        index.pool_lost(pool)


@pytest.mark.parametrize(
    ("config", "staleness", "message"),
    [
        ({"rate": RateConfig(samples_per_insert=3, error_buffer=20)}, ASYNC, "samples_per_insert=3"),
        ({"rate": RateConfig(error_buffer=8), "max_times": 2}, ASYNC, "sampled 2 times"),
        ({"rate": RateConfig(error_buffer=1)}, ASYNC, "both wait for ever"),
        ({"rate": RateConfig(min_size=99, error_buffer=8)}, hybrid(), r"min_size=99.*no more than 4"),
        ({"rate": RateConfig(0.5, error_buffer=8), **REPLAY}, hybrid(), "it would wait for ever"),
        ({"capacity": 3}, ASYNC, r"capacity=3.*needs 4"),
    ],
)
def test_limits_that_cannot_be_met(config: dict[str, Any], staleness: StalenessConfig, message: str) -> None:  # E11
    with pytest.raises(ConfigError, match=message):
        index_of(staleness, **config)


@pytest.mark.parametrize(
    "wrong", [{"node_quota": 0.0}, {"capacity": 0}, {"max_times": 0}, {"rate": RateConfig(min_size=9), "capacity": 8}]
)
def test_bad_config(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="pool"):
        PoolConfig(**wrong)


# checkpoints


def test_metadata_goes_on_where_pools_still_are() -> None:
    def made() -> Index:
        return index_of(order=Order.prioritised, rate=RateConfig(error_buffer=30.0), max_times=1)

    index = made()
    fill(index, {0: 9, 1: 9})
    index.update_priorities([Key("n0", 3)], [5.0])
    sample = index.sample("p", 4)
    assert sample is not None
    again = made()
    assert load_state(again, state_of(index)) == 0
    index.give_back(sample.number)  # a checkpoint counts what was chosen and not yet learned from as not chosen
    assert len(again) == len(index) == 18 and again.counts.limiter == index.counts.limiter
    masses = [{key: one.shelf.mass(held) for key, held in one.shelf.held.items()} for one in (index, again)]
    assert masses[0] == masses[1] and masses[1][Key("n0", 3)] == pytest.approx(5**0.6)
    state = state_of(again)
    drawn = []
    for _ in range(2):
        one = made()
        load_state(one, state)
        drawn.append(keys(one.sample("p", 9)))
    assert drawn[0] == drawn[1]


def test_entries_of_pools_that_are_gone_are_lost_and_no_burst_comes() -> None:  # D7, E10
    index = index_of(hybrid())
    index.advance(50)
    index.begin("host-0", 0, "n0", 2), index.begin("host-1", 0, "n1", 1)
    fill(index, {0: 2, 1: 1}, version=50)
    again = Index(PoolConfig(capacity=5), hybrid(), seed=1)
    again.join("n1", "n1")
    assert load_state(again, state_of(index)) == 2 and again.counts.losses.node == 2
    assert keys(again.sample("p", 1)) == [("n1", 0)] and again.budget.room == 3 and again.config.capacity == 5


# a node's pool


def test_bytes_are_bounded() -> None:
    pool = NodePool("n0", 100, WhenFull.wait)
    assert pool.put("a", 60) == (0, []) and not pool.has_room(60)
    with pytest.raises(PoolFull, match="pool n0: 60 of 100 bytes are used, 60 more do not fit"):
        pool.put("b", 60)
    pool.remove([0, 5])
    assert pool.put("b", 60) == (1, []) and pool.get([1, 0]) == ["b", None] and pool.fill == 0.6
    with pytest.raises(ConfigError, match=r"node_bytes=100.*101 bytes does not fit into pool n0"):
        pool.has_room(101)
    pool = NodePool("n0", 100, WhenFull.evict)
    assert [pool.put(n, 40)[1] for n in range(4)] == [[], [], [0], [1]]
    assert pool.nbytes == 80 and pool.evicted == 2 and len(pool) == 2
