"""Targets for drawn lives of agents that pause, end, and are cut by the end of a fragment."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcjet.swarm.returns import (
    Trajectories,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    trajectories,
    vtrace,
)

SETTINGS = settings(max_examples=60, deadline=None, derandomize=True)
GAMMA = 0.9
NUMBER = st.floats(-10, 10, width=32)


@dataclass
class Life:
    """One agent: its actions one after the other, each with the turns it pauses before the next."""

    rewards: list[float]
    values: list[float]
    pauses: list[int]
    end: str
    """terminated, truncated or lost (truncated, and nobody saw the last observation)"""
    final: float


@st.composite
def lives(draw: st.DrawFn) -> Life:
    n = draw(st.integers(1, 6))
    numbers = st.lists(NUMBER, min_size=n, max_size=n)
    return Life(
        draw(numbers), draw(numbers), draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)),
        draw(st.sampled_from(["terminated", "truncated", "lost"])), draw(NUMBER),
    )  # fmt: skip


@dataclass
class Row:
    """What a world records of lives in one row."""

    table: dict[str, np.ndarray]
    starts: list[list[int]]
    """For each life, the times of its actions."""

    def steps(self, make: type = np.ndarray) -> Trajectories:
        def column(name: str) -> object:
            array = self.table[name][:, None]
            return torch.from_numpy(array) if make is torch.Tensor else array

        last = column("values")[:1, 0] * 0  # type: ignore[index]
        return trajectories(
            column("rewards"), column("values"), last, gamma=GAMMA, last_present=last != 0,
            **{k: column(k) for k in ("terminated", "truncated", "final_values", "final_known", "present")},
        )  # fmt: skip


def recorded(drawn: list[Life]) -> Row:
    names = ("rewards", "values", "terminated", "truncated", "final_values", "final_known", "present")
    columns: dict[str, list[float]] = {name: [] for name in names}
    starts = []
    for life in drawn:
        times = []
        for i, reward in enumerate(life.rewards):
            times.append(len(columns["rewards"]))
            pause = life.pauses[i]
            # The reward comes in parts: half at once, the rest while it pauses; an end comes at the end of the pause.
            parts = [reward] if not pause else [reward / 2] + [reward / 2 / pause] * pause
            for k, part in enumerate(parts):
                over = i == len(life.rewards) - 1 and k == len(parts) - 1
                columns["rewards"].append(part)
                columns["values"].append(life.values[i] if k == 0 else 99.0)
                columns["present"].append(k == 0)
                columns["terminated"].append(over and life.end == "terminated")
                columns["truncated"].append(over and life.end != "terminated")
                columns["final_values"].append(life.final if over else 77.0)
                columns["final_known"].append(over and life.end != "lost")
        starts.append(times)
    return Row({name: np.array(column, dtype=float) for name, column in columns.items()}, starts)


def monte_carlo(life: Life) -> list[float]:
    """Discounted rewards to the end, by the definition: a sum for each start."""
    bootstrap = {"terminated": 0.0, "truncated": life.final, "lost": life.values[-1]}[life.end]
    n = len(life.rewards) - (life.end == "lost")
    sums = []
    for i in range(len(life.rewards)):
        total = sum(GAMMA ** (k - i) * life.rewards[k] for k in range(i, n))
        sums.append(total + GAMMA ** (n - i) * bootstrap)
    return sums


@SETTINGS
@given(st.lists(lives(), min_size=1, max_size=4), st.sampled_from([np.ndarray, torch.Tensor]))
def test_lambda_one_is_monte_carlo(drawn: list[Life], make: type) -> None:
    row = recorded(drawn)
    steps = row.steps(make)
    returns, advantages = (np.asarray(x)[:, 0] for x in (discounted_returns(steps), gae(steps, gae_lambda=1.0)))
    on_policy = vtrace(steps, steps.values * 0)
    many = np.asarray(n_step_returns(steps, n=50))[:, 0]
    for life, times in zip(drawn, row.starts, strict=True):
        expected = np.array(monte_carlo(life))
        np.testing.assert_allclose(returns[times], expected, atol=1e-9)
        np.testing.assert_allclose(many[times], expected, atol=1e-9)
        np.testing.assert_allclose(np.asarray(on_policy.targets)[times, 0], expected, atol=1e-9)
        known = slice(None, -1 if life.end == "lost" else None)
        np.testing.assert_allclose((advantages[times] + life.values)[known], expected[known], atol=1e-9)
        np.testing.assert_allclose(np.asarray(on_policy.advantages)[times, 0], advantages[times], atol=1e-9)
        assert list(np.asarray(steps.valid)[times, 0])[known] == [True] * len(expected[known])
        assert np.asarray(steps.valid)[times[-1], 0] == (life.end != "lost")


@SETTINGS
@given(st.lists(lives(), min_size=2, max_size=4), st.floats(0, 1), st.lists(NUMBER, min_size=80, max_size=80))
def test_lives_in_one_row_are_those_in_rows_of_their_own(
    drawn: list[Life], lam: float, drawn_ratios: list[float]
) -> None:
    together = recorded(drawn).steps()
    ratios = np.resize(np.array(drawn_ratios) / 10, together.rewards.shape)
    got = targets(together, ratios, lam)
    at = 0
    for life in drawn:
        alone = recorded([life]).steps()
        n = len(alone.rewards)
        for one, other in zip(targets(alone, ratios[at : at + n], lam), got, strict=True):
            np.testing.assert_allclose(other[at : at + n], one, atol=1e-9)
        at += n


def targets(steps: Trajectories, ratios: np.ndarray, lam: float) -> list[np.ndarray]:
    off_policy = vtrace(steps, ratios, lambda_=lam)
    return [
        gae(steps, gae_lambda=lam), lambda_returns(steps, lambda_=lam), n_step_returns(steps, n=2),
        off_policy.targets, off_policy.advantages,
    ]  # fmt: skip


@SETTINGS
@given(st.lists(lives(), min_size=1, max_size=3), st.floats(0, 1))
def test_torch_and_numpy_agree(drawn: list[Life], lam: float) -> None:
    row = recorded(drawn)
    one, two = row.steps(), row.steps(torch.Tensor)
    ratios = np.sin(np.arange(len(one.rewards)))[:, None]
    for a, b in zip(targets(one, ratios, lam), targets(two, torch.from_numpy(ratios), lam), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=0, atol=1e-12)


@SETTINGS
@given(st.integers(2, 12), st.integers(1, 11), st.floats(0, 1), st.integers(0, 2**20))
def test_chunk_edges_are_cuts_with_the_value_of_the_next_observation(n: int, edge: int, lam: float, seed: int) -> None:
    """Chunks [0, edge) and [edge, n): by lambda = 0 nothing changes; else exactly what a cut at the edge gives."""
    edge = min(edge, n - 1)
    rng = np.random.default_rng(seed)
    rewards, values, ends = rng.normal(size=(n, 3)), rng.normal(size=(n + 1, 3)), rng.random((n, 3)) < 0.2
    final = rng.normal(size=(n, 3))

    def chunk(a: int, b: int, cut: np.ndarray) -> Trajectories:
        # A cut at the edge is a truncation whose final observation is the one that follows.
        last = np.where(ends, final, values[1:])
        return trajectories(
            rewards[a:b], values[a:b], values[b], gamma=GAMMA, terminated=rewards[a:b] > 9, truncated=cut[a:b],
            final_values=last[a:b],
        )  # fmt: skip

    cut = ends.copy()
    cut[edge - 1] = True
    whole, first, second = chunk(0, n, cut), chunk(0, edge, ends), chunk(edge, n, ends)
    ratios = rng.normal(size=(n, 3))
    for all_, one, two in zip(
        targets(whole, ratios, lam),
        targets(first, ratios[:edge], lam),
        targets(second, ratios[edge:], lam),
        strict=True,
    ):
        np.testing.assert_allclose(all_, np.concatenate([one, two]), atol=1e-9)
    unchunked = gae(chunk(0, n, ends), gae_lambda=0.0)
    np.testing.assert_allclose(
        np.concatenate([gae(first, gae_lambda=0.0), gae(second, gae_lambda=0.0)]), unchunked, atol=1e-9
    )


def test_a_zero_discount_splits_the_trace() -> None:
    rng = np.random.default_rng(1)
    rewards, values, ratios = rng.normal(size=(8, 2)), rng.normal(size=(9, 2)), rng.normal(size=(8, 2))
    over = np.zeros((8, 2))
    over[3] = 1
    whole = targets(trajectories(rewards, values[:-1], values[-1], gamma=GAMMA, terminated=over), ratios, 0.8)
    parts = [
        targets(trajectories(rewards[s], values[s], values[s.stop], gamma=GAMMA, terminated=over[s]), ratios[s], 0.8)
        for s in (slice(0, 4), slice(4, 8))
    ]
    for all_, one, two in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(all_, np.concatenate([one, two]), atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 5.0, -100.0])
def test_a_constant_value_is_kept_over_time_limits(value: float) -> None:
    """r = (1 - gamma) V makes V exact, so that every advantage is 0, wherever episodes are truncated."""
    truncated = np.random.default_rng(0).random((50, 4)) < 0.2
    steps = trajectories(
        np.full((50, 4), (1 - GAMMA) * value), np.full((50, 4), value), np.full(4, value), gamma=GAMMA,
        terminated=np.zeros((50, 4)), truncated=truncated, final_values=np.full((50, 4), value),
    )  # fmt: skip
    for lam in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(gae(steps, gae_lambda=lam), 0, atol=1e-9)
        np.testing.assert_allclose(vtrace(steps, np.ones((50, 4))).targets, value)


def test_truncation_bootstraps_from_what_came_next_not_from_where_it_stood() -> None:
    steps = trajectories(
        np.ones((1, 1)), np.full((1, 1), 1000.0), np.full(1, -7.0), gamma=GAMMA, terminated=np.zeros((1, 1)),
        truncated=np.ones((1, 1)), final_values=np.full((1, 1), 10.0),
    )  # fmt: skip
    assert discounted_returns(steps)[0, 0] == pytest.approx(10.0)


def test_a_pause_that_outlasts_the_fragment_leaves_its_action_out() -> None:
    present = np.array([[1], [1], [0]])
    steps = trajectories(
        np.ones((3, 1)), np.array([[1.0], [2.0], [0.0]]), np.zeros(1), gamma=GAMMA, terminated=np.zeros((3, 1)),
        present=present, last_present=np.zeros(1),
    )  # fmt: skip
    assert steps.valid[:, 0].tolist() == [True, False, False]
    assert gae(steps, gae_lambda=0.9)[:, 0] == pytest.approx([1 + GAMMA * 2 - 1, 0, 0])


def test_without_a_final_observation_no_bootstrap_is_invented() -> None:
    steps = trajectories(
        np.ones((2, 1)), np.array([[3.0], [4.0]]), np.full(1, 50.0), gamma=GAMMA, terminated=np.zeros((2, 1)),
        truncated=np.array([[0], [1]]),
    )  # fmt: skip
    assert steps.valid[:, 0].tolist() == [True, False]
    assert discounted_returns(steps)[:, 0] == pytest.approx([1 + GAMMA * 4, 4.0])


def test_what_stands_in_a_row_between_two_lives_belongs_to_neither() -> None:
    steps = trajectories(
        np.array([[1.0], [50.0], [2.0]]), np.full((3, 1), 7.0), np.full(1, 5.0), gamma=GAMMA,
        terminated=np.array([[1], [0], [0]]), truncated=np.array([[0], [1], [0]]), final_values=np.full((3, 1), 9.0),
        present=np.array([[1], [0], [1]]),
    )  # fmt: skip
    assert steps.valid[:, 0].tolist() == [True, False, True]
    assert discounted_returns(steps)[[0, 2], 0] == pytest.approx([1.0, 2 + GAMMA * 5])
