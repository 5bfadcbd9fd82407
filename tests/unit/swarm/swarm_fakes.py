"""Small environments that follow a script, to put agents into any position."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space
from pettingzoo import AECEnv

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


class Nim(AECEnv[str, Any, Any]):
    """Players take 1 to 3 sticks in turn; who takes the last one wins 1 of each other. Masks forbid taking too many."""

    metadata = {"name": "nim_v0", "is_parallelizable": False}  # noqa: RUF012
    render_mode = None

    def __init__(self, players: int = 2, *, drops: bool = False) -> None:
        super().__init__()
        self.drops = drops
        """Whether a player leaves, with nothing, after two moves, while two others are left."""
        self.possible_agents = [f"player_{number}" for number in range(players)]
        self.observation_spaces = {
            agent: Dict({"observation": Box(0, 99, (2,), np.float32), "action_mask": Box(0, 1, (3,), np.int8)})
            for agent in self.possible_agents
        }
        self.action_spaces = {agent: Discrete(3) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.sticks = int(np.random.default_rng(seed).integers(10, 18))
        self.moves = dict.fromkeys(self.agents, 0)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, Any] = {agent: {} for agent in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> dict[str, Any]:
        allowed = (np.arange(1, 4) <= self.sticks).astype(np.int8)
        return {"observation": np.array([self.sticks, self.moves.get(agent, 0)], np.float32), "action_mask": allowed}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        assert action + 1 <= self.sticks
        self._cumulative_rewards[agent] = 0
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.sticks -= int(action) + 1
        self.moves[agent] += 1
        following = self.agents[(self.agents.index(agent) + 1) % len(self.agents)]
        if self.sticks == 0:
            self.rewards = {each: -1.0 if each != agent else len(self.agents) - 1.0 for each in self.agents}
            self.terminations = dict.fromkeys(self.agents, True)
        elif self.drops and self.moves[agent] == 2 and len(self.agents) > 2:
            self.terminations[agent] = True
        self.agent_selection = following
        self._accumulate_rewards()
        self._deads_step_first()
