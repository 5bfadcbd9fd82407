"""The peers' world as worlds of ours, and our trainer with the peers' settings, for swarm_speed.py."""

import argparse
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.swarm.formation.vector import ACTIONS
from hpcjet.swarm.trainer import TrainerConfig
from hpcjet.swarm.vector import GroupSpec, GroupTurn, Turn, VectorSpec

IN_FLIGHT = 4000
GROUP = "agent"


class PeerWorlds:
    """The peers' world as a WorldVector."""

    def __init__(self, core: Any, observation_size: int) -> None:
        self.core = core
        self.shape = (core.num_worlds, core.num_agents)
        self.spec = VectorSpec(core.num_worlds, {GROUP: GroupSpec(core.num_agents, observation_size, ACTIONS)})
        self.present, self.no, self.all = np.ones(self.shape, bool), np.zeros(self.shape, bool), np.arange(core.size)

    def reset(self) -> Turn:
        return self._turn(self.core.reset(), np.zeros(self.shape, np.float32))

    def step(self, actions: Mapping[str, Any]) -> Turn:
        observation, reward, ended = self.core.step(actions[GROUP].reshape(-1, 2))
        turn = self._turn(self.core.reset() if ended else observation, reward)
        if ended:
            group = turn.groups[GROUP]
            group.truncated, group.final_rows, group.final_observation = self.present, self.all, observation
        return turn

    def close(self) -> None:
        pass

    def _turn(self, observation: Any, reward: Any) -> Turn:
        seen = observation.reshape(*self.shape, -1)
        return Turn({GROUP: GroupTurn(seen, self.present, reward.reshape(self.shape), self.no, self.no)})


def number_of_worlds(agents: int) -> int:
    return max(1, IN_FLIGHT // agents)


def worlds_of(agents: int, rank: int, size: int) -> PeerWorlds:
    """A rank's share. `formation` of the peers has to be importable."""
    formation = importlib.import_module("formation")
    core = formation.FormationCore(number_of_worlds(agents) // size, agents, rank)
    return PeerWorlds(core, formation.OBS_SIZE)


def settings_of(options: argparse.Namespace) -> TrainerConfig:
    """Those of the peers: no value normaliser."""
    return TrainerConfig(
        steps=options.steps, policy=PolicyConfig(value_norm=False),
        learner=LearnerConfig(minibatch=options.minibatch, epochs=options.epochs, adam_epsilon=1e-8),
    )  # fmt: skip
