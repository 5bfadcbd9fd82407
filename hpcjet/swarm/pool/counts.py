"""What the index counts, since it began."""

from dataclasses import dataclass


@dataclass
class Losses:
    """Fragments that were made and never learned from, and why."""

    node: int = 0
    """Their node or pool went away."""
    stale: int = 0
    """They were too old."""
    late: int = 0
    """They came of an old attempt."""
    begun: int = 0
    """Their source ended before they did."""
    evicted: int = 0
    """They made room for others."""
    missing: int = 0
    """They were chosen and not there any more."""

    def add(self, why: str, n: int) -> None:
        setattr(self, why, getattr(self, why) + n)


@dataclass
class NodeCounts:
    """Fragments of one node."""

    inserted: int = 0
    inserted_bytes: int = 0
    sampled: int = 0
    """Times that one was chosen and is fetched."""
    sampled_bytes: int = 0
    """Bytes of those, uncompressed."""
    lost: int = 0
    """Admitted, and never learned from."""

    def insert(self, nbytes: int) -> None:
        self.inserted += 1
        self.inserted_bytes += nbytes

    def sample(self, nbytes: int) -> None:
        self.sampled += 1
        self.sampled_bytes += nbytes
