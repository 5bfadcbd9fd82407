"""The bound on staleness: one rule for sync, hybrid and async; recovery; what is lost is made up for."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.config.swarm.staleness import StalenessConfig, StalenessMode
from hpcjet.errors import ConfigError
from hpcjet.swarm.staleness import Budget, Freshness


def config(eta: int | None, fragments: int = 4) -> StalenessConfig:
    mode = StalenessMode["async"] if eta is None else StalenessMode.hybrid if eta else StalenessMode.sync
    return StalenessConfig(mode, eta=eta or 0, fragments=fragments)


def ages(budget: Budget, rng: np.random.Generator, steps: int = 400) -> list[int]:
    """How old each fragment is when it is learned from, while four sources and a learner go in any order.

    A source begins with the newest version; those that come first are learned from first.
    """
    begun: deque[tuple[int, str]] = deque()
    done: list[int] = []
    for _ in range(steps):
        if rng.random() < 0.8:
            source = f"host-{rng.integers(4)}"
            if budget.begin(source):
                begun.append((budget.version, source))
        elif len(begun) >= budget.config.fragments:
            for _ in range(budget.config.fragments):
                version, source = begun.popleft()
                if rng.random() < 0.1:  # it broke, and another is begun in its place
                    budget.give_up(source, 1)
                    assert budget.begin(source)
                    version = budget.version
                budget.admit(source)
                done.append(budget.version - version)
            budget.advance(budget.version + 1)
    return done


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 5), st.integers(1, 7), st.integers(0, 2**20), st.integers(0, 60))
def test_nothing_learned_from_is_older_than_eta(eta: int, fragments: int, seed: int, begin_at: int) -> None:
    budget = Budget(config(eta, fragments))
    budget.recover(begin_at, 0)
    done = ages(budget, np.random.default_rng(seed))
    assert done and max(done) <= eta


def test_the_bound_is_reached_and_async_has_none() -> None:
    assert max(ages(Budget(config(2)), np.random.default_rng(0))) == 2
    assert max(ages(Budget(config(None)), np.random.default_rng(0))) > 5
    assert Budget(config(None)).room is None


def test_sync_begins_exactly_one_batch_for_each_version() -> None:
    budget = Budget(config(0))
    for version in range(3):
        assert [budget.begin("host") for _ in range(6)] == [True] * 4 + [False] * 2
        budget.admit("host", 4)
        assert not budget.begin("host")
        budget.advance(version + 1)


def test_a_resume_lets_no_burst_in() -> None:  # D7
    budget = Budget(config(2))
    budget.load_state_dict({"version": 50}, usable=3)
    assert budget.room == 3 * 4 - 3
    naive = Budget(config(2))
    naive.advance(50)
    assert naive.room == 53 * 4


def test_what_is_lost_is_made_up_for_one_by_one() -> None:  # D8, a node that dies
    budget = Budget(config(0))
    assert budget.begin("a", 2) and budget.begin("b", 2) and budget.room == 0
    budget.admit("a")
    assert budget.give_up("b") == 2 and budget.room == 2
    budget.lose(1)
    assert budget.room == 3 and budget.in_flight == 1
    assert not budget.begin("b", 5)
    assert budget.give_up("b") == 0 and budget.give_up("a", 7) == 1 and budget.room == 4
    assert budget.begin("b", 5) and budget.room == -1  # else nobody ever could


def test_what_is_fresh() -> None:
    assert [Freshness(7, 2).allows(version) for version in (4, 5, 7)] == [False, True, True]
    assert Freshness(7, None).allows(0) and Freshness(1, 2).oldest == 0 and Freshness(7, 0).oldest == 7
    assert Freshness(7, 2).age(4) == 3


def test_bad_numbers() -> None:
    with pytest.raises(ConfigError, match=r"staleness\.eta=-1"):
        StalenessConfig(eta=-1)
    with pytest.raises(ConfigError, match=r"staleness\.fragments=0"):
        Budget(StalenessConfig())
    with pytest.raises(ConfigError, match=r"staleness\.fragments=-1"):
        StalenessConfig(fragments=-1)
    assert [StalenessConfig(fragments=n).resolved(4, 3).fragments for n in (0, 5)] == [12, 5]
    budget = Budget(config(1))
    budget.advance(3)
    with pytest.raises(ValueError, match="recover"):
        budget.advance(2)
    with pytest.raises(ConfigError):
        budget.recover(-1, 0)
