"""Entries of one policy, node and group: what quotas count by."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.sampling import Priorities

FIRST = 16


class Kind(NamedTuple):
    """What the entries of a cell have in common."""

    policy: str
    node: str
    group: str


@dataclass(eq=False)
class Held:
    """An entry in the index."""

    key: Key
    entry: Entry
    kind: Kind
    place: int
    times: int = 0
    """How often it was sampled."""
    mass: float = 1.0
    """priority^alpha, as it was when it was last taken out."""


class Cell:
    """Grows as it must; a place that is given back is used again."""

    def __init__(self, alpha: float) -> None:
        self.priorities = Priorities(FIRST, alpha=alpha)
        self._capacity = FIRST
        self._held: list[Held | None] = [None] * FIRST
        self._free = list(range(FIRST - 1, -1, -1))

    def __getitem__(self, place: int) -> Held:
        held = self._held[place]
        assert held is not None, f"nothing is at {place}"
        return held

    def __len__(self) -> int:
        return self._capacity - len(self._free)

    def add(self, key: Key, entry: Entry, kind: Kind, *, mass: float = 1.0, times: int = 0) -> Held:
        if not self._free:
            self._grow()
        held = Held(key, entry, kind, self._free.pop(), times)
        self._held[held.place] = held
        self.restore(held, mass)
        return held

    def restore(self, held: Held, mass: float) -> None:
        """Give an entry the mass that it had."""
        self.priorities.restore_one(held.place, mass)

    def update(self, held: Held, priority: float) -> None:
        """Raises ValueError for a priority that is below 0 or not finite."""
        self.priorities.update(np.array([held.place]), np.array([priority]))

    def remove(self, held: Held) -> None:
        held.mass = self.mass(held)
        self.priorities.restore_one(held.place, 0.0)
        self._held[held.place] = None
        self._free.append(held.place)

    def mass(self, held: Held) -> float:
        """priority^alpha"""
        return self.priorities.mass_of(held.place)

    def _grow(self) -> None:
        old, places = self.priorities, np.arange(self._capacity)
        self.priorities = Priorities(2 * self._capacity, alpha=old.alpha)
        self.priorities.restore(places, old.mass(places))
        self._held += [None] * self._capacity
        self._free = list(range(2 * self._capacity - 1, self._capacity - 1, -1))
        self._capacity *= 2
