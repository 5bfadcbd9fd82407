"""How weights go from learners to those who act."""

from dataclasses import dataclass

from hpcjet.config.check import at_least


@dataclass
class WeightsConfig:
    """The parameter server."""

    lease_s: float = 5.0
    """A standby takes over at most about so long after the primary is gone."""
    keep: int = 2
    """Versions that a server keeps."""

    def __post_init__(self) -> None:
        at_least("exp.weights.lease_s", self.lease_s, 0.1)
        at_least("exp.weights.keep", self.keep, 1)


@dataclass
class CacheConfig:
    """How often a node asks for new weights."""

    sync_every: int = 1
    """An executor's wish for weights goes on to the parameter server each time this many were made by it; in between it
    gets what its node has. What must be newer is always asked for."""
    push: bool = False
    """Tell the nodes of each new version. It comes sooner to them; they ask all the same, since a push can be lost."""

    def __post_init__(self) -> None:
        at_least("exp.cache.sync_every", self.sync_every, 1)
