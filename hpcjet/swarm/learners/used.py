"""What was learned from and may still lie in a pool."""

from collections.abc import Iterable, Mapping

from hpcjet.swarm.pool.entry import Key

RECENT = 16
"""Batches. Pools are told to free what is used up at once, so that an index that dies leaves the last ones at most."""


class Used:
    """Kept for an index that is started again, since pools offer it all that they hold.

    With the process of rank 0 it is gone; what was learned since its newest checkpoint may be learned from again then.
    """

    def __init__(self, batch: int, held: int) -> None:
        """`batch`: fragments of an update; `held`: those that pools keep, since they are used again."""
        # Twice: those that were evicted since are among them.
        self._kept = max(RECENT * batch, 2 * held)
        self._times: dict[Key, int] = {}

    def add(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._times[key] = self._times.pop(key, 0) + 1  # the newest are last
        while len(self._times) > self._kept:
            del self._times[next(iter(self._times))]

    @property
    def times(self) -> Mapping[Key, int]:
        """How often each was learned from."""
        return dict(self._times)
