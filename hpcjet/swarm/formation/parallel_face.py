"""A formation as a parallel environment of PettingZoo; this module imports it."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Space
from pettingzoo import ParallelEnv

from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.swarm.formation.faces import OneWorld, observation_bounds


class FormationParallelEnv(ParallelEnv[str, Any, Any]):
    """Agents agent_0 ... of one world; all are truncated together at the end of the episode."""

    metadata = {"name": "formation_v0", "render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self, config: FormationConfig | None = None, *, seed: int = 0) -> None:
        self.config = config or FormationConfig()
        self._world = OneWorld(self.config, seed)
        bounds = observation_bounds(self.config)
        self.possible_agents = [f"agent_{number}" for number in range(self.config.agents)]
        self.agents: list[str] = []
        observation, action = Box(-bounds, bounds, dtype=np.float32), Box(-1.0, 1.0, (2,), np.float32)
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation)
        self.action_spaces = dict.fromkeys(self.possible_agents, action)

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        self.agents = list(self.possible_agents)
        observations = self._world.reset(seed)
        return dict(zip(self.agents, observations, strict=True)), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float], Any, Any, Any]:
        agents = self.agents
        observations, rewards, ended = self._world.step(np.stack([actions[agent] for agent in agents]))
        if ended:
            self.agents = []
        return (
            dict(zip(agents, observations, strict=True)),
            dict(zip(agents, rewards.tolist(), strict=True)),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, ended),
            {agent: {} for agent in agents},
        )
