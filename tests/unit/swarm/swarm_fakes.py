"""Small environments that follow a script, to put agents into any position."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete, Space

BOX = Box(-np.inf, np.inf, (1,), np.float32)
CHOICE = Discrete(3)


def see(value: float) -> np.ndarray:
    return np.array([value], dtype=np.float32)


@dataclass
class Scene:
    """What a reset or a step tells."""

    live: list[str]
    """The environment's list afterwards."""
    see: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[str, float] = field(default_factory=dict)
    terminated: set[str] = field(default_factory=set)
    truncated: set[str] = field(default_factory=set)
    infos: Mapping[str, Any] = field(default_factory=dict)
    does: str = ""
    """raise or hang"""


class Scripted:
    """A parallel environment that plays scenes, the same in each episode."""

    def __init__(
        self, scenes: list[Scene], possible: list[str] | None, *, spaces: Mapping[str, Any] | None = None
    ) -> None:
        self.scenes = scenes
        if possible is not None:
            self.possible_agents = possible
        self.spaces = spaces or {}
        self.agents: list[str] = []
        self.at = 0
        self.episode = -1
        self.seeds: list[int] = []
        self.actions: list[dict[str, Any]] = []
        self.closed = False

    def observation_space(self, agent: str) -> Space[Any]:
        return self.spaces.get(agent, (BOX, CHOICE))[0]  # type: ignore[no-any-return]

    def action_space(self, agent: str) -> Space[Any]:
        return self.spaces.get(agent, (BOX, CHOICE))[1]  # type: ignore[no-any-return]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        assert seed is not None
        self.seeds.append(seed)
        self.at, self.episode = 0, self.episode + 1
        scene = self._play()
        return dict(scene.see), {agent: scene.infos.get(agent, {}) for agent in scene.live}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        before = self.agents
        self.actions.append(actions)
        scene = self._play()
        flags = [{agent: agent in ends for agent in {*before, *ends}} for ends in (scene.terminated, scene.truncated)]
        return dict(scene.see), dict(scene.rewards), *flags, dict(scene.infos)

    def close(self) -> None:
        self.closed = True

    def _play(self) -> Scene:
        scene = self.scenes[self.at]
        if scene.does == "raise":
            raise RuntimeError("the simulator broke")
        while scene.does == "hang":
            time.sleep(0.01)
        self.at += 1
        self.agents = list(scene.live)
        return scene
