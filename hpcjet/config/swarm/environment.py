"""Environments of others: which one, and how it is made."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING

from hpcjet.config.check import at_least, bad
from hpcjet.config.swarm.formation import FormationConfig


class Stepping(Enum):
    """How worlds of Gymnasium are stepped.

    single: one by one, each by itself: one that fails does not touch the others.
    vector: by one vector environment of Gymnasium's; faster, and one that fails ends them all. With
    '+exp.environment.kwargs.vectorization_mode=vector_entry_point' by the one that an environment has of its own; such
    a one takes a single seed, and the same run on other seats has other episodes.
    """

    single = "single"
    vector = "vector"


class Api(Enum):
    """Which of PettingZoo's interfaces.

    parallel: all agents act in each step.
    aec: agents take turns.
    """

    parallel = "parallel"
    aec = "aec"


@dataclass
class GymnasiumConfig:
    """An environment of Gymnasium."""

    env: str = "CartPole-v1"
    """Its id, or module:function for a function that makes it (single: an Env; vector: a VectorEnv, of num_envs)."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments that it is made with."""
    imports: list[str] = field(default_factory=list)
    """Modules that are imported before, such as those that register ids."""
    stepping: Stepping = Stepping.single
    """single or vector."""
    limit_s: float = 60.0
    """So long it may take for one call."""
    max_faults: int = 3
    """single: a world that fails more often than this is left out."""

    def __post_init__(self) -> None:
        _check(self)


@dataclass
class PettingZooConfig:
    """An environment of PettingZoo."""

    env: str = MISSING
    """A registered name such as classic/rps-v2, a module with parallel_env and env such as mpe2.simple_spread_v3, or
    module:function."""
    api: Api = Api.parallel
    """parallel or aec."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments that it is made with."""
    imports: list[str] = field(default_factory=list)
    """Modules that are imported before."""
    groups: dict[str, str] = field(default_factory=dict)
    """From patterns of agents' names (such as adversary_*) to groups, of which the first that fits counts. Empty: all
    agents are one group, agent."""
    rows: dict[str, int] = field(default_factory=dict)
    """Most agents that a group has in a world at a time; by default those that are possible, or there at first."""
    limit_s: float = 60.0
    """So long it may take for one call."""
    max_faults: int = 3
    """A world that fails more often than this is left out."""

    def __post_init__(self) -> None:
        _check(self)
        for group, rows in self.rows.items():
            at_least(f"exp.environment.rows.{group}", rows, 1)


EnvironmentConfig = FormationConfig | GymnasiumConfig | PettingZooConfig
"""What worlds are made of."""


def _check(config: GymnasiumConfig | PettingZooConfig) -> None:
    if not config.env:
        raise bad("exp.environment.env", repr(config.env), "an environment has a name", "set exp.environment.env=NAME")
    at_least("exp.environment.limit_s", config.limit_s, 0.01)
    at_least("exp.environment.max_faults", config.max_faults, 0)
