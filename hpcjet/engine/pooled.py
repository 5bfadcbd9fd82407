"""One replica as the pool knows it: where it is, and what its parts are doing."""

import time
from dataclasses import dataclass, field

from hpcjet.engine.placement import ReplicaPlace
from hpcjet.engine.replica import ReplicaState


@dataclass
class PooledReplica:
    """One replica."""

    place: ReplicaPlace
    url: str
    """http://host:port of its leader."""
    states: dict[int, ReplicaState]
    """By rank; a replica serves if all its parts are ready."""
    reason: str = ""
    lives: dict[int, int] = field(default_factory=dict)
    """By rank: how often a part has begun anew, itself or with its node."""
    told: dict[int, int] = field(default_factory=dict)
    """By rank: its restarts, as its node counts them."""
    since: float = field(default_factory=time.time)
    """Unix seconds of the last change."""
    retired: bool = False
    """Its node was given back or is lost for good: it never comes again."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Keys of its nodes, the leader's first."""
        return tuple(share.node for share in self.place.shares)

    @property
    def restarts(self) -> int:
        """Of the part that was restarted most."""
        return max(self.told.values(), default=0)

    @property
    def life(self) -> int:
        """Another number whenever a part has begun anew."""
        return sum(self.lives.values())

    @property
    def serves(self) -> bool:
        return not self.retired and all(state is ReplicaState.ready for state in self.states.values())

    @property
    def failed(self) -> bool:
        """For good."""
        return any(state is ReplicaState.failed for state in self.states.values())

    @property
    def state(self) -> ReplicaState:
        """The worst of its parts."""
        return max(self.states.values(), key=_WORST.index)


_WORST = [
    ReplicaState.ready,
    ReplicaState.unhealthy,
    ReplicaState.starting,
    ReplicaState.restarting,
    ReplicaState.stopped,
    ReplicaState.failed,
]
