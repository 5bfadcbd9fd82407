"""Real environments of every kind through their adapters, next to the environments played by hand."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pettingzoo.test import api_test
from pettingzoo.utils.conversions import parallel_to_aec
from swarm_fakes import Nim

from hpcjet.config.swarm.environment import GymnasiumConfig, Stepping
from hpcjet.errors import WorldError
from hpcjet.swarm.environment import make_vector
from hpcjet.swarm.formation import FormationConfig, FormationVector
from hpcjet.swarm.formation.parallel_face import FormationParallelEnv
from hpcjet.swarm.fragment import Fragment, Recorder
from hpcjet.swarm.seeds import environment_seed
from hpcjet.swarm.vector import Turn, WorldVector
from hpcjet.swarm.worlds import AecWorld, GymnasiumVector, ParallelWorld, SingleWorld, Worlds

G = "agent"
SMALL = FormationConfig(agents=5, steps=8)


def random_actions(vector: WorldVector, turn: Turn, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Allowed actions for every row."""
    group, spec = turn.groups[G], vector.spec.groups[G]
    shape = (vector.spec.worlds, spec.rows)
    if not spec.actions.choices:
        return {G: rng.uniform(-1, 1, (*shape, spec.actions.columns))}
    weight = rng.random((*shape, spec.actions.choices))
    return {G: np.argmax(weight * (1 if group.action_mask is None else group.action_mask), axis=-1)[..., None]}


def roll(vector: WorldVector, steps: int) -> tuple[Fragment, list[Turn], list[np.ndarray]]:
    rng = np.random.default_rng(0)
    recorder = Recorder(vector.spec.groups[G], vector.spec.worlds, steps)
    turns, taken = [vector.reset()], []
    recorder.begin(turns[0].groups[G])
    while not recorder.full:
        actions = random_actions(vector, turns[-1], rng)
        taken.append(actions[G])
        turns.append(vector.step(actions))
        recorder.add(actions[G], turns[-1].groups[G])
    return recorder.fragment, turns, taken


# Gymnasium


