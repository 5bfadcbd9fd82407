"""What is drawn by metadata, from pools on many nodes, is what one central pool would give."""

from collections import Counter

import numpy as np
import pytest

from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.swarm.pool import Entry, Index, Key, Order, PoolConfig, WhenFull

HELD = {"n0": 24, "n1": 9, "n2": 3}
"""Fragments of each node, dealt to two groups."""
BATCH, DRAWS, ALPHA = 12, 800, 0.7
MOST = 4.5
"""A normal number is beyond it once in 150,000 times, and the seeds are fixed."""


def index_of(order: Order, quota: float, *, central: bool, seed: int) -> Index:
    config = PoolConfig(
        order=order, node_quota=quota, group_quota=max(quota, 0.6), alpha=ALPHA, max_times=0, when_full=WhenFull.evict
    )
    made = Index(config, StalenessConfig(StalenessMode["async"], fragments=BATCH), seed=seed)
    for at, node in enumerate(HELD):
        made.join("learner's" if central else node, "n9" if central else node)
        for number in range(HELD[node]):
            entry = Entry(
                source=node, attempt=0, node=node, first_world=0, worlds=1, policy="p", group=f"g{number % 3 == 0}",
                first_step=number, steps=1, agent_steps=1, version=0, nbytes=1, priority=priority(node, number),
            )  # fmt: skip
            made.insert(Key("learner's", 100 * at + number) if central else Key(node, number), entry)
    return made


def priority(node: str, number: int) -> float:
    return 0.2 + (number * 7919 + int(node[1]) * 31) % 97 / 20


def drawn(index: Index) -> Counter[tuple[str, int]]:
    counts: Counter[tuple[str, int]] = Counter()
    for _ in range(DRAWS):
        sample = index.sample("p", BATCH)
        assert sample is not None
        nodes = Counter(chosen.entry.node for chosen in sample.chosen)
        assert max(nodes.values()) <= max(index.config.node_quota, 1 / 3) * BATCH + 1e-9 or sample.over_quota
        counts.update((chosen.entry.source, chosen.entry.first_step) for chosen in sample.chosen)
        index.done(sample.number)
    return counts


def standard(chi_square: float, degrees: int) -> float:
    """As a standard normal number (Wilson and Hilferty)."""
    return float(((chi_square / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / np.sqrt(2 / (9 * degrees)))


def unlike(one: Counter[tuple[str, int]], other: Counter[tuple[str, int]]) -> float:
    a, b = (np.array([each[key] for key in sorted(one | other)], float) for each in (one, other))
    return standard(float(((a - b) ** 2 / (a + b)).sum()), len(a) - 1)


@pytest.mark.parametrize("order", [Order.uniform, Order.prioritised], ids=lambda order: order.name)
@pytest.mark.parametrize("quota", [1.0, 0.5], ids=["no quotas", "quotas"])
def test_many_pools_and_one_give_the_same(order: Order, quota: float) -> None:
    federated, central = (
        drawn(index_of(order, quota, central=central, seed=seed)) for seed, central in enumerate((False, True))
    )
    assert len(federated) == sum(HELD.values())
    assert abs(unlike(federated, central)) < MOST
    if quota == 1.0:
        mass = {key: priority(*key) ** ALPHA if order is Order.prioritised else 1.0 for key in federated}
        total, scale = sum(mass.values()), BATCH * DRAWS
        for counts in (federated, central):
            expected = {key: scale * each / total for key, each in mass.items()}
            off = sum((counts[key] - each) ** 2 / each for key, each in expected.items())
            assert abs(standard(off, len(expected) - 1)) < MOST


def test_the_test_would_see_a_node_that_is_preferred() -> None:
    fair = drawn(index_of(Order.uniform, 1.0, central=False, seed=0))
    quotas = drawn(index_of(Order.uniform, 0.5, central=False, seed=1))
    assert unlike(fair, quotas) > 3 * MOST
