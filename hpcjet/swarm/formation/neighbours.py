"""The nearest neighbours of every agent, exactly, at a cost that follows the number of pairs in sight."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

DISTANCE_BITS = 32


class Neighbours:
    """Finds for each of `worlds * agents` rows the `k` nearest rows of its world closer than `sight`.

    Agents are sorted by the square of side `sight` in which they stand, column by column. Whom an agent may see is then
    in few ranges of the sorted agents: behind it in its own square and the next one, and in three squares of the next
    column; who is before it finds it. Only agents are stored: neither memory nor time grows with the area. Each call
    starts from the order of the last one, which is nearly right.
    """

    def __init__(self, worlds: int, agents: int, *, sight: float, k: int) -> None:
        self.sight, self.k, self.size = sight, k, worlds * agents
        self._world = np.repeat(np.arange(worlds, dtype=np.int64), agents)
        self._range: Ints = np.arange(self.size, dtype=np.int64)
        self._order = self._range

    def find(self, position: Floats) -> tuple[Ints, npt.NDArray[np.float32]]:
        """Rows [k, N], nearest first, N for none; squared distance to the nearest [N], infinite for none.

        `position` is [2, N], world by world.
        """
        square, stride = self._squares(position)
        self._order = order = self._order[np.argsort(square[self._order], kind="stable")]
        one, other = self._candidates(square[order], stride)
        x, y = position[0][order], position[1][order]
        squared = np.square(x[other] - x[one]) + np.square(y[other] - y[one])
        near = squared < self.sight**2
        one, other, squared = one[near], other[near], squared[near].astype(np.float32, copy=False)
        return self._ranked(np.append(one, other), np.append(other, one), np.append(squared, squared))

    def _squares(self, position: Floats) -> tuple[Ints, int]:
        """The square of each row, numbered over all worlds, and the step of that number from a column to the next."""
        square = np.floor(position * (1 / self.sight)).astype(np.int64)
        square -= square.min(axis=1, keepdims=True)
        width, height = (int(extent) + 3 for extent in square.max(axis=1))
        return (self._world * width + square[0] + 1) * height + square[1] + 1, height

    def _candidates(self, square: Ints, stride: int) -> tuple[Ints, Ints]:
        """Pairs of sorted agents of adjoining squares, each pair once."""
        start, end = np.empty((2, self.size, 2), dtype=np.int64)
        start[:, 0] = self._range + 1
        end[:, 0] = np.searchsorted(square, square + 1, side="right")
        start[:, 1] = np.searchsorted(square, square + (stride - 1))
        end[:, 1] = np.searchsorted(square, square + (stride + 1), side="right")
        length = (end - start).reshape(-1)
        stop = np.cumsum(length)
        other = np.repeat(start.reshape(-1) - stop + length, length) + np.arange(stop[-1])
        return np.repeat(self._range, length.reshape(-1, 2).sum(axis=1)), other

    def _ranked(self, one: Ints, other: Ints, squared: npt.NDArray[np.float32]) -> tuple[Ints, npt.NDArray[np.float32]]:
        """The result of `find` from all pairs in sight, both ways round."""
        # Floats of one sign order like their bits: sorting these sorts by agent, then by distance.
        by = np.argsort(one << DISTANCE_BITS | squared.view(np.int32))
        one, other = one[by], other[by]
        place = np.arange(len(by))
        rank = place - np.searchsorted(one, one)
        kept = rank < self.k
        rank, one, other, nearest_first = rank[kept], one[kept], other[kept], squared[by[kept]]
        found = np.full((self.k, self.size), self.size)
        found[rank, self._order[one]] = self._order[other]
        nearest = np.full(self.size, np.inf, dtype=np.float32)
        first = rank == 0
        nearest[self._order[one[first]]] = nearest_first[first]
        return found, nearest