class Counter(gymnasium.Env[np.ndarray, int]):
    """Counts its steps; ends by termination or truncation after a number of steps that depends on the seed."""

    observation_space = gymnasium.spaces.Box(-1, 1e9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.last = 0, int(self.np_random.integers(1, 5))
        return self._see(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action in (0, 1)
        self.at += 1
        over = self.at >= self.last
        return self._see(), float(self.at), over and self.last % 2 == 0, over and self.last % 2 == 1, {}

    def _see(self) -> np.ndarray:
        return np.array([self.at, self.last], dtype=np.float32)


KINDS: dict[str, Callable[[], WorldVector]] = {
    "single": lambda: Worlds([lambda: SingleWorld(Counter())] * 3, seed=4),
    **{
        mode.name: lambda mode=mode: GymnasiumVector(  # type: ignore[misc]
            SyncVectorEnv([Counter] * 3, autoreset_mode=mode), seed=4
        )
        for mode in AutoresetMode
    },
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_sample_straddles_a_reset(kind: str) -> None:  # C7
    vector = KINDS[kind]()
    fragment, turns, _ = roll(vector, 40)
    steps = fragment.trajectories(fragment.observation[..., 0], fragment.finals()[1][:, 0], gamma=1.0)
    acted = steps.valid[..., 0]
    at, last = fragment.observation[:-1, :, 0, 0], fragment.observation[:-1, :, 0, 1]
    # Each sample is of one episode: its reward and the observation that follows say the next count.
    assert (fragment.reward[..., 0][acted] == at[acted] + 1).all()
    alive = acted & ~fragment.terminated[..., 0]
    assert (steps.next_values[..., 0][alive] == at[alive] + 1).all()
    over = at + 1 >= last
    assert (fragment.terminated[..., 0][acted] == (over & (last % 2 == 0))[acted]).all()
    assert (fragment.truncated[..., 0][acted] == (over & (last % 2 == 1))[acted]).all()
    assert fragment.terminated.any() and fragment.truncated.any()
    # In NEXT_STEP the step that only resets is no sample; in all others each step is.
    assert acted.all() == (kind != "NEXT_STEP") and acted.mean() > 0.6
    lengths = [episode.steps for turn in turns for episode in turn.episodes]
    assert lengths and all(1 <= length <= 4 for length in lengths)
    assert all(e.returns[G] == e.steps * (e.steps + 1) / 2 for turn in turns for e in turn.episodes)
    vector.close()


def test_the_first_episode_is_the_same_in_all_kinds() -> None:
    first = [make().reset().groups[G].observation[:, 0] for make in KINDS.values()]
    assert all(np.array_equal(first[0], other) for other in first[1:])
    env = Counter()
    assert np.array_equal(env.reset(seed=environment_seed(4, 2, 0))[0], first[0][2])


def cartpoles(seed: int = 4, first_world: int = 0, worlds: int = 3) -> WorldVector:
    """CartPole as a vector of its own, which takes one seed for all worlds."""
    config = GymnasiumConfig(stepping=Stepping.vector, kwargs={"vectorization_mode": "vector_entry_point"})
    return make_vector(config, worlds, seed=seed, first_world=first_world, with_state=False)


def test_a_vector_that_an_environment_has_of_its_own() -> None:
    vector = cartpoles()
    fragment, turns, taken = roll(vector, 120)
    assert type(vector.env.unwrapped).__name__ == "CartPoleVectorEnv"  # type: ignore[attr-defined]
    steps = fragment.trajectories(fragment.observation[..., 0], fragment.finals()[1][:, 0], gamma=1.0)
    acted, ended = steps.valid[..., 0], fragment.terminated[..., 0]
    assert ended.sum() >= 9 and (fragment.reward[..., 0][acted] == 1).all()
    lengths = np.array([episode.steps for turn in turns for episode in turn.episodes])
    assert len(lengths) == ended.sum() and lengths.min() > 7 and lengths.max() < 120
    assert [e.returns[G] for turn in turns for e in turn.episodes] == lengths.tolist()
    # Each sample goes on by the laws of motion from what was seen, so none straddles a reset.
    for t, world in np.argwhere(acted & ~ended):
        assert np.allclose(
            moved(fragment.observation[t, world, 0], taken[t][world, 0, 0]), fragment.observation[t + 1, world, 0],
            atol=1e-5,
        )  # fmt: skip
    places, finals = fragment.finals()
    for place, final in zip(places, finals, strict=True):
        t, world = divmod(int(place), 3)
        assert np.allclose(moved(fragment.observation[t, world, 0], taken[t][world, 0, 0]), final, atol=1e-5)
    vector.close()


def moved(seen: np.ndarray, action: int) -> np.ndarray:
    """Where a pole is after a step, by an environment that is stepped by itself."""
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    env.state = seen.astype(np.float64)  # type: ignore[attr-defined]
    observation, *_ = env.step(int(action))
    return np.asarray(observation)


def test_vectors_of_one_seed_differ_by_seed_and_place_and_repeat() -> None:
    first, again, other_seed, elsewhere = (
        vector.reset().groups[G].observation.copy()
        for vector in (cartpoles(), cartpoles(), cartpoles(seed=5), cartpoles(first_world=3))
    )
    assert np.array_equal(first, again) and len(np.unique(first[..., 0])) == 3
    assert not np.isin(first, other_seed).any() and not np.isin(first, elsewhere).any()


def test_what_a_vector_environment_shows_is_named_with_world_and_step() -> None:
    class Blind(Counter):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            _, *rest = super().step(action)
            self.last = 9
            return np.array([np.nan if self.at == 3 else self.at, 9], dtype=np.float32), *rest

    vector = GymnasiumVector(SyncVectorEnv([Counter, Blind]), seed=0, first_world=6)
    turn = vector.reset()
    with pytest.raises(WorldError, match="world 7, agent agent, step 2: the observation is not finite"):
        for _ in range(9):
            turn = vector.step(random_actions(vector, turn, np.random.default_rng(0)))


def test_a_vector_environment_that_fails_is_named() -> None:
    class Broken(Counter):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            raise RuntimeError("no more")

    vector = GymnasiumVector(SyncVectorEnv([Counter, Broken]), seed=0, first_world=6)
    vector.reset()
    with pytest.raises(WorldError, match="world 6, step 0: one of the worlds 6 to 7 raised RuntimeError: no more"):
        vector.step({G: np.zeros((2, 1, 1), dtype=np.int64)})
    vector = GymnasiumVector(SyncVectorEnv([Counter] * 2), seed=0, first_world=6)
    vector.reset()
    with pytest.raises(WorldError, match=r"world 7, agent agent, step 0: the action \[5\] is outside"):
        vector.step({G: np.array([[[0]], [[5]]])})


def test_cartpole_by_hand() -> None:
    vector = Worlds([lambda: SingleWorld(gymnasium.make("CartPole-v1"))], seed=2)
    fragment, _, taken = roll(vector, 60)
    env = gymnasium.make("CartPole-v1")
    episode = 0
    observation, _ = env.reset(seed=environment_seed(2, 0, 0))
    for step in range(60):
        np.testing.assert_array_equal(fragment.observation[step, 0, 0], observation)
        observation, reward, terminated, truncated, _ = env.step(int(taken[step][0, 0, 0]))
        assert fragment.reward[step, 0, 0] == reward and fragment.terminated[step, 0, 0] == terminated
        if terminated or truncated:
            episode += 1
            observation, _ = env.reset(seed=environment_seed(2, 0, episode))
    assert episode >= 1


# PettingZoo


@pytest.mark.filterwarnings("ignore:Observation:UserWarning", "ignore:Environment has not defined:UserWarning")
def test_the_game_is_one() -> None:
    api_test(Nim(3, drops=True), num_cycles=100)


@pytest.mark.parametrize(("players", "drops"), [(2, False), (3, False), (4, True)])
def test_turns_of_a_game(players: int, drops: bool) -> None:
    """A sample for each move; the result reaches everyone's last move, also of those who were not at turn."""
    vector = Worlds([lambda: AecWorld(Nim(players, drops=drops))] * 2, seed=3)
    assert vector.spec.groups[G].has_mask and vector.spec.groups[G].rows == players
    fragment, turns, _ = roll(vector, 120)
    assert (fragment.present[:-1].sum(axis=2) == 1).all(), "one player moves at a time"
    values = fragment.observation[..., 0]
    steps = fragment.trajectories(values, fragment.finals()[1][:, 0], gamma=1.0)
    games = {world: [e for turn in turns for e in turn.episodes if e.world == world] for world in range(2)}
    for world in range(2):
        moves = fragment.present[:-1, world]
        ends = steps.cut[:, world] & steps.valid[:, world]
        assert not steps.rewards[:, world][steps.valid[:, world] & ~ends].any()
        start = 0
        for game in games[world]:
            played = slice(start, start + game.steps)
            start += game.steps
            results = [steps.rewards[played, world, player][ends[played, player]] for player in range(players)]
            assert all(len(result) == 1 for result in results)
            won = [float(result[0]) for result in results]
            assert sum(won) == 0 and won.count(-1.0) == max(won) and (drops or 0.0 not in won)
            last = [np.flatnonzero(moves[played, player])[-1] for player in range(players)]
            assert [np.flatnonzero(ends[played, player])[0] for player in range(players)] == last
            # The next thing that a player sees is the board at its own next turn.
            for player in range(players):
                mine = np.flatnonzero(moves[played, player])
                seen, following = values[played, world, player][mine], steps.next_values[played, world, player][mine]
                assert (following[:-1] == seen[1:]).all()
        assert len(games[world]) > 5


def test_parallel_and_turn_based_faces_of_one_world_are_learned_from_alike() -> None:
    parallel = Worlds([lambda: ParallelWorld(FormationParallelEnv(SMALL))], seed=5)
    one, _, taken = roll(parallel, 16)
    turn_based = Worlds([lambda: AecWorld(parallel_to_aec(FormationParallelEnv(SMALL)))], seed=5)
    recorder = Recorder(turn_based.spec.groups[G], 1, 16 * SMALL.agents)
    turn = turn_based.reset()
    recorder.begin(turn.groups[G])
    for step in range(16 * SMALL.agents):
        actions = taken[step // SMALL.agents]
        turn = turn_based.step({G: actions})
        recorder.add(actions, turn.groups[G])
    two = recorder.fragment
    acted = two.present[:-1, 0]
    a, b = (f.trajectories(f.observation.sum(axis=-1), f.finals()[1].sum(axis=-1), gamma=0.9) for f in (one, two))
    for agent in range(SMALL.agents):
        mine = acted[:, agent]
        assert mine.sum() == 16
        np.testing.assert_allclose(two.observation[:-1, 0, agent][mine], one.observation[:-1, 0, agent])
        for name in ("rewards", "next_values", "cut", "valid"):
            theirs, ours = getattr(b, name)[:, 0, agent][mine], getattr(a, name)[:, 0, agent]
            np.testing.assert_allclose(theirs, ours, atol=1e-5, err_msg=name)


def test_the_native_vector_is_its_parallel_face() -> None:
    """But for the seeds of episodes, which only the face takes from outside."""
    parallel = Worlds([lambda: ParallelWorld(FormationParallelEnv(SMALL))], seed=5)
    one, _, _ = roll(parallel, 8)
    two, turns, _ = roll(FormationVector(SMALL, 1, seed=environment_seed(5, 0, 0)), 8)
    for name in ("action", "reward", "terminated", "truncated", "present"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-5, err_msg=name)
    np.testing.assert_allclose(one.observation[:-1], two.observation[:-1], atol=1e-5)
    np.testing.assert_allclose(one.finals()[1], two.finals()[1], atol=1e-5)
    assert turns[-1].episodes[0].returns[G] == pytest.approx(one.reward.sum(), abs=1e-5)
