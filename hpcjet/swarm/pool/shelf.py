"""The entries of the index, and which of them come next."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcjet.config.swarm.pool import Order, PoolConfig
from hpcjet.swarm.pool.cell import Cell, Held, Kind
from hpcjet.swarm.pool.draw import Quotas, Times, draw
from hpcjet.swarm.pool.entry import Entry, Key
from hpcjet.swarm.sampling import weights
from hpcjet.swarm.sampling.priorities import all_totals

Floats = np.typing.NDArray[np.float64]
FEW = 64


class Shelf:
    """Entries by key, in the order in which they came, and by policy, node and group."""

    def __init__(self, config: PoolConfig, rng: np.random.Generator) -> None:
        self.config, self.rng = config, rng
        self.held: dict[Key, Held] = {}
        self._weighted = config.order is Order.prioritised
        self._cells: dict[str, dict[Kind, Cell]] = {}
        self._queues: dict[str, list[tuple[Any, Key]]] = {}

    def __len__(self) -> int:
        return len(self.held)

    @property
    def oldest(self) -> Held:
        return next(iter(self.held.values()))

    def of(self, which: Callable[[Held], bool]) -> list[Held]:
        return [held for held in self.held.values() if which(held)]

    def available(self, policy: str) -> int:
        """Entries of a policy."""
        return sum(len(cell) for cell in self._cells.get(policy, {}).values())

    def add(self, key: Key, entry: Entry, *, times: int = 0, mass: float | None = None) -> None:
        """Without a mass an entry gets that of its priority, or else as much as the greatest has."""
        kind = Kind(entry.policy, entry.node, entry.group)
        given = entry.priority if mass is None else None
        mass = self._most(entry.policy) if mass is None else mass
        held = self.held[key] = self._cell(kind).add(key, entry, kind, mass=mass, times=times)
        if given is not None:
            self.prioritise(held, given)
        if self.config.order is Order.in_order:
            self._line_up(entry, key)

    def take(self, held: Held) -> None:
        """It is here no more; it keeps its mass."""
        del self.held[held.key]
        self._cell(held.kind).remove(held)

    def prioritise(self, held: Held, priority: float) -> None:
        """Raises ValueError for a priority that is below 0 or not finite."""
        self._cell(held.kind).update(held, priority)

    def mass(self, held: Held) -> float:
        return self._cell(held.kind).mass(held) if held.key in self.held else held.mass

    def weights(self, policy: str, drawn: list[Held]) -> Floats:
        """Importance weights of what was drawn of a policy, before any of it is taken."""
        if not self._weighted:
            return np.ones(len(drawn))
        totals = all_totals(cell.priorities.totals for cell in self._cells[policy].values())
        return weights(np.array([self.mass(held) for held in drawn]), totals, beta=self.config.beta)

    def choose(self, policy: str, n: int, shares: tuple[float, float], may: Callable[[Held], bool]) -> list[Held]:
        """n entries or fewer, within quotas by node and group; nothing is taken. In order `may` is not asked."""
        cells = {kind: cell for kind, cell in self._cells.get(policy, {}).items() if len(cell)}
        quotas = Quotas(n, cells, *shares)
        if self.config.order is Order.in_order:
            return self._next_in_order(policy, n, quotas)
        return draw(cells, n, self.rng, may=may, quotas=quotas, times=Times(self.config.max_times))

    def _line_up(self, entry: Entry, key: Key) -> None:
        queue = self._queues.setdefault(entry.policy, [])
        heapq.heappush(queue, (entry.place_in_run, key))
        if len(queue) > 2 * len(self.held) + FEW:  # most of them are gone: nobody samples this policy
            queue[:] = [item for item in queue if item[1] in self.held]
            heapq.heapify(queue)

    def _next_in_order(self, policy: str, n: int, quotas: Quotas) -> list[Held]:
        queue = self._queues.setdefault(policy, [])
        chosen: list[Held] = []
        passed: dict[Key, tuple[Any, Key]] = {}
        while queue and len(chosen) < n:
            item = heapq.heappop(queue)
            # An entry that was given back stands in the queue twice.
            if (held := self.held.get(item[1])) is None or item[1] in passed:
                continue
            passed[item[1]] = item
            if quotas.allow(held.kind):
                quotas.take(held.kind)
                chosen.append(held)
        for item in passed.values():
            heapq.heappush(queue, item)
        return chosen

    def _most(self, policy: str) -> float:
        if not self._weighted:
            return 1.0
        return max((cell.priorities.most for cell in self._cells.get(policy, {}).values()), default=0.0) or 1.0

    def _cell(self, kind: Kind) -> Cell:
        cells = self._cells.setdefault(kind.policy, {})
        if kind not in cells:
            cells[kind] = Cell(self.config.alpha if self._weighted else 0.0)
        return cells[kind]
