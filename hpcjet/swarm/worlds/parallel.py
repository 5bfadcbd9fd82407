"""A parallel environment of PettingZoo as a world."""

from collections.abc import Mapping, Sequence
from typing import Any

from hpcjet.swarm.spaces.observations import MASK_KEY
from hpcjet.swarm.worlds.state import state_space
from hpcjet.swarm.worlds.world import BrokenContract, Events


class ParallelWorld:
    """Follows the live agents of a ParallelEnv.

    An end is what the flags say, whether or not the environment clears its list; the episode is over when nobody lives.
    An agent that is listed and not observed, or leaves the list without an end, pauses. One that ended may not return.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self._live: list[str] = []
        self._ended: set[str] = set()
        self._gone: set[str] = set()
        """Those of `_ended` that have left the environment's list."""

    def possible_agents(self) -> Sequence[str] | None:
        return getattr(self.env, "possible_agents", None)

    def spaces(self, agent: str) -> tuple[Any, Any]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def state_space(self) -> Any | None:
        return state_space(self.env)

    def state(self) -> Any:
        return self.env.state()

    def reset(self, seed: int) -> Events:
        observations, infos = self.env.reset(seed=seed)
        self._ended, self._gone = set(), set()
        self._live = list(self.env.agents)
        return self._observed(Events(), observations, infos)

    def step(self, actions: Mapping[str, Any]) -> Events:
        observations, rewards, terminations, truncations, infos = self.env.step(dict(actions))
        listed = list(self.env.agents)
        self._refuse_revived(listed, terminations, truncations)
        events = Events(rewards={agent: float(reward) for agent, reward in rewards.items() if agent in self._live})
        for agent in self._live:
            terminated, truncated = bool(terminations.get(agent)), bool(truncations.get(agent))
            # An emptied list ends the episode for those who have no flag too.
            if terminated or truncated or not listed:
                self._ended.add(agent)
                events.end(
                    agent, terminated=terminated, observation=observations.get(agent), rewarded=agent in rewards
                )  # fmt: skip
        self._gone |= self._ended.difference(listed)
        paused = [agent for agent in self._live if agent not in listed]
        self._live = [agent for agent in (*listed, *paused) if agent not in self._ended]
        return self._observed(events, observations, infos)

    def close(self) -> None:
        self.env.close()

    def _observed(self, events: Events, observations: Mapping[str, Any], infos: Mapping[str, Any]) -> Events:
        for agent in self._live:
            if agent in observations:
                events.observed[agent] = observations[agent]
                mask = mask_of(observations[agent], infos.get(agent))
                if mask is not None:
                    events.masks[agent] = mask
        events.over = not self._live
        return events

    def _refuse_revived(
        self, listed: list[str], terminations: Mapping[str, Any], truncations: Mapping[str, Any]
    ) -> None:
        for agent in self._ended.intersection(listed):
            flags = [flag.get(agent) for flag in (terminations, truncations)]
            if agent in self._gone or (None not in flags and not any(flags)):
                raise BrokenContract("it had ended in this episode and came back", agent)


def mask_of(observation: Any, info: Any) -> Any:
    """The action mask that was given with an observation, or in its info; None without one."""
    for holder in (observation, info):
        if isinstance(holder, Mapping) and MASK_KEY in holder:
            return holder[MASK_KEY]
    return None
