"""How far apart acting and learning may be."""

from dataclasses import dataclass, replace
from enum import Enum

from hpcjet.config.check import at_least

StalenessMode = Enum("StalenessMode", ["sync", "hybrid", "async"])
"""How acting and learning go together. Not a class statement: async is a word of Python's own.

sync: each update learns from what its own version did, and acting waits for the next version.
hybrid: acting may run ahead by eta updates.
async: acting never waits; what is learned from may be of any age.
"""


class TooOld(Enum):
    """What a learner does with what became too old while it waited.

    drop: it is never chosen, and others take its place in the batch.
    mask: it is chosen and counts for the batch, but is neither fetched nor learned from; the batch gets smaller.
    """

    drop = "drop"
    mask = "mask"


@dataclass
class StalenessConfig:
    """The bound on staleness."""

    mode: StalenessMode = StalenessMode.sync
    """sync, hybrid or async."""
    eta: int = 1
    """hybrid: by how many updates what is learned from may be behind."""
    too_old: TooOld = TooOld.drop
    """drop or mask."""
    fragments: int = 0
    """How many fragments one update learns from; 0: one of each seat, for each policy and group that it acts for."""

    def __post_init__(self) -> None:
        at_least("exp.staleness.eta", self.eta, 0)
        at_least("exp.staleness.fragments", self.fragments, 0)

    def resolved(self, seats: int, routes: int) -> "StalenessConfig":
        """With a number of fragments: `routes` is how many a seat makes at a time, one for each policy and group."""
        return replace(self, fragments=self.fragments or seats * routes)

    @property
    def bound(self) -> int | None:
        """Versions; None for no bound."""
        return {"sync": 0, "hybrid": self.eta, "async": None}[self.mode.name]
