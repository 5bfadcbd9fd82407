"""A turn-based environment of PettingZoo (AEC) as a world: in each step one agent acts, all others pause."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcjet.swarm.worlds.parallel import mask_of
from hpcjet.swarm.worlds.state import state_space
from hpcjet.swarm.worlds.world import BrokenContract, Events


class AecWorld:
    """Goes from turn to turn of an AECEnv; agents that have ended are led out on the way.

    What an agent earned since its last action reaches it at its next turn, where PettingZoo adds it up.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._ended: set[str] = set()

    def possible_agents(self) -> Sequence[str] | None:
        return getattr(self.env, "possible_agents", None)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def state_space(self) -> Any | None:
        return state_space(self.env)

    def state(self) -> Any:
        return self.env.state()

    def reset(self, seed: int) -> Events:
        self.env.reset(seed=seed)
        self._ended = set()
        return self._next_turn()

    def step(self, actions: Mapping[str, Any]) -> Events:
        self.env.step(actions[self.env.agent_selection])
        return self._next_turn()

    def close(self) -> None:
        self.env.close()

    def _next_turn(self) -> Events:
        events = Events()
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            if agent in self._ended:
                raise BrokenContract("it had ended in this episode and came back", agent)
            events.rewards[agent] = float(reward)
            if not (terminated or truncated):
                events.observed[agent] = observation
                mask = mask_of(observation, info)
                if mask is not None:
                    events.masks[agent] = mask
                return events
            self._ended.add(agent)
            events.end(agent, terminated=bool(terminated), observation=observation)
            self.env.step(None)
        events.over = True
        return events
