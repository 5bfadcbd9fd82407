"""The trainings of tests/bench/swarm_learning.py: worlds, settings, goals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from swarm_cartpoles import CartPoles

from hpcjet.config.swarm.environment import PettingZooConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.learner import Algorithm, LearnerConfig, Standardise
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.acting import Actor
from hpcjet.swarm.environment import make_vector
from hpcjet.swarm.formation import FormationVector
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.vector import Episode, WorldVector
from hpcjet.swarm.worlds import GymnasiumVector, ParallelWorld, Worlds

WORLDS_SEED = 1000
"""Worlds of seed s are seeded by this + s."""


@dataclass(frozen=True)
class Task:
    name: str
    title: str
    unit: str
    goal: float
    steps: int
    """Most agent-steps."""
    worlds: Callable[[int], WorldVector]
    """By seed."""
    config: TrainerConfig
    score: Callable[[Episode], tuple[float, ...]]
    """Of each agent, or of all together."""
    window: int = 100
    """Episodes that the mean is taken over."""
    tests: Mapping[str, Callable[[], FormationVector]] | None = None
    """Worlds in which the policy is looked at afterwards."""

    def trainer(self, seed: int, most: int) -> Trainer:
        """`most`: agent-steps, at which the learning rate has come to its end."""
        return Trainer(self.worlds(WORLDS_SEED + seed), replace(self.config, seed=seed, agent_steps=most))


def evaluations(task: Task, trainer: Trainer) -> dict[str, float]:
    """Shares of slots that are held in episodes of the worlds of `tests`, greedy and sampled."""
    found = {}
    for name, make in (task.tests or {}).items():
        for greedy in (True, False):
            metrics = _episodes(trainer, make(), greedy=greedy)
            for key in ("held_within_tenth_of_radius", "held", "collisions"):
                way = "greedy" if greedy else "sampled"
                found[f"{name}_{way}_{key}"] = float(np.mean([each[key] for each in metrics]))
    return found


def _episodes(trainer: Trainer, vector: FormationVector, *, greedy: bool) -> list[Mapping[str, float]]:
    """The first episode of each world."""
    actor = Actor(vector.spec, trainer.routes, trainer.policies, seed=0, with_values=False)
    turn = vector.reset()
    while not turn.episodes:
        turn = vector.step({name: acts.action for name, acts in actor.act(turn, greedy=greedy).items()})
    return [episode.metrics for episode in turn.episodes]


def cartpoles(seed: int) -> WorldVector:
    modes = {"autoreset_mode": AutoresetMode.SAME_STEP}
    env = gymnasium.make_vec("CartPole-v1", num_envs=16, vectorization_mode="sync", vector_kwargs=modes)
    return GymnasiumVector(env, seed=seed)


def two_cartpoles(seed: int) -> WorldVector:
    """A group for each agent, so that episodes tell the return of each."""
    return Worlds([lambda: ParallelWorld(CartPoles(2))] * 16, seed=seed, group_of=lambda agent: agent)


def formation(agents: int, worlds: int, seed: int) -> FormationVector:
    return FormationVector(FormationConfig(agents=agents), worlds, seed=seed)


def spread(seed: int) -> WorldVector:
    """32 worlds of three agents that are to cover three landmarks, each episode of 25 steps."""
    config = PettingZooConfig(env="mpe2.simple_spread_v3")
    return make_vector(config, 32, seed=seed, first_world=0, with_state=True)


IMPALA = LearnerConfig(
    algorithm=Algorithm.vtrace, epochs=1, minibatch=500, learning_rate=5e-4, trace=1.0, entropy_coefficient=0.01,
    value_coefficient=0.05, max_grad_norm=40.0, standardise=Standardise.none,
)  # fmt: skip
"""The published setting for CartPole (RLlib's tuned example), with the entropy term and the value normaliser."""
STEADY = replace(IMPALA, rate_end=0.01, max_grad_norm=5.0)
"""For what comes after the goal: the learning rate falls to a hundredth of it, and single gradients count for less."""
SHARED = replace(IMPALA, learning_rate=1e-3)
MAPPO = LearnerConfig(
    learning_rate=7e-4, epochs=10, minibatch=800, entropy_coefficient=0.01, huber_delta=10.0, value_clip=0.2,
    max_grad_norm=10.0,
)  # fmt: skip
"""Near what the code of arXiv:2103.01955 has for this task; the networks do not remember, minibatches are smaller."""
PPO = LearnerConfig(learning_rate=1e-3, minibatch=5000, gamma=0.97)


def _of_three(episode: Episode) -> tuple[float, ...]:
    """What one of three agents earned, on the average."""
    return (episode.returns["agent"] / 3,)


def _each(episode: Episode) -> tuple[float, ...]:
    """The return of each agent, which are groups of one."""
    return tuple(episode.returns.values())


TASKS = {
    task.name: task
    for task in (
        Task(
            "cartpole", "CartPole-v1, V-trace", "return", 450, 2_000_000, cartpoles,
            TrainerConfig(steps=50, learner=STEADY), _each,
        ),
        Task(
            "two-shared", "Two CartPoles, one policy", "return of each", 350, 2_500_000, two_cartpoles,
            TrainerConfig(steps=50, policy_map={"*": "cart"}, learner=SHARED), _each,
        ),
        Task(
            "two-each", "Two CartPoles, two policies", "return of each", 350, 2_500_000, two_cartpoles,
            TrainerConfig(steps=50, learner=IMPALA), _each,
        ),
        *(
            Task(
                name, title, "return of an agent in 25 steps", -20, 120_000, spread,
                TrainerConfig(steps=25, policy=PolicyConfig(central_critic=central), learner=MAPPO), _of_three, 200,
            )
            for name, title, central in (
                ("spread-ippo", "simple_spread, IPPO", False), ("spread-mappo", "simple_spread, MAPPO", True)
            )
        ),
        Task(
            "formation", "Formation of 100 agents, PPO", "share of slots held", 0.9, 1_500_000,
            partial(formation, 100, 5),
            TrainerConfig(steps=100, policy=PolicyConfig(log_std=-0.5), learner=PPO),
            lambda episode: (episode.metrics["held_within_tenth_of_radius"],), 10,
            {"100": partial(formation, 100, 10, seed=1), "1000": partial(formation, 1000, 3, seed=2)},
        ),
    )
}  # fmt: skip
