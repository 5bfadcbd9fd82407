"""The formation: neighbours, rewards that telescope, shapes, episodes, its cost, and its faces."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test

from hpcjet.config.swarm.formation import Shape
from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.formation import FormationConfig, FormationCore, FormationVector, Start
from hpcjet.swarm.formation.gymnasium_face import FormationEnv
from hpcjet.swarm.formation.neighbours import Neighbours
from hpcjet.swarm.formation.parallel_face import FormationParallelEnv
from hpcjet.swarm.formation.shapes import slots
from hpcjet.swarm.formation.vector import GROUP

SMALL = FormationConfig(agents=12, steps=20)


# neighbours


def brute_force(position: np.ndarray, worlds: int, k: int, sight: float) -> tuple[np.ndarray, np.ndarray]:
    size = position.shape[1]
    squared = ((position[:, :, None] - position[:, None, :]) ** 2).sum(axis=0)
    world = np.arange(size) // (size // worlds)
    squared[(world[:, None] != world[None, :]) | np.eye(size, dtype=bool) | (squared >= sight**2)] = np.inf
    order = np.argsort(squared, axis=1, kind="stable")[:, :k].T
    ranked = np.take_along_axis(squared, order.T, axis=1).T
    padded, near = np.full((k, size), size), np.full((k, size), np.inf)
    padded[: len(order)], near[: len(order)] = np.where(np.isinf(ranked), size, order), ranked
    return padded, near


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.integers(1, 4), st.integers(1, 30), st.floats(0.05, 20), st.integers(1, 6), st.integers(0, 2**20), st.booleans()
)  # fmt: skip
def test_neighbours_are_those_of_brute_force(
    worlds: int, agents: int, extent: float, k: int, seed: int, crowd: bool
) -> None:
    rng = np.random.default_rng(seed)
    finder = Neighbours(worlds, agents, sight=0.5, k=k)
    position = rng.uniform(-extent, extent, (2, worlds * agents)).astype(np.float32)
    if crowd:
        position[:, ::2] *= 0.01
    for _ in range(2):  # the second call starts from the order of the first
        found, nearest = finder.find(position)
        expected, squared = brute_force(position, worlds, k, 0.5)
        assert (found == expected).all() and np.array_equal(nearest, squared[0].astype(np.float32))
        position = position + rng.uniform(-0.2, 0.2, position.shape).astype(np.float32)


def test_agents_far_apart_take_no_more_memory() -> None:
    position = np.array([[-1e6, 1e6, 1e6 + 0.1], [1e6, -1e6, -1e6]])
    found, _ = Neighbours(1, 3, sight=0.5, k=1).find(position)
    assert found.tolist() == [[3, 2, 1]]


# the world


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("start", list(Start))
def test_rewards_add_up_to_the_way_that_was_made_good(dtype: type, start: Start) -> None:
    config = replace(SMALL, reward_factor=3.0, final_reward=2.0, start=start, spacing=0.02, start_spread=0.1)
    core = FormationCore(config, 5, seed=1, dtype=dtype)
    out = np.empty((core.size, config.observation_size), dtype=np.float32)
    core.reset()
    core.observe(out)
    first, total, collisions = core.distance.copy(), np.zeros(core.size), np.zeros(core.size)
    rng = np.random.default_rng(0)
    while not core.ended.all():
        before = core.distance.copy()
        core.move(rng.uniform(-1, 1, (core.size, 2)))
        core.observe(out)
        total += core.rewards(before)
        collisions += core.colliding
    expected = 3.0 * (first - core.distance) - config.collision_penalty * collisions + 2.0 * core.held
    assert collisions.any() and core.held.any() and not core.held.all()
    np.testing.assert_allclose(total, expected, rtol=0, atol=1e-9 if dtype is np.float64 else 1e-5)


def test_collisions_are_those_of_brute_force() -> None:
    core = FormationCore(replace(SMALL, spacing=0.05, start_spread=0.2), 3, seed=2)
    core.reset()
    core.observe(np.empty((core.size, core.config.observation_size), dtype=np.float32))
    _, squared = brute_force(core.position[:, :-1].astype(np.float64), 3, 1, 0.5)
    assert core.colliding.any() and (core.colliding == (squared[0] < 0.1**2)).all()


def test_observations_say_what_they_should() -> None:
    core = FormationCore(replace(SMALL, spacing=0.2, start_spread=4.0, neighbours=2), 2, seed=3)
    core.reset()
    rng = np.random.default_rng(1)
    out = np.empty((core.size, core.config.observation_size), dtype=np.float32)
    for _ in range(6):
        core.move(rng.uniform(-1, 1, (core.size, 2)))
        core.observe(out)
    position, velocity, slot = (array[:, :-1].astype(np.float64) for array in (core.position, core.velocity, core.slot))
    found, _ = brute_force(position, 2, 2, 0.5)
    seen = 0
    for row in range(core.size):
        way = slot[:, row] - position[:, row]
        way *= min(1.0, 2.0 / np.hypot(*way))
        parts = [velocity[:, row], way]
        for other in found[:, row]:
            here = other < core.size
            seen += here
            parts.append((position[:, other] - position[:, row]) / 0.5 if here else np.ones(2))
            parts.append(velocity[:, other] - velocity[:, row] if here else np.zeros(2))
        np.testing.assert_allclose(out[row], np.concatenate(parts), atol=1e-5)
    assert 0 < seen < 2 * core.size and np.isclose(np.hypot(out[:, 2], out[:, 3]), 2.0).any()


def test_shapes() -> None:
    circle = slots(FormationConfig(agents=8, spacing=1.0))
    np.testing.assert_allclose(np.hypot(*circle), 8 / (2 * math.pi))
    square = slots(FormationConfig(agents=9, shape=Shape.square, spacing=0.5))
    assert sorted(map(tuple, square.T.round(9))) == [(x, y) for x in (-0.5, 0.0, 0.5) for y in (-0.5, 0.0, 0.5)]
    points = slots(FormationConfig(agents=2, shape=Shape.points, points=[[1.0, 1.0], [3.0, 1.0]]))
    np.testing.assert_allclose(points, [[-1, 1], [0, 0]])
    with pytest.raises(ConfigError, match=r"environment\.points=1 points"):
        FormationConfig(agents=2, shape=Shape.points, points=[[1.0, 1.0]])
    with pytest.raises(ConfigError, match=r"environment\.agents=0"):
        FormationConfig(agents=0)


@pytest.mark.parametrize("shape", [Shape.circle, Shape.square])
@pytest.mark.parametrize("start", list(Start))
def test_a_simple_controller_takes_the_formation(shape: Shape, start: Start) -> None:
    config = FormationConfig(agents=30, shape=shape, start=start, steps=150)
    vector = FormationVector(config, 2, seed=0)
    turn = vector.reset()
    while not turn.episodes:
        observation = turn.groups[GROUP].observation
        turn = vector.step({GROUP: observation[..., 2:4] - 1.6 * observation[..., 0:2]})
    assert [episode.metrics["held"] for episode in turn.episodes] == [1.0, 1.0]


def test_a_formation_is_turned_and_its_slots_are_taken_by_direction() -> None:
    core = FormationCore(FormationConfig(agents=50, start=Start.scatter), 2, seed=5)
    core.reset()
    angle = [np.arctan2(array[1, :50], array[0, :50]) for array in (core.position, core.slot)]
    assert (np.diff(np.unwrap(angle[0][np.argsort(angle[1])])) >= 0).all()
    assert not np.allclose(core.slot[:, :50], core.slot[:, 50:-1])


# the vector


def rollout(vector: FormationVector, steps: int) -> list[np.ndarray]:
    turn, rng, seen = vector.reset(), np.random.default_rng(0), []
    shape = turn.groups[GROUP].observation.shape
    for _ in range(steps):
        group = turn.groups[GROUP]
        seen.append(np.concatenate([group.observation.reshape(-1), group.reward.reshape(-1)]))
        turn = vector.step({GROUP: rng.uniform(-1, 1, (*shape[:2], 2))})
    return seen


def test_a_seed_gives_the_same_run_and_worlds_differ() -> None:
    one, two = (rollout(FormationVector(SMALL, 3, seed=7), 45) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    other = rollout(FormationVector(SMALL, 3, seed=8), 1)
    assert not np.array_equal(one[0], other[0])
    first = FormationVector(SMALL, 3, seed=7).reset().groups[GROUP].observation
    assert not np.array_equal(first[0], first[1])
    # World 2 of the run is the same world wherever it runs.
    alone = FormationVector(SMALL, 1, seed=7, first_world=2).reset().groups[GROUP].observation
    assert np.array_equal(alone[0], first[2])


@pytest.mark.parametrize("stagger", [False, True])
def test_no_step_straddles_a_reset(stagger: bool) -> None:
    vector = FormationVector(SMALL, 4, seed=1, stagger=stagger, with_state=True)
    turn = vector.reset()
    assert turn.state is not None and turn.state.shape == (4, vector.spec.state_size)
    still, ends = {GROUP: np.zeros((4, 12, 2))}, np.zeros(4, dtype=int)
    for step in range(1, 45):
        before = turn.groups[GROUP].observation.copy()
        turn = vector.step(still)
        group = turn.groups[GROUP]
        assert group.present.all() and not group.terminated.any()
        ended = group.truncated.all(axis=1)
        assert (group.truncated.any(axis=1) == ended).all()
        assert [episode.world for episode in turn.episodes] == np.flatnonzero(ended).tolist()
        assert group.final_rows.tolist() == np.flatnonzero(group.truncated.reshape(-1)).tolist()
        # Agents that stand still see the same, in the last step too: its observation is not that of the new episode.
        final = dict(zip(group.final_rows.tolist(), group.final_observation, strict=True))
        for world in range(4):
            for agent in range(12):
                now = final[world * 12 + agent] if ended[world] else group.observation[world, agent]
                assert np.array_equal(now, before[world, agent])
            if ended[world]:
                assert not np.array_equal(group.observation[world], before[world])
        ends += ended
        if not stagger:
            assert ended.all() == (step % 20 == 0)
    assert (ends >= 2).all() and (vector.core.episode == ends).all()


def test_a_bad_action_is_named() -> None:
    vector = FormationVector(SMALL, 3, seed=1, first_world=10)
    vector.reset()
    actions = np.zeros((3, 12, 2), dtype=np.float32)
    vector.step({GROUP: actions + 1e38})  # beyond the bounds is clipped
    actions[1, 4, 0] = np.nan
    with pytest.raises(WorldError, match="world 11, agent agent_4, step 1: the action is not finite") as caught:
        vector.step({GROUP: actions})
    assert (caught.value.world, caught.value.agent, caught.value.step) == (11, "agent_4", 1)
    with pytest.raises(ValueError, match="actions have shape"):
        vector.step({GROUP: actions[:2]})


def test_observations_are_not_copied() -> None:
    vector = FormationVector(SMALL, 3, seed=1)
    vector.reset()
    observation = vector.step({GROUP: np.zeros((3, 12, 2))}).groups[GROUP].observation
    assert observation.base is not None and observation.flags.c_contiguous and observation.dtype == np.float32


def test_the_cost_of_an_agent_does_not_grow_with_their_number() -> None:
    """The same 10,000 agents as 100 worlds and as one, timed in turns; ratios hold on a loaded machine."""
    vectors = [FormationVector(FormationConfig(agents=agents), 10_000 // agents, seed=0) for agents in (100, 10_000)]
    actions = [np.zeros((10_000 // agents, agents, 2), dtype=np.float32) for agents in (100, 10_000)]
    for vector in vectors:
        vector.reset()
    least = [math.inf, math.inf]
    for _ in range(12):
        for number, vector in enumerate(vectors):
            start = time.process_time()
            vector.step({GROUP: actions[number]})
            least[number] = min(least[number], time.process_time() - start)
    assert least[1] < 2 * least[0]


# faces


def test_pettingzoo_face() -> None:
    parallel_api_test(FormationParallelEnv(SMALL), num_cycles=100)


def test_gymnasium_face() -> None:
    check_env(FormationEnv(SMALL), skip_render_check=True)


def test_faces_are_the_core() -> None:
    parallel, single, vector = (
        FormationParallelEnv(SMALL, seed=3),
        FormationEnv(SMALL),
        FormationVector(SMALL, 1, seed=3),
    )
    one, two, three = parallel.reset()[0], single.reset(seed=3)[0], vector.reset().groups[GROUP].observation[0]
    action = np.random.default_rng(0).uniform(-1, 1, (12, 2)).astype(np.float32)
    for _ in range(3):
        assert np.array_equal(np.stack(list(one.values())), three) and np.array_equal(two, three)
        one, rewards, *_ = parallel.step(dict(zip(parallel.agents, action, strict=True)))
        two, reward, *_ = single.step(action)
        turn = vector.step({GROUP: action[None]})
        three = turn.groups[GROUP].observation[0]
        assert np.allclose(list(rewards.values()), turn.groups[GROUP].reward[0])
        assert reward == pytest.approx(turn.groups[GROUP].reward.mean())
