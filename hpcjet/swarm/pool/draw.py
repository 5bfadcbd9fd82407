"""Which entries of many cells are drawn, within quotas."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from hpcjet.swarm.pool.cell import Cell, Held, Kind
from hpcjet.swarm.sampling import draw_sharded


class Quotas:
    """The most of a batch that comes from one node and from one group, by what was taken already."""

    def __init__(self, n: int, kinds: Iterable[Kind], node_share: float, group_share: float) -> None:
        kinds = list(kinds)
        self._most = (
            _most(n, node_share, len({kind.node for kind in kinds})),
            _most(n, group_share, len({kind.group for kind in kinds})),
        )
        self._taken: tuple[Counter[str], Counter[str]] = (Counter(), Counter())

    def allow(self, kind: Kind) -> bool:
        return self._taken[0][kind.node] < self._most[0] and self._taken[1][kind.group] < self._most[1]

    def take(self, kind: Kind) -> None:
        self._taken[0][kind.node] += 1
        self._taken[1][kind.group] += 1


class Times:
    """How often each entry may still be taken; `most` = 0 for any number of times."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: Counter[Held] = Counter()

    def allow(self, held: Held) -> bool:
        return not self._most or held.times + self._now[held] < self._most

    def take(self, held: Held) -> None:
        self._now[held] += 1


def draw(
    cells: Mapping[Kind, Cell], n: int, rng: np.random.Generator, *, may: Callable[[Held], bool], quotas: Quotas,
    times: Times,
) -> list[Held]:  # fmt: skip
    """n entries, or fewer if there are no more; in proportion to their mass as if all were in one pool.

    Where quotas or numbers of times bind, what may not be taken is drawn again among the rest.
    """
    drawn: list[Held] = []
    spent: dict[Kind, list[tuple[Held, float]]] = {}
    try:
        while len(drawn) < n:
            kinds = [kind for kind, cell in cells.items() if quotas.allow(kind) and cell.priorities.totals.mass > 0]
            if not kinds:
                break
            counts = draw_sharded([cells[kind].priorities.totals for kind in kinds], n - len(drawn), rng)
            for held in _shuffled(cells, dict(zip(kinds, counts, strict=True)), rng):
                if not (may(held) and times.allow(held)):
                    _set_aside(cells[held.kind], held, spent)
                elif quotas.allow(held.kind):
                    quotas.take(held.kind)
                    times.take(held)
                    drawn.append(held)
    finally:
        for kind, those in spent.items():
            for held, mass in those:
                cells[kind].restore(held, mass)
    return drawn


def _shuffled(cells: Mapping[Kind, Cell], counts: Mapping[Kind, int], rng: np.random.Generator) -> list[Held]:
    """In any order, so that quotas which are used up half-way prefer none."""
    found = [
        cells[kind][int(place)]
        for kind, count in counts.items()
        if count
        for place in cells[kind].priorities.draw(count, rng)
    ]
    return [found[at] for at in rng.permutation(len(found))]


def _set_aside(cell: Cell, held: Held, spent: dict[Kind, list[tuple[Held, float]]]) -> None:
    mass = cell.mass(held)
    if mass > 0:  # else it is aside already
        spent.setdefault(held.kind, []).append((held, mass))
        cell.priorities.restore_one(held.place, 0.0)


def _most(n: int, share: float, kinds: int) -> int:
    # The quotient of a share is not exact: 0.1 * 30 is a little more than 3.
    return math.ceil(max(share, 1 / max(kinds, 1)) * n - 1e-9)
