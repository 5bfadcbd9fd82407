"""Where attempts are started: spread over the nodes, and not where they cannot end in time. Pure."""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

ENOUGH_SEEN = 10
"""Attempts that must have ended before their lengths say more than the limits of their stages."""
MARGIN = 1.5
"""How much longer than the longest one seen an attempt is expected to take at the most."""


@dataclass(frozen=True)
class Offer:
    """A worker process with room."""

    free: int
    left_s: float = math.inf
    """Until the end of its node."""
    life_s: float = math.inf
    """How long nodes of its kind are had at the most."""


@dataclass
class Lengths:
    """How long attempts take. The limits of their stages allow hours where most take minutes."""

    limit_s: float
    longest_s: float = 0.0
    sum_s: float = 0.0
    seen: int = 0

    def add(self, seconds: float) -> None:
        """One attempt ended."""
        self.longest_s = max(self.longest_s, seconds)
        self.sum_s += seconds
        self.seen += 1

    @property
    def expected_s(self) -> float:
        """The longest that an attempt is expected to take: known after a few, the limit before."""
        return self.limit_s if self.seen < ENOUGH_SEEN else min(self.limit_s, MARGIN * self.longest_s)

    @property
    def mean_s(self) -> float:
        """0 before the first one has ended."""
        return self.sum_s / self.seen if self.seen else 0.0


def never_holds(offer: Offer, needed_s: float) -> bool:
    """Not even a fresh node of its kind would: to wait for one is no use."""
    return offer.life_s < needed_s


def assign(offers: Sequence[Offer], jobs: int, lengths: Lengths) -> list[int]:
    """For each of at most `jobs` jobs the index of the offer that takes it, in the order in which they are handed out.

    First those where it ends in time, most free first; then those of kinds where it may never do so, most time left
    first, as long as about half of the attempts would.
    """
    ranks = [_rank(offer, lengths) for offer in offers]
    free = [offer.free for offer in offers]
    heap = [entry for index in range(len(offers)) if (entry := _entry(offers, ranks, free, index))]
    heapq.heapify(heap)
    taken: list[int] = []
    while heap and len(taken) < jobs:
        index = heap[0][2]
        taken.append(index)
        free[index] -= 1
        if entry := _entry(offers, ranks, free, index):
            heapq.heapreplace(heap, entry)
        else:
            heapq.heappop(heap)
    return taken


def _rank(offer: Offer, lengths: Lengths) -> int | None:
    if offer.left_s >= lengths.expected_s:
        return 0
    likely = offer.left_s >= min(lengths.mean_s, offer.life_s / 2)
    return 1 if never_holds(offer, lengths.expected_s) and likely else None


def _entry(
    offers: Sequence[Offer], ranks: Sequence[int | None], free: Sequence[int], index: int
) -> tuple[int, float, int] | None:
    rank = ranks[index]
    if rank is None or free[index] < 1:
        return None
    return rank, -offers[index].left_s if rank else -free[index], index
