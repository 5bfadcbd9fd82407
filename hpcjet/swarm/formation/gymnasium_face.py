"""A formation as one environment of Gymnasium, all agents under one controller; this module imports it."""

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.swarm.formation.faces import OneWorld, observation_bounds

Floats = npt.NDArray[np.float32]


class FormationEnv(gymnasium.Env[Floats, Floats]):
    """Observations [K, F], actions [K, 2]; the reward is the mean over the agents."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, config: FormationConfig | None = None) -> None:
        self.config = config or FormationConfig()
        self._world = OneWorld(self.config, seed=0)
        bounds = np.tile(observation_bounds(self.config), (self.config.agents, 1))
        self.observation_space = Box(-bounds, bounds, dtype=np.float32)
        self.action_space = Box(-1.0, 1.0, (self.config.agents, 2), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        super().reset(seed=seed)
        return self._world.reset(seed), {}

    def step(self, action: Floats) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        observations, rewards, ended = self._world.step(action)
        return observations, float(rewards.mean()), False, ended, {}
