"""What the faces of a formation share: its bounds, and one world stepped by itself."""

from typing import Any

import numpy as np
import numpy.typing as npt

from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.swarm.formation.core import FormationCore

Floats = npt.NDArray[np.float32]


def observation_bounds(config: FormationConfig) -> Floats:
    """The greatest size of each number in an observation, [F]."""
    other = [1.0, 1.0, 2 * config.max_speed, 2 * config.max_speed]
    bounds = [config.max_speed] * 2 + [config.reach] * 2 + other * config.neighbours
    # Rounding may carry a number over its bound by a little.
    return np.asarray(np.array(bounds) * (1 + 1e-5), dtype=np.float32)


class OneWorld:
    """A core of one world, for faces that are reset and stepped world by world."""

    def __init__(self, config: FormationConfig, seed: int) -> None:
        self.config = config
        self.core = FormationCore(config, 1, seed=seed)

    def reset(self, seed: int | None) -> Floats:
        """Observations [K, F] of the next episode, or of the first one of another seed."""
        if seed is not None:
            self.core.restart(seed)
        self.core.reset()
        return self._observe()

    def step(self, actions: npt.NDArray[Any]) -> tuple[Floats, npt.NDArray[np.float32], bool]:
        """Observations [K, F], rewards [K], and whether the episode was truncated."""
        before = self.core.distance.copy()
        self.core.move(actions)
        observations = self._observe()
        return observations, self.core.rewards(before).astype(np.float32), bool(self.core.ended[0])

    def _observe(self) -> Floats:
        out = np.empty((self.config.agents, self.config.observation_size), dtype=np.float32)
        self.core.observe(out)
        return out
