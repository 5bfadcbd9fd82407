"""Drawing by priority: the numbers of the definition, the same distribution over shards, edges; the rate limiter."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.errors import ConfigError
from hpcjet.swarm.sampling import NothingToDraw, Priorities, RateLimiter, draw_sharded, weights
from hpcjet.swarm.sampling.priorities import all_totals
from hpcjet.swarm.sampling.tree import SumTree

SETTINGS = settings(max_examples=80, deadline=None, derandomize=True)
FOUR = np.array([1.0, 2.0, 3.0, 4.0])
P = [0.1482295, 0.22467391, 0.28655461, 0.34054197]
W = [1, 0.84674531, 0.76822936, 0.71697762]


def priorities_of(values: np.ndarray, alpha: float = 0.6) -> Priorities:
    made = Priorities(len(values), alpha=alpha)
    made.update(np.arange(len(values)), values)
    return made


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


def test_probabilities_and_weights() -> None:
    one = priorities_of(FOUR)
    mass = one.mass(np.arange(4))
    np.testing.assert_allclose(mass / one.totals.mass, P, atol=1e-7)
    np.testing.assert_allclose(weights(mass, one.totals, beta=0.4), W, atol=1e-7)


def test_flat_and_sharded_draws_have_the_same_distribution() -> None:
    """The chi-square statistic of 40 classes: below 72 in all but one case of a thousand, and the seed is fixed."""
    rng = np.random.default_rng(7)
    values = rng.gamma(0.5, size=40) + 0.01
    values[[3, 11, 12, 13]] = 0
    flat = priorities_of(values)
    bounds = [0, 1, 11, 14, 33, 40]  # the shard from 11 to 13 holds nothing that can be drawn
    shards = [priorities_of(values[a:b]) for a, b in pairwise(bounds)]
    n, drawn = 200_000, np.zeros((2, 40))
    drawn[0] = np.bincount(flat.draw(n, rng), minlength=40)
    for _ in range(50):
        for shard, begin, count in zip(
            shards, bounds[:-1], draw_sharded([s.totals for s in shards], n // 50, rng), strict=True
        ):
            if count:
                drawn[1] += np.bincount(shard.draw(count, rng) + begin, minlength=40)
    assert drawn.sum(axis=1).tolist() == [n, n]
    probability = flat.mass(np.arange(40)) / flat.totals.mass
    there = probability > 0
    assert not drawn[:, ~there].any()
    for counts in drawn:
        assert chi_square(counts[there], n * probability[there]) < 72
    # A shard drawn too often would be seen: the same test refuses equal shares for all shards.
    wrong = np.concatenate([np.full(b - a, 1 / 4 / max(there[a:b].sum(), 1)) for a, b in pairwise(bounds)])
    assert chi_square(drawn[1][there], n * wrong[there]) > 1000


def test_weights_over_shards_are_those_of_the_whole() -> None:
    """The greatest weight is of all shards, not of each."""
    shards = [priorities_of(FOUR[2:]), priorities_of(FOUR[:2])]
    totals = all_totals(shard.totals for shard in shards)
    assert totals.count == 4 and totals.mass == pytest.approx(priorities_of(FOUR).totals.mass)
    got = np.concatenate([weights(shard.mass(np.arange(2)), totals, beta=0.4) for shard in shards])
    np.testing.assert_allclose(got, [*W[2:], *W[:2]], atol=1e-7)


@SETTINGS
@given(st.lists(st.sampled_from([0.0, 1e-12, 0.3, 1.0, 7.5, 1e9]), min_size=1, max_size=40), st.integers(0, 2**20))
def test_what_has_no_priority_is_never_drawn(values: list[float], seed: int) -> None:
    one = priorities_of(np.array(values), alpha=1.0)
    rng = np.random.default_rng(seed)
    assert one.totals.count == np.count_nonzero(values)
    if not any(values):
        with pytest.raises(NothingToDraw):
            one.draw(1, rng)
        with pytest.raises(NothingToDraw):
            draw_sharded([one.totals] * 2, 5, rng)
        return
    assert (np.array(values)[one.draw(200, rng)] > 0).all()
    edges = np.nextafter(np.cumsum(values), [0.0] * len(values)).clip(0)
    found = one._tree.find(np.concatenate([edges, [0.0, one.totals.mass, 2 * one.totals.mass]]))
    assert (np.array(values)[found] > 0).all()
    assert found[-1] == found[-2] == np.flatnonzero(values)[-1]


@SETTINGS
@given(st.integers(1, 33), st.integers(0, 2**20))
def test_the_tree_is_the_running_sum(capacity: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree, values = SumTree(capacity), np.zeros(capacity)
    for _ in range(6):
        places = rng.integers(0, capacity, rng.integers(1, 9))
        new = rng.integers(0, 5, len(places)).astype(float)
        tree[places] = new
        for place, value in zip(places, new, strict=True):
            values[place] = value
        place, value = int(rng.integers(capacity)), float(rng.integers(0, 5))
        tree.put(place, value)
        values[place] = value
        assert tree.at(place) == value
    assert tree.total == values.sum() and tree.most == values.max()
    assert tree.least == min((value for value in values if value > 0), default=np.inf)
    if tree.total:
        points = np.arange(int(tree.total)).astype(float)
        assert tree.find(points).tolist() == np.searchsorted(np.cumsum(values), points, side="right").tolist()


def test_new_entries_have_the_greatest_priority_of_now() -> None:
    one = priorities_of(np.array([100.0, 0.0, 0.0]), alpha=1.0)
    one.update(np.array([0]), np.array([1e-3]))
    one.insert(np.array([1]))
    assert one.mass(np.array([1])) == 1e-3
    one.remove(np.array([0, 1]))
    assert one.totals.count == 0
    one.insert(np.array([2]))
    assert one.mass(np.array([2])) == 1.0 and one.draw(3, np.random.default_rng(0)).tolist() == [2, 2, 2]


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_priorities_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        SumTree(3).put(0, wrong)
    with pytest.raises(ValueError, match="finite and 0 or more"):
        priorities_of(np.array([1.0, wrong]))
    with pytest.raises(IndexError, match="0 to 1"):
        priorities_of(FOUR[:2]).update(np.array([2]), np.array([1.0]))


# the rate limiter


def stuck(limiter: RateLimiter, rng: np.random.Generator, steps: int = 150) -> bool:
    """Whether both wait at some point, while one and the other come in any order."""
    for _ in range(steps):
        insert, sample = limiter.may_insert(limiter.insert_batch), limiter.may_sample(limiter.sample_batch)
        if not (insert or sample):
            return True
        if insert and (not sample or rng.random() < 0.5):
            begun = limiter.inserts >= limiter.min_size
            limiter.inserted(limiter.insert_batch)
            assert not begun or limiter.diff <= limiter.max_diff + 1e-6
        else:
            limiter.sampled(limiter.sample_batch)
            assert limiter.diff >= limiter.min_diff - 1e-6
    return False


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    st.sampled_from([0.1, 0.5, 1.0, 3.0, 8.0, 256.0]), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9),
    st.floats(0.1, 3.0), st.integers(0, 2**20),
)  # fmt: skip
def test_limits_that_are_accepted_never_lock(
    ratio: float, min_size: int, insert_batch: int, sample_batch: int, width: float, seed: int
) -> None:
    buffer = width * (insert_batch * ratio + sample_batch) / 2
    try:
        limiter = RateLimiter.around(
            ratio, min_size=min_size, error_buffer=buffer, insert_batch=insert_batch, sample_batch=sample_batch
        )
    except ConfigError:
        assert width < 1.01
        return
    assert width > 0.99
    assert not stuck(limiter, np.random.default_rng(seed))
    assert limiter.samples > 0


def test_limits_that_lock_are_refused_and_would_lock() -> None:  # E11
    limits = {"samples_per_insert": 256.0, "min_size": 1, "min_diff": 246.0, "max_diff": 266.0}
    with pytest.raises(ConfigError, match="both wait for ever"):
        RateLimiter(**limits, insert_batch=1, sample_batch=32)  # type: ignore[arg-type]
    unchecked = RateLimiter(1.0, 1, 0.0, 2.0)
    unchecked.__dict__.update(limits, sample_batch=32)
    assert stuck(unchecked, np.random.default_rng(0))
    with pytest.raises(ConfigError, match=r"rate_limiter\.min_size=0"):
        RateLimiter(1.0, 0, 0, 10)


def test_the_ratio_is_kept() -> None:
    limiter = RateLimiter.around(4.0, min_size=10, error_buffer=40.0, sample_batch=8)
    assert not stuck(limiter, np.random.default_rng(1), 5000)
    assert limiter.samples / limiter.inserts == pytest.approx(4.0, rel=0.1)
    assert limiter.min_diff <= limiter.diff <= limiter.max_diff
