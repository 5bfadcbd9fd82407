"""Targets against published numbers and numbers computed with other code, in numpy and in torch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from hpcjet.swarm.returns import (
    Trajectories,
    discounted_returns,
    gae,
    lambda_returns,
    n_step_returns,
    trajectories,
    vtrace,
)

Make = Callable[[Any], Any]
BACKENDS: dict[str, Make] = {
    "numpy": lambda x: np.asarray(x, dtype=np.float64),
    "torch": lambda x: torch.tensor(np.asarray(x), dtype=torch.float64),
}


@pytest.fixture(params=BACKENDS)
def make(request: pytest.FixtureRequest) -> Make:
    return BACKENDS[request.param]


def steps_of(make: Make, rewards: Any, values: Any, next_values: Any, discounts: Any, cut: Any = None) -> Trajectories:
    """Rows in the outer axis, as the sources print them; time-major inside."""
    arrays = [make(np.asarray(each, dtype=float).T) for each in (rewards, values, next_values, discounts)]
    no = arrays[0] != arrays[0]
    ended = no if cut is None else make(np.asarray(cut, dtype=float).T) != 0
    return Trajectories(
        rewards=arrays[0], values=arrays[1], next_values=arrays[2], discounts=arrays[3], cut=ended, valid=~no, absent=no
    )


def close(actual: Any, expected: Any, **tolerance: float) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), **(tolerance or {"rtol": 0, "atol": 1e-6}))


# V-trace

VS_A = [0.20018185, 2.70968245, 8.51362793, 11.93239657, 7.33]
ADVANTAGES_A = [0.20018185, 1.70968245, 6.51362793, 10.87661422, 1.98]
VS_A5 = [
    [0.92981553, 0.55643743, 0.81689456, 1.18976714, 1.65499548],
    [12.58608004, 6.12260441, 6.0147728, 6.85831495, 8.22333481],
    [53.2502314, 29.47221326, 27.54514549, 29.03719032, 31.86115477],
    [84.99705182, 62.25252727, 60.63227842, 66.03655258, 76.13018167],
    [66.53, 69.69, 72.85, 76.01, 79.17],
]
ADVANTAGES_A5 = [
    [0.92981553, 0.35643743, 0.41689456, 0.58976714, 0.85499548],
    [11.58608004, 4.92260441, 4.6147728, 5.25831495, 6.42333481],
    [51.2502314, 27.27221326, 25.14514549, 27.91465497, 33.61611797],
    [118.50513877, 88.92832644, 78.001, 69.30495, 64.79132],
    [37.18, 38.94, 40.7, 42.46, 44.22],
]


def test_vtrace_of_one_row(make: Make) -> None:
    v = np.arange(5.0)
    steps = steps_of(make, [v], [v], [[1, 2, 3, 4, 1]], np.full((1, 5), 0.9))
    result = vtrace(steps, make(5 * (np.arange(5) / 5 - 0.5))[:, None], clip_rho=3.7, clip_pg_rho=2.2)
    close(result.targets[:, 0], VS_A)
    close(result.advantages[:, 0], ADVANTAGES_A)


def test_vtrace_of_five_rows(make: Make) -> None:
    rewards = np.arange(25.0).reshape(5, 5)
    values, bootstrap = rewards / 5, np.arange(1.0, 6.0)
    discounts = np.broadcast_to(0.9 / np.arange(1, 6), (5, 5))
    following = np.vstack([values[1:], bootstrap])
    steps = steps_of(make, rewards.T, values.T, following.T, discounts.T)
    result = vtrace(steps, make(5 * (rewards / 25 - 0.5)), clip_rho=3.7, clip_pg_rho=2.2)
    close(result.targets, VS_A5)
    close(result.advantages, ADVANTAGES_A5)


def test_vtrace_of_rlax(make: Make) -> None:
    ratios = [[0.47515128, 22.31222368, 0.0387608, 3.2206988], [95.63917506, 0.88090578, 0.00001143, 1.90854358]]
    values = np.array([[2.1, 1.1, -3.1, 0], [3.1, 0.1, -1.1, 7.4]])
    following = np.hstack([values[:, 1:], [[8.4], [-1.2]]])
    rewards, discounts = [[-1.3, -1.3, 2.3, 42], [1.3, 5.3, -3.3, -5]], [[0, 0.89, 0.85, 0.99], [0.88, 1, 0.83, 0.95]]
    result = vtrace(steps_of(make, rewards, values, following, discounts), make(np.log(ratios).T))
    expected = [[-1.6155143, -3.4973226, 1.8670533, 50.316002], [1.4662437, 3.6116405, -8.3327e-5, -13.54]]
    close(np.asarray(result.targets).T - values, expected, rtol=1e-3)
    close(np.asarray(result.advantages).T, expected, rtol=1e-3)


def test_a_truncation_inside_a_batch_does_not_see_the_next_trajectory(make: Make) -> None:
    values = [[1, 1, 100, 100]]
    steps = steps_of(make, np.zeros((1, 4)), values, values, np.ones((1, 4)), [[0, 1, 0, 1]])
    result = vtrace(steps, make(np.zeros((4, 1))))
    close(result.targets[:, 0], values[0])
    close(result.advantages[:, 0], np.zeros(4))
    close(gae(steps, gae_lambda=0.95)[:, 0], np.zeros(4))
    close(lambda_returns(steps, lambda_=0.7)[:, 0], values[0])


@pytest.mark.parametrize("lambda_", [0.0, 0.6])
def test_vtrace_with_lambda_by_the_sum_of_the_paper(make: Make, lambda_: float) -> None:
    """v_s = V_s + sum over t of gamma^(t-s) c_s ... c_(t-1) delta_t, the sum written out; c has lambda in it."""
    rng = np.random.default_rng(0)
    rewards, values, log_ratios = rng.normal(size=(3, 6))
    following, gamma = np.append(values[1:], 0.7), 0.9
    ratios = np.exp(log_ratios)
    c, deltas = lambda_ * np.minimum(1.1, ratios), np.minimum(1.3, ratios) * (rewards + gamma * following - values)
    v = np.array([
        values[s] + sum(gamma ** (t - s) * np.prod(c[s:t]) * deltas[t] for t in range(s, 6)) for s in range(6)
    ])  # fmt: skip
    advantages = np.minimum(1.2, ratios) * (rewards + gamma * np.append(v[1:], 0.7) - values)
    steps = steps_of(make, [rewards], [values], [following], np.full((1, 6), gamma))
    result = vtrace(steps, make(log_ratios)[:, None], lambda_=lambda_, clip_rho=1.3, clip_c=1.1, clip_pg_rho=1.2)
    close(result.targets[:, 0], v)
    close(result.advantages[:, 0], advantages)


# GAE

GAE_RLAX = {
    1.0: [[-1.45118805, -4.45574551, 2.539651, 0.5249, -0.49], [3, 2, 1, 0, -4.9]],
    0.95: [[-1.3516661, -4.5844403, 2.53648028, 0.549155, -0.49], [2.871525, 1.955, 1, 0, -4.9]],
    0.7: [[-0.6769795, -5.24816666, 2.48460799, 0.67043, -0.49], [2.2899, 1.73, 1, 0, -4.9]],
    0.4: [[0.56731873, -6.04212442, 2.34312016, 0.81596, -0.49], [1.7256, 1.46, 1, 0, -4.9]],
}


@pytest.mark.parametrize("gae_lambda", GAE_RLAX)
def test_gae_of_rlax(make: Make, gae_lambda: float) -> None:
    values = np.array([[1, 4, -3, -2, -1, -1], [-3, -2, -1, 0, 5, -1]])
    discounts = [[0.99] * 5, [0.9, 0.9, 0.9, 0, 0.9]]
    rewards = [[0, 0, 1, 0, -0.5], [0, 0, 0, 0, 1]]
    steps = steps_of(make, rewards, values[:, :-1], values[:, 1:], discounts)
    close(np.asarray(gae(steps, gae_lambda=gae_lambda)).T, GAE_RLAX[gae_lambda])


@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [
        ([0, 0, 0, 0], [0, 1, 0, 0], [2.3081855, 1.291, 1.5594285, 0.497]),
        ([0, 1, 0, 0], [0, 0, 0, 0], [1.4702, 0.4, 1.5594285, 0.497]),
        ([0, 0, 0, 0], [0, 0, 0, 0], [3.68756278, 2.7576425, 1.5594285, 0.497]),
    ],
    ids=["truncated", "terminated", "no end"],
)
def test_gae_tells_the_ends_apart(
    make: Make, terminated: list[int], truncated: list[int], expected: list[float]
) -> None:
    term, trunc = np.array([terminated]), np.array([truncated])
    steps = steps_of(
        make, [[1, 1, 1, 1]], [[0.5, 0.6, 0.7, 0.8]], [[0.6, 0.9, 0.8, 0.3]], 0.99 * (1 - term), term | trunc
    )
    close(gae(steps, gae_lambda=0.95)[:, 0], expected)


def test_gae_of_recorded_ends(make: Make) -> None:
    """The truncated case again, from what a world says: the final observation is worth 0.9, the next one 0.7."""
    column = {"values": [0.5, 0.6, 0.7, 0.8], "rewards": [1, 1, 1, 1]}
    steps = trajectories(
        make(column["rewards"])[:, None], make(column["values"])[:, None], make([0.3]), gamma=0.99,
        terminated=make(np.zeros((4, 1))), truncated=make([[0], [1], [0], [0]]),
        final_values=make([[9], [0.9], [9], [9]]),
    )  # fmt: skip
    close(gae(steps, gae_lambda=0.95)[:, 0], [2.3081855, 1.291, 1.5594285, 0.497])


# returns

R, G, V = [[1, 0, -1, 0, 1]], [[0.5, 0.9, 1, 0.5, 0.8]], [[3, 1, 5, -5, 3]]


def test_returns_of_rlax(make: Make) -> None:
    steps = steps_of(make, R, [[9, 9, 9, 9, 9]], V, G)
    close(lambda_returns(steps, lambda_=0.75)[:, 0], [1.6460547, 0.72281253, 0.7375001, 0.6500001, 3.4])
    close(discounted_returns(steps)[:, 0], [1.315, 0.63, 0.7, 1.7, 3.4])
    close(n_step_returns(steps, n=3)[:, 0], [2.8, -3.15, 0.7, 1.7, 3.4])


def test_targets_carry_no_gradient() -> None:
    values, ratios = torch.ones(3, 2, requires_grad=True), torch.zeros(3, 2, requires_grad=True)
    steps = trajectories(torch.ones(3, 2), values, values[0], gamma=0.9, terminated=torch.zeros(3, 2))
    result = vtrace(steps, ratios)
    assert not result.targets.requires_grad and not result.advantages.requires_grad
    assert not gae(steps, gae_lambda=0.9).requires_grad


def test_shapes_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="next_values has shape"):
        array = np.zeros((3, 2))
        mask = array > 0
        Trajectories(
            rewards=array, discounts=array, values=array, next_values=array[1:], cut=mask, valid=mask, absent=mask
        )
    with pytest.raises(ValueError, match="n=0"):
        n_step_returns(steps_of(BACKENDS["numpy"], R, V, V, G), n=0)
