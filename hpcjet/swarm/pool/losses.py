"""What was made and never learned from, and why."""

from dataclasses import dataclass


@dataclass
class Losses:
    """Fragments, since the index began."""

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
