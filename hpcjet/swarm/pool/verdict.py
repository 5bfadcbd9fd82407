"""What became of an insert."""

from enum import Enum


class Verdict(Enum):
    """What the index says of a fragment that stands in its pool, which frees it unless it is admitted, or `wait`."""

    admitted = "admitted"
    counted = "counted"
    """It was admitted before, from another place, or learned from under an index before: it is one too many."""
    stale = "stale"
    """Its version is too old, or one that the learner does not know: it went back."""
    late = "late"
    """It is of an old attempt, or of a pool that is gone."""
    wait = "wait"
    """Not now: learning is behind, or the index is full."""
