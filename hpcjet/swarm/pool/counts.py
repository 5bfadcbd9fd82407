"""What the index counts, since it began: by node, for the rate limit, and what was lost."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from hpcjet.swarm.pool.entry import Entry
from hpcjet.swarm.sampling import RateLimiter


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


class Counts:
    """All of it; without a rate limit nobody waits for it."""

    def __init__(self, limiter: RateLimiter | None) -> None:
        self.limiter = limiter
        self.losses = Losses()
        self.nodes: defaultdict[str, NodeCounts] = defaultdict(NodeCounts)
        self.over_quota = 0
        """Fragments that were chosen beyond the quotas."""

    @property
    def may_insert(self) -> bool:
        return self.limiter is None or self.limiter.may_insert(1)

    def may_sample(self, n: int) -> bool:
        return self.limiter is None or self.limiter.may_sample(n)

    def admit(self, entry: Entry) -> None:
        if self.limiter is not None:
            self.limiter.inserted(1)
        node = self.nodes[entry.node]
        node.inserted += 1
        node.inserted_bytes += entry.nbytes

    def used(self, times: int) -> None:
        """One that is admitted was sampled so often under an index before."""
        if self.limiter is not None:
            self.limiter.sampled(times)

    def sample(self, drawn: int, fetched: Iterable[Entry], over_quota: int) -> None:
        """So many were drawn, of which these are fetched."""
        if self.limiter is not None:
            self.limiter.sampled(drawn)
        self.over_quota += over_quota
        for entry in fetched:
            node = self.nodes[entry.node]
            node.sampled += 1
            node.sampled_bytes += entry.nbytes

    def give_back(self) -> None:
        """One that was drawn was not learned from."""
        if self.limiter is not None:
            self.limiter.sampled(-1)

    def forget_samples(self, times: int) -> None:
        """A fragment that was sampled so many times is gone."""
        if self.limiter is not None:
            self.limiter.lost(times)

    def lose(self, entry: Entry, why: str) -> None:
        """One that was admitted and nobody learned from."""
        self.losses.add(why, 1)
        self.nodes[entry.node].lost += 1
