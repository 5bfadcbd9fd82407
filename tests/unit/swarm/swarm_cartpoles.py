"""Several CartPoles side by side as one parallel environment of PettingZoo: each agent leaves when its pole falls."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space
from pettingzoo import ParallelEnv


class CartPoles(ParallelEnv[str, Any, Any]):
    """Agents cart_0 ...; each has a CartPole-v1 of its own, and nothing to do with the others."""

    metadata = {"name": "cartpoles_v0", "render_modes": []}  # noqa: RUF012
    render_mode = None

    def __init__(self, agents: int = 2) -> None:
        self.possible_agents = [f"cart_{number}" for number in range(agents)]
        self.agents: list[str] = []
        self._carts = {agent: gymnasium.make("CartPole-v1", disable_env_checker=True) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Space[Any]:
        return self._carts[agent].observation_space

    def action_space(self, agent: str) -> Space[Any]:
        return self._carts[agent].action_space

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], Any]:
        self.agents = list(self.possible_agents)
        seeds: list[int | None] = [None] * len(self.agents)
        if seed is not None:
            seeds = [int(each) for each in np.random.SeedSequence(seed).generate_state(len(self.agents))]
        begun = {agent: self._carts[agent].reset(seed=own) for agent, own in zip(self.agents, seeds, strict=True)}
        return {agent: seen for agent, (seen, _) in begun.items()}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float], Any, Any, Any]:
        agents = self.agents
        came = {agent: self._carts[agent].step(actions[agent]) for agent in agents}
        self.agents = [agent for agent in agents if not (came[agent][2] or came[agent][3])]
        seen, rewards, terminated, truncated = ({agent: came[agent][at] for agent in agents} for at in range(4))
        return seen, rewards, terminated, truncated, {agent: {} for agent in agents}

    def close(self) -> None:
        for cart in self._carts.values():
            cart.close()


def parallel_env(agents: int = 2) -> CartPoles:
    return CartPoles(agents)
