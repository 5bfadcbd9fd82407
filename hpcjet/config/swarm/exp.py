"""The experiments of the swarm, in the config group `exp`."""

from dataclasses import dataclass, field
from typing import ClassVar

from hpcjet.config.check import at_least, bad
from hpcjet.config.exp import ExpConfig, OnNodeLoss
from hpcjet.config.swarm.environment import GymnasiumConfig, PettingZooConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.config.swarm.learner import LearnerConfig
from hpcjet.config.swarm.policy import PolicyConfig
from hpcjet.config.swarm.pool import PoolConfig
from hpcjet.config.swarm.staleness import StalenessConfig
from hpcjet.config.swarm.weights import CacheConfig, WeightsConfig


@dataclass
class SwarmConfig(ExpConfig):
    """What every training of a swarm takes, whatever its worlds are."""

    on_node_loss: ClassVar[OnNodeLoss] = OnNodeLoss["continue"]

    worlds: int = 8
    """Worlds in all, over all nodes, at least 1."""
    seats: int = 0
    """Processes that step worlds, each an even share of them; 0: one for each CPU that learners leave, but no more than
    worlds. Set it where a training shall be the same on other machines."""
    steps: int = 100
    """Steps of every world in one fragment: what is learned from comes in such pieces."""
    updates: int = 100
    """Stop after so many updates; 0: no such limit."""
    agent_steps: int = 0
    """Stop once agents have acted so often in what was learned from; 0: no such limit."""
    learners: int = 0
    """Processes that learn, each from its share of every batch; 0: one on a GPU, else one for each CPU of one node, or
    for every second one where acting does not wait (staleness.mode=hybrid, async), but no more than 8. Set it, like
    seats, where a training shall be the same on other machines."""
    learner_cpus: int = 0
    """CPUs of each learner, which no worlds get, unless acting waits for learning (staleness.mode=sync); 0: one. More
    are of use for networks that are large."""
    world_memory_gb: float = 0.0
    """Memory of one world in GiB, so that a node gets no more than it has room for; 0: it counts as none."""
    policy_map: dict[str, str] = field(default_factory=dict)
    """From a group of agents (or * for all others) to its policy; {row} in the name makes one for each agent. By
    default each group has its own: +exp.policy_map.GROUP=NAME"""
    backend: str = "torch"
    """torch, or the dotted name of a module with make_policy and make_learner."""
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    """The network of each policy."""
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """How each policy learns."""
    staleness: StalenessConfig = field(default_factory=StalenessConfig)
    """How far acting may be ahead of learning, and how much an update learns from."""
    pool: PoolConfig = field(default_factory=PoolConfig)
    """Where experience is kept, and what of it is learned from."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    """The parameter server."""
    cache: CacheConfig = field(default_factory=CacheConfig)
    """What a node does to get new weights."""
    checkpoint_every: int = 10
    """Updates between two checkpoints, at least 1; there is one at the end as well."""
    evaluate_every: int = 0
    """Updates between two evaluations, in episodes without chance in the actions; 0: only at the end."""
    evaluate_episodes: int = 4
    """Episodes of an evaluation; 0: none."""
    grow: bool = True
    """Nodes that come later get worlds of their own, beyond `worlds`; not where acting waits for learning
    (staleness.mode=sync)."""

    def __post_init__(self) -> None:
        for key, lowest in LOWEST.items():
            at_least(f"exp.{key}", getattr(self, key), lowest)
        if not (self.updates or self.agent_steps):
            raise bad("exp.updates", 0, "without exp.agent_steps too the training would never end", "set one of them")
        if self.seats > self.worlds:
            allowed = f"there are {self.worlds} worlds (exp.worlds), and each seat needs one"
            raise bad("exp.seats", self.seats, allowed, "lower it, or raise exp.worlds")
        if self.worlds > MOST_WORLDS:
            raise bad("exp.worlds", self.worlds, f"it must be {MOST_WORLDS} or less", "lower it")

    @property
    def waits(self) -> bool:
        """Whether acting waits for learning."""
        return self.staleness.bound == 0


@dataclass
class FormationExp(SwarmConfig):
    """A swarm learns to take and hold a formation: each agent its slot, without collisions."""

    environment: FormationConfig = field(default_factory=FormationConfig)
    """What a world is like."""


@dataclass
class GymnasiumExp(SwarmConfig):
    """Agents learn in an environment of Gymnasium."""

    environment: GymnasiumConfig = field(default_factory=GymnasiumConfig)
    """Which one."""


@dataclass
class PettingZooExp(SwarmConfig):
    """Agents learn in an environment of PettingZoo."""

    environment: PettingZooConfig = field(default_factory=PettingZooConfig)
    """Which one."""


MOST_WORLDS = 1 << 15
"""Half of those that seeds are made for; the others are for worlds that come with later nodes, and for evaluation."""

LOWEST = {
    "worlds": 1,
    "seats": 0,
    "steps": 1,
    "updates": 0,
    "agent_steps": 0,
    "learners": 0,
    "learner_cpus": 0,
    "world_memory_gb": 0,
    "checkpoint_every": 1,
    "evaluate_every": 0,
    "evaluate_episodes": 0,
}
