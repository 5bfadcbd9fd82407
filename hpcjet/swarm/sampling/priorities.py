"""Drawing in proportion to a power of the priority, from one pool or from many that know nothing of each other.

P(i) = p_i^alpha / sum of p^alpha; weight of i = (N P(i))^-beta / the greatest weight of all entries.
Source: "Prioritized Experience Replay", arXiv:1511.05952, section 3.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from hpcjet.swarm.sampling.tree import Floats, Ints, SumTree


class NothingToDraw(LookupError):
    """Every priority is 0, or the pool is empty."""


@dataclass(frozen=True)
class Totals:
    """What of a pool has to be known elsewhere: totals of pools add up."""

    count: int = 0
    """Entries that can be drawn."""
    mass: float = 0.0
    """Sum of p^alpha."""
    least: float = float("inf")
    """The least p^alpha above 0."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(self.count + other.count, self.mass + other.mass, min(self.least, other.least))


class Priorities:
    """Priorities of the entries of a pool, by their places from 0 to capacity - 1; 0 where there is none."""

    def __init__(self, capacity: int, *, alpha: float) -> None:
        self.alpha = alpha
        self._tree = SumTree(capacity)
        self._count = 0

    @property
    def totals(self) -> Totals:
        return Totals(self._count, self._tree.total, self._tree.least)

    @property
    def most(self) -> float:
        """The greatest p^alpha."""
        return self._tree.most

    def insert(self, places: Ints) -> None:
        """New entries, with the greatest priority that there is now, so that each is drawn soon; 1 if there is none."""
        most = self._tree.most
        self._set(places, np.full(len(places), most if most > 0 else 1.0))

    def update(self, places: Ints, priorities: Floats) -> None:
        """Give entries their priorities, 0 or more; 0 is never drawn. Raises ValueError for others."""
        if (priorities < 0).any() or not np.isfinite(priorities).all():
            raise ValueError("priorities are finite and 0 or more")
        self._set(places, np.where(priorities > 0, np.power(priorities, self.alpha), 0.0))

    def restore(self, places: Ints, mass: Floats) -> None:
        """Give entries what `mass` said of them."""
        self._set(places, mass)

    def remove(self, places: Ints) -> None:
        self._set(places, np.zeros(len(places)))

    def restore_one(self, place: int, mass: float) -> None:
        """Give one entry its mass; 0 takes it out. Much quicker than `restore`."""
        self._count += (mass > 0) - (self._tree.at(place) > 0)
        self._tree.put(place, mass)

    def mass(self, places: Ints) -> Floats:
        """p^alpha of entries."""
        return self._tree[places]

    def mass_of(self, place: int) -> float:
        """p^alpha of one entry."""
        return self._tree.at(place)

    def draw(self, n: int, rng: np.random.Generator) -> Ints:
        """Places [n], independently. Raises NothingToDraw."""
        if not self._tree.total > 0:
            raise NothingToDraw("every priority is 0")
        return self._tree.find(rng.random(n) * self._tree.total)

    def _set(self, places: Ints, values: Floats) -> None:
        different = np.unique(places)
        before = np.count_nonzero(self._tree[different])
        self._tree[places] = values
        self._count += np.count_nonzero(self._tree[different]) - before


def weights(mass: Floats, totals: Totals, *, beta: float) -> Floats:
    """Importance weights of drawn entries by their p^alpha; `totals` is of all pools together, so is the greatest."""
    # (N p/S)^-beta over its greatest value: N and S cancel.
    return np.power(mass / totals.least, -beta)


def draw_sharded(totals: Sequence[Totals], n: int, rng: np.random.Generator) -> list[int]:
    """How many of n entries to draw from each pool, so that all are drawn as if from one. Raises NothingToDraw.

    Together with `Priorities.draw` in each pool the distribution is exactly the flat one: the counts of n independent
    draws are multinomial with the pools' masses.
    """
    mass = np.array([each.mass for each in totals], dtype=np.float64)
    if not mass.sum() > 0:
        raise NothingToDraw("every priority in every pool is 0")
    # A pool without mass is left out: rounding may give the last one what is left over.
    there = np.flatnonzero(mass)
    counts = np.zeros(len(mass), dtype=np.int64)
    counts[there] = rng.multinomial(n, mass[there] / mass[there].sum())
    return [int(count) for count in counts]


def all_totals(totals: Iterable[Totals]) -> Totals:
    """Those of many pools together."""
    return reduce(Totals.__add__, totals, Totals())
