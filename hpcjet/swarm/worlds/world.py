"""What one environment tells, whatever its kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class BrokenContract(Exception):
    """An environment did what its interface forbids; `agent` is whom it concerns, if anyone."""

    def __init__(self, message: str, agent: str | None = None) -> None:
        super().__init__(message)
        self.agent = agent


@dataclass
class Events:
    """What came of a reset or a step."""

    observed: dict[str, Any] = field(default_factory=dict)
    """Agents that are to act now, with what they see. Live agents that are not here pause."""
    masks: dict[str, Any] = field(default_factory=dict)
    """Action masks that were given, by agent."""
    rewards: dict[str, float] = field(default_factory=dict)
    terminated: set[str] = field(default_factory=set)
    truncated: set[str] = field(default_factory=set)
    finals: dict[str, Any] = field(default_factory=dict)
    """Last observations of agents that ended, as far as there are any."""
    over: bool = False
    """The episode has ended: nobody lives."""

    def end(self, agent: str, *, terminated: bool, observation: Any = None, rewarded: bool = True) -> None:
        """Note an end. Without its last reward the last action cannot be learned from: it counts as cut short."""
        if terminated and rewarded:
            self.terminated.add(agent)
        else:
            self.truncated.add(agent)
        if observation is not None and rewarded:
            self.finals[agent] = observation


class World(Protocol):
    """One environment. Its methods may raise whatever the environment raises, and BrokenContract."""

    def possible_agents(self) -> Sequence[str] | None:
        """All agents that there will ever be, or None if that is not known."""

    def spaces(self, agent: str) -> tuple[Any, Any]:
        """Observation and action space of an agent."""

    def state_space(self) -> Any | None:
        """The space of its global state, or None if it has none. Raises ConfigError for a state without a space."""

    def state(self) -> Any:
        """The global state as it is now, after an episode's end too; only asked for where there is a space."""

    def reset(self, seed: int) -> Events: ...

    def step(self, actions: Mapping[str, Any]) -> Events:
        """Act for those that were observed last."""

    def close(self) -> None: ...
