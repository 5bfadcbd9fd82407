"""What a training is made of, by its settings: groups of agents, who acts for them, how much an update learns from."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hpcjet.config.check import bad
from hpcjet.config.swarm.exp import FormationExp, GymnasiumExp, PettingZooExp, SwarmConfig
from hpcjet.swarm.environment import EnvironmentConfig, spec_of
from hpcjet.swarm.placement import fragments_of
from hpcjet.swarm.policy.interface import PolicySpec
from hpcjet.swarm.policy.routes import Route, policy_specs, routes
from hpcjet.swarm.vector import VectorSpec


@dataclass(frozen=True)
class Form:
    """The shapes of one training."""

    world: VectorSpec
    """Of a single world."""
    routes: tuple[Route, ...]
    policies: Mapping[str, PolicySpec]

    @property
    def at_a_time(self) -> dict[str, int]:
        """Policy -> fragments that a seat makes at a time."""
        return dict(Counter(route.policy for route in self.routes))

    def fragments(self, exp: SwarmConfig, seats: int) -> dict[str, int]:
        """Policy -> fragments of an update. Raises ConfigError for a number that cannot be shared out."""
        return fragments_of(self.at_a_time, exp.staleness.fragments, seats)


def environment_of(exp: SwarmConfig) -> EnvironmentConfig:
    """What its worlds are."""
    assert isinstance(exp, FormationExp | GymnasiumExp | PettingZooExp)
    return exp.environment


def form_of(exp: SwarmConfig) -> Form:
    """By a world that is made and closed again.

    Raises ConfigError for an environment that cannot be found, has spaces that are not supported or no agents, and for
    a policy map that does not fit; WorldError for a world that cannot be made.
    """
    world = spec_of(environment_of(exp), with_state=exp.policy.central_critic)
    if not any(group.rows for group in world.groups.values()):
        raise bad("exp.environment", environment_of(exp), "it has no agents, and nothing could act", "choose another")
    ways = routes(world, exp.policy_map)
    return Form(world, tuple(ways), policy_specs(world, ways, central_critic=exp.policy.central_critic))
