"""What an index answers to a learner."""

from dataclasses import dataclass

from hpcjet.swarm.pool.entry import Entry, Key


@dataclass(frozen=True)
class Chosen:
    """A fragment to learn from."""

    key: Key
    entry: Entry
    weight: float = 1.0
    """Importance weight, 1 for the greatest of all entries."""
    valid: bool = True
    """False for one that is too old, and is neither fetched nor learned from (too_old=mask)."""


@dataclass(frozen=True)
class Sample:
    """A batch."""

    number: int
    """Of the batch; it is named when what came of it is told."""
    version: int
    """Of the learner then."""
    chosen: tuple[Chosen, ...]
    over_quota: int = 0
    """How many were chosen beyond the quotas, since nothing else could come."""

    def by_pool(self) -> dict[str, list[int]]:
        """What is to be fetched: numbers for each pool, each once."""
        wanted: dict[str, list[int]] = {}
        for key in dict.fromkeys(chosen.key for chosen in self.chosen if chosen.valid):
            wanted.setdefault(key.pool, []).append(key.number)
        return wanted

    @property
    def valid_share(self) -> float:
        """Of the batch; a learner may scale its learning rate by it."""
        return sum(chosen.valid for chosen in self.chosen) / len(self.chosen)
