"""The global state of PettingZoo's environments: what a central critic sees beside the observations."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from mpe2 import simple_spread_v3
from pettingzoo import ParallelEnv
from swarm_fakes import Nim, Scene, Scripted, see

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.errors import ConfigError, WorldError
from hpcjet.swarm.policy import PolicyConfig
from hpcjet.swarm.seeds import environment_seed
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.vector import Turn
from hpcjet.swarm.worlds import AecWorld, ParallelWorld, Worlds

G = "agent"


class Shown(Scripted):
    """Its state is the number of the episode, the step, and a constant."""

    state_space = Box(-np.inf, np.inf, (3,), np.float32)

    def state(self) -> Any:
        return np.array([self.episode, self.at, 7], dtype=np.float32)


def leaving() -> list[Scene]:
    """b ends after the first step, a is cut short after the second one."""
    return [
        Scene(["a", "b"], {"a": see(0), "b": see(0)}),
        Scene(["a"], {"a": see(1), "b": see(1)}, {"a": 1.0, "b": 1.0}, truncated={"b"}),
        Scene([], {"a": see(2)}, {"a": 1.0}, truncated={"a"}),
    ]


def still() -> dict[str, Any]:
    return {G: np.zeros((2, 2, 1), dtype=np.int64)}


def states(turn: Turn) -> list[list[float]]:
    assert turn.state is not None
    return turn.state.tolist()


def test_a_state_is_shown_at_reset_and_after_each_step_and_once_more_at_an_end() -> None:
    vector = Worlds([lambda: ParallelWorld(Shown(leaving(), ["a", "b"]))] * 2, seed=0, with_state=True)
    assert vector.spec.state_size == 3
    assert states(vector.reset()) == [[0, 1, 7]] * 2
    turn = vector.step(still())
    assert states(turn) == [[0, 2, 7]] * 2
    assert turn.groups[G].final_rows.tolist() == [1, 3]
    assert turn.final_state is not None and turn.final_state.tolist() == [[0, 2, 7]] * 2
    turn = vector.step(still())
    assert turn.final_state is not None and turn.final_state.tolist() == [[0, 3, 7]] * 2, "before the next episode"
    assert states(turn) == [[1, 1, 7]] * 2
    assert len(turn.episodes) == 2


def test_without_being_asked_for_or_without_one_there_is_no_state() -> None:
    shown = Worlds([lambda: ParallelWorld(Shown(leaving(), ["a", "b"]))], seed=0)
    plain = Worlds([lambda: ParallelWorld(Scripted(leaving(), ["a", "b"]))], seed=0, with_state=True)
    game = Worlds([lambda: AecWorld(Nim())], seed=0, with_state=True)
    for vector in (shown, plain, game):
        assert vector.spec.state_size == 0
        assert vector.reset().state is None


def test_a_state_without_a_space_is_refused() -> None:
    class Unsaid(ParallelEnv[str, Any, Any]):
        metadata = {"name": "unsaid"}  # noqa: RUF012
        possible_agents = ["a"]  # noqa: RUF012

        def observation_space(self, agent: str) -> Any:
            return Box(0, 1, (1,), np.float32)

        def action_space(self, agent: str) -> Any:
            return Discrete(2)

        def state(self) -> Any:
            return np.zeros(3)

    with pytest.raises(
        ConfigError, match=r"state_space=None is not allowed: .* or set exp.policy.central_critic=false"
    ):
        Worlds([lambda: ParallelWorld(Unsaid())], seed=0, with_state=True)


def test_a_picture_as_a_state_is_refused() -> None:
    class Picture(Shown):
        state_space = Box(0, 255, (560, 880, 3), np.uint8)

    with pytest.raises(ConfigError, match=r"state_space=1,478,400 numbers is not allowed: .* at most 100,000 numbers"):
        Worlds([lambda: ParallelWorld(Picture(leaving(), ["a", "b"]))], seed=0, with_state=True)


def test_states_of_different_size_are_refused() -> None:
    class Wider(Shown):
        state_space = Box(-np.inf, np.inf, (4,), np.float32)

    make = [lambda: ParallelWorld(Shown(leaving(), ["a", "b"])), lambda: ParallelWorld(Wider(leaving(), ["a", "b"]))]
    with pytest.raises(
        ConfigError, match=r"3 floats in world 0.*4 floats in world 1.*states of all worlds have one size"
    ):
        Worlds(make, seed=0, with_state=True)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (np.zeros(2, np.float32), r"state has shape \(2,\), its space says \(3,\)"),
        (np.array([0, np.nan, 0], np.float32), "the state is not finite"),
        (None, "it raised RuntimeError: no view"),
    ],
    ids=["shape", "nan", "raises"],
)
def test_a_bad_state_is_a_fault_of_its_world_alone(state: Any, message: str) -> None:
    class Bad(Shown):
        def state(self) -> Any:
            if self.at == 2 and state is None:
                raise RuntimeError("no view")
            return state if self.at == 2 else super().state()

    make = [lambda: ParallelWorld(Shown(leaving(), ["a", "b"])), lambda: ParallelWorld(Bad(leaving(), ["a", "b"]))]
    vector = Worlds(make, seed=0, with_state=True)
    vector.reset()
    turn = vector.step(still())
    assert len(turn.faults) == 1
    with pytest.raises(WorldError, match=f"world 1, step 0: {message}"):
        raise turn.faults[0]
    group = turn.groups[G]
    assert group.truncated.tolist() == [[False, True], [True, True]], "both lives of the failed world are cut short"
    assert group.final_rows.tolist() == [1], "without a last observation"
    assert states(turn) == [[0, 2, 7], [0, 1, 7]], "it began anew"


@pytest.mark.parametrize("turns", [False, True], ids=["parallel", "turn-based"])
def test_simple_spread_by_hand(turns: bool) -> None:
    """The real environment that MAPPO was published with: its states are those of a twin that is stepped by hand."""
    if turns:
        vector = Worlds([lambda: AecWorld(simple_spread_v3.env(N=2, max_cycles=3))], seed=3, with_state=True)
    else:
        vector = Worlds(
            [lambda: ParallelWorld(simple_spread_v3.parallel_env(N=2, max_cycles=3))], seed=3, with_state=True
        )
    twin = simple_spread_v3.env(N=2, max_cycles=3)
    rng = np.random.default_rng(0)
    turn = vector.reset()
    for episode in range(2):
        twin.reset(seed=environment_seed(3, 0, episode))
        np.testing.assert_array_equal(turn.state, twin.state()[None])
        for _ in range(3):
            chosen = rng.integers(5, size=2)
            for agent in range(2):
                if turns:
                    turn = vector.step({G: np.broadcast_to(chosen[:, None], (1, 2, 1))})
                twin.step(chosen[agent])
                if turns:
                    np.testing.assert_array_equal(turn.final_state, twin.state()[None])
            if not turns:
                turn = vector.step({G: chosen[None, :, None]})
                np.testing.assert_array_equal(turn.final_state, twin.state()[None])
        assert len(turn.episodes) == 1


def test_a_central_critic_learns_from_the_states_of_simple_spread() -> None:
    """MAPPO on a real environment: values follow the state, also of lives that were cut short."""
    vector = Worlds(
        [lambda: ParallelWorld(simple_spread_v3.parallel_env(N=2, max_cycles=5))] * 3, seed=0, with_state=True
    )
    learner = LearnerConfig(minibatch=30, epochs=2)
    trainer = Trainer(vector, TrainerConfig(steps=12, policy=PolicyConfig(hidden=[16]), learner=learner))
    (policy,) = trainer.policies.values()
    assert policy.spec.state_size == vector.spec.state_size == 24
    noted = [trainer.iterate().learning[G] for _ in range(3)]
    assert [part["samples"] for part in noted] == [12 * 3 * 2] * 3, "cut lives too: their last state is known"
    seen = np.zeros((1, 12), dtype=np.float32)
    values = [policy.values(seen, np.full((1, 24), x, dtype=np.float32))[0] for x in (-1, 1)]
    assert values[0] != values[1]
    vector.close()
