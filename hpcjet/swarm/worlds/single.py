"""An environment of Gymnasium as a world of one agent."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcjet.swarm.worlds.parallel import mask_of
from hpcjet.swarm.worlds.world import Events

AGENT = "agent"


class SingleWorld:
    """Its agent is called "agent"."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def possible_agents(self) -> Sequence[str] | None:
        return [AGENT]

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self.env.observation_space, self.env.action_space

    def state_space(self) -> None:
        return None

    def state(self) -> Any:
        raise NotImplementedError

    def reset(self, seed: int) -> Events:
        observation, info = self.env.reset(seed=seed)
        return self._observed(Events(), observation, info)

    def step(self, actions: Mapping[str, Any]) -> Events:
        observation, reward, terminated, truncated, info = self.env.step(actions[AGENT])
        events = Events(rewards={AGENT: float(reward)}, over=bool(terminated or truncated))
        if events.over:
            events.end(AGENT, terminated=bool(terminated), observation=observation)
            return events
        return self._observed(events, observation, info)

    def close(self) -> None:
        self.env.close()

    def _observed(self, events: Events, observation: Any, info: Any) -> Events:
        events.observed[AGENT] = observation
        mask = mask_of(observation, info)
        if mask is not None:
            events.masks[AGENT] = mask
        return events
