"""The nearest neighbours of every agent, exactly, at a cost that follows the number of pairs in sight."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.int64]

PAIR_BITS = 32
LOW_BITS = (1 << PAIR_BITS) - 1
INFINITE = int(np.float32(np.inf).view(np.int32)) << PAIR_BITS
BEYOND = np.iinfo(np.int64).max
"""No square has this number."""


class Neighbours:
    """Finds for each of `worlds * agents` rows the `k` nearest rows of its world closer than `sight`.

    Agents are sorted by the square of side `sight` in which they stand, so that a column of three squares is one range
    of the sorted agents. Only occupied squares are looked at: neither memory nor time grows with the area. Each call
    starts from the order of the last one, which is nearly right.
    """

    def __init__(self, worlds: int, agents: int, *, sight: float, k: int) -> None:
        self.sight, self.k, self.size = sight, k, worlds * agents
        self._world = np.repeat(np.arange(worlds, dtype=np.int64), agents)
        self._order: Ints = np.arange(self.size, dtype=np.int64)

    def find(self, position: Floats) -> tuple[Ints, Floats]:
        """Rows [k, N], nearest first, N for none; squared distance to the nearest [N], infinite for none.

        `position` is [2, N], world by world.
        """
        first, second, begin = self._pairs(position)
        squared = np.square(position[0][second] - position[0][first])
        squared += np.square(position[1][second] - position[1][first])
        squared = squared.astype(np.float32, copy=False)
        squared[(squared >= self.sight**2) | (first == second)] = np.inf
        # Floats of one sign order like their bits: the distance stands above the number of the pair. The last is none.
        keys = np.append(squared, np.float32(np.inf)).view(np.int32).astype(np.int64)
        keys <<= PAIR_BITS
        keys |= np.arange(len(keys))
        nobody = len(second)
        second = np.append(second, self.size)
        found = np.full((self.k, self.size), self.size)
        nearest = np.full(self.size, np.inf, dtype=np.float32)
        for rank in range(self.k):
            best = np.minimum.reduceat(keys[:-1], begin)
            pair = best & LOW_BITS
            pair[best >= INFINITE] = nobody
            found[rank, self._order] = second[pair]
            if rank == 0:
                nearest[self._order] = keys.view(np.int32)[1::2][pair].view(np.float32)
            keys[pair] |= INFINITE
        return found, nearest

    def _pairs(self, position: Floats) -> tuple[Ints, Ints, Ints]:
        """Pairs of rows (first, second) of adjoining squares, grouped by first in the order of `_order`, and where
        each group begins. Each row is paired with itself too, so that no group is empty."""
        square, stride = self._squares(position)
        self._order = order = self._order[np.argsort(square[self._order], kind="stable")]
        by_square = square[order]
        is_new = np.empty(self.size, dtype=bool)
        is_new[0] = True
        np.not_equal(by_square[1:], by_square[:-1], out=is_new[1:])
        opens = np.flatnonzero(is_new)
        starts, lengths = _ranges(by_square[opens], np.append(opens, self.size), stride)
        which = np.cumsum(is_new) - 1
        start, length = starts[which].reshape(-1), lengths[which].reshape(-1)
        ends = np.cumsum(length)
        second = order[np.repeat(start - ends + length, length) + np.arange(ends[-1])]
        begin = np.append(0, ends[2:-1:3])
        return np.repeat(order, np.diff(begin, append=ends[-1])), second, begin

    def _squares(self, position: Floats) -> tuple[Ints, int]:
        """The square of each row, numbered over all worlds, and the step of that number from a column to the next."""
        square = np.floor(position * (1 / self.sight)).astype(np.int64)
        square -= square.min(axis=1, keepdims=True)
        width, height = (int(extent) + 3 for extent in square.max(axis=1))
        return (self._world * width + square[0] + 1) * height + square[1] + 1, height


def _ranges(occupied: Ints, bounds: Ints, stride: int) -> tuple[Ints, Ints]:
    """Starts and lengths [squares, 3] of the sorted agents in the three columns of three squares around each square."""
    padded = np.append(occupied, [BEYOND] * 3)
    starts, lengths = np.empty((2, len(occupied), 3), dtype=np.int64)
    for column, step in enumerate((-stride, 0, stride)):
        lowest = occupied + (step - 1)
        at = np.searchsorted(occupied, lowest)
        end = at.copy()
        for place in range(3):
            end += padded[at + place] <= lowest + 2
        starts[:, column] = bounds[at]
        lengths[:, column] = bounds[end] - bounds[at]
    return starts, lengths
