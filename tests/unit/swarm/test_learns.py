"""Policies get better at real tasks; short forms of tests/bench/swarm_learning.py."""

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from swarm_cartpoles import CartPoles

from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.learner import Algorithm, LearnerConfig, Standardise
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.formation import FormationVector
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.worlds import GymnasiumVector, ParallelWorld, Worlds

IMPALA = LearnerConfig(
    algorithm=Algorithm.vtrace, epochs=1, minibatch=500, learning_rate=1e-3, trace=1.0, entropy_coefficient=0.01,
    max_grad_norm=40.0, standardise=Standardise.none,
)  # fmt: skip


def episodes_of(trainer: Trainer, agent_steps: int) -> list[Episode]:
    """All of a training."""
    episodes: list[Episode] = []
    while trainer.agent_steps < agent_steps:
        episodes += trainer.iterate().episodes
    return episodes


def test_a_formation_is_learned() -> None:
    vector = FormationVector(FormationConfig(agents=16), 10, seed=1)
    learner = LearnerConfig(learning_rate=3e-3, minibatch=2000, gamma=0.97)
    trainer = Trainer(vector, TrainerConfig(seed=1, steps=50, policy=PolicyConfig(log_std=-0.5), learner=learner))
    held = [episode.metrics["held"] for episode in episodes_of(trainer, 18 * 8000)]
    assert np.mean(held[:10]) < 0.1, "at random"
    assert np.mean(held[-10:]) > 0.6


def test_cartpole_is_learned_with_vtrace() -> None:
    modes = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = gymnasium.make_vec("CartPole-v1", num_envs=16, vectorization_mode="sync", vector_kwargs=modes)
    trainer = Trainer(GymnasiumVector(env, seed=1), TrainerConfig(seed=1, steps=50, learner=IMPALA))
    returns = [episode.returns["agent"] for episode in episodes_of(trainer, 35_000)]
    assert np.mean(returns[:20]) < 50, "at random"
    assert np.mean(returns[-30:]) > 150


def test_two_agents_that_leave_at_different_times_learn_with_one_policy() -> None:
    vector = Worlds([lambda: ParallelWorld(CartPoles(2))] * 8, seed=1, group_of=lambda agent: agent)
    trainer = Trainer(vector, TrainerConfig(seed=1, steps=50, policy_map={"*": "cart"}, learner=IMPALA))
    episodes = episodes_of(trainer, 20_000)
    for agent in ("cart_0", "cart_1"):
        returns = [episode.returns[agent] for episode in episodes]
        assert np.mean(returns[-30:]) > 2 * np.mean(returns[:20])
