"""Several ranks learn as one would, whatever each of them has."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from swarm_fragments import equal, formation, fragment_of, learner_for, settings
from swarm_threads import OfThread, Threads
from swarm_two_ranks import CASES, alone

from hpcjet.config.swarm.learner import Algorithm
from hpcjet.swarm.learning.ranks import ALONE, everyones, shares

HERE = Path(__file__).parent
GIVE_UP_S = 300


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[2]), "GLOO_SOCKET_IFNAME": "lo"}
    begun = [
        subprocess.Popen([sys.executable, str(HERE / "swarm_two_ranks.py"), str(rank), str(folder)], env=env)
        for rank in range(2)
    ]
    try:
        assert [each.wait(GIVE_UP_S) for each in begun] == [0, 0]
    finally:
        for each in begun:
            each.kill()
            each.wait()
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_over_gloo(case: str, two: Path) -> None:
    first, second = (dict(np.load(two / f"{case}-{rank}.npz")) for rank in range(2))
    assert equal(list(first), list(second))
    for name, part in first.items():
        np.testing.assert_array_equal(part, second[name], err_msg=f"{name}: ranks differ")
    whole = alone(case)
    assert whole["metric samples"] == first["metric samples"] > 0
    if "many steps" in case:
        return  # other minibatches than alone
    for name, part in whole.items():
        tolerance = 1e-4 if name.startswith("metric") else 1e-6
        np.testing.assert_allclose(first[name], part, atol=tolerance, rtol=tolerance, err_msg=name)


def test_a_node_of_its_own_is_standardised_apart(two: Path) -> None:
    apart, together = (dict(np.load(two / f"{case}-0.npz")) for case in ("vtrace, by node", "vtrace"))
    assert any(np.abs(apart[name] - together[name]).max() > 1e-5 for name in apart if not name.startswith("metric"))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 30))
def test_shares_use_all_and_are_even(counts: list[int], parts: int) -> None:
    found = shares(counts, parts)
    assert [sum(of_rank) for of_rank in found] == counts
    totals = [sum(part) for part in zip(*found, strict=True)]
    assert max(totals) - min(totals) <= 1
    if len(counts) == 1:
        assert found[0] == [len(part) for part in np.array_split(np.arange(counts[0]), parts)]


@pytest.mark.parametrize("counts", [(7, 0, 90), (1, 1, 1), (0, 0, 5)], ids=str)
def test_each_sample_is_used_once_in_each_epoch_and_ranks_take_the_same_steps(counts: tuple[int, ...]) -> None:
    def rank(ranks: OfThread) -> tuple[list[np.ndarray], list[int]]:
        learner: Any = learner_for(formation(), settings(Algorithm.ppo), ranks)
        learner.begin(1.0)
        own = np.arange(counts[ranks.rank]) + 1000 * ranks.rank
        all_counts = everyones(ranks, len(own))
        both = [list(learner.minibatches(own, all_counts, 8)) for _ in range(2)]
        for epoch in both:
            assert sorted(np.concatenate([part for part, _ in epoch])) == list(own)
        return [part for part, _ in both[0]], [total for _, total in both[0]]

    found = Threads(3).all(rank)
    totals = found[0][1]
    assert all(each[1] == totals for each in found) and sum(totals) == sum(counts) and max(totals) <= 8
    assert [sum(len(each[0][at]) for each in found) for at in range(len(totals))] == totals


@pytest.mark.parametrize("algorithm", list(Algorithm), ids=lambda each: each.name)
@pytest.mark.parametrize("given", [(0, 2), (0, 0, 2), (1, 2, 0)], ids=str)
def test_uneven_ranks_never_wait_for_each_other_and_stay_equal(algorithm: Algorithm, given: tuple[int, ...]) -> None:
    config = settings(algorithm, minibatch=40)
    made = [fragment_of(formation(seed), learner_for(formation(), config)) for seed in range(2)]

    def rank(ranks: OfThread) -> Any:
        learner = learner_for(formation(), config, ranks)
        for _ in range(2):
            metrics = learner.update(made[: given[ranks.rank]])
        return learner.state_dict(), metrics

    first, *others = Threads(len(given)).all(rank)
    assert first[0]["version"] == 2 and first[1]["samples"] == 180 * sum(given)
    assert all(equal(first, other) for other in others)


@pytest.mark.parametrize("algorithm", list(Algorithm), ids=lambda each: each.name)
def test_nothing_on_all_ranks_leaves_the_weights(algorithm: Algorithm) -> None:
    before = learner_for(formation(), settings(algorithm)).policy.weights()

    def rank(ranks: OfThread) -> Any:
        learner = learner_for(formation(), settings(algorithm), ranks)
        return learner.update([]), learner.policy.weights(), learner.policy.version

    for metrics, weights, version in Threads(2).all(rank):
        assert (metrics, version) == ({"samples": 0.0}, 1) and equal(weights, before)


def test_the_rate_scales_the_step_and_is_not_remembered() -> None:
    config = settings(Algorithm.ppo, minibatch=10_000, epochs=1)
    moved = []
    for rate in (1.0, 0.25):
        learner = learner_for(formation(), config, ALONE)
        fragment = fragment_of(formation(), learner)
        before = learner.policy.weights()["actor.0.weight"]
        learner.update([fragment], rate=rate)
        moved.append(learner.policy.weights()["actor.0.weight"] - before)
        assert "lr" not in str(learner.state_dict()["optimiser"].keys())
    np.testing.assert_allclose(moved[1], moved[0] / 4, rtol=1e-3, atol=1e-7)
