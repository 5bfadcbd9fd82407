"""A binary tree of sums and least values, changed and searched for many places at a time."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class SumTree:
    """Numbers of 0 or more at `capacity` places; every sum is that of its two parts, so that errors do not grow."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity}: at least one place")
        self.capacity = capacity
        self._leaves = 1 << (capacity - 1).bit_length()
        self._sum = np.zeros(2 * self._leaves)
        # The least number above 0: a place that holds 0 is as good as empty.
        self._least = np.full(2 * self._leaves, np.inf)
        self._most = np.zeros(2 * self._leaves)

    @property
    def total(self) -> float:
        return float(self._sum[1])

    @property
    def least(self) -> float:
        """The least number above 0; infinite if there is none."""
        return float(self._least[1])

    @property
    def most(self) -> float:
        """The greatest number."""
        return float(self._most[1])

    def __getitem__(self, places: Ints) -> Floats:
        return self._sum[self._nodes(places)]

    def __setitem__(self, places: Ints, values: Floats) -> None:
        """Set numbers; of places that are named twice the last one counts. Raises ValueError, IndexError."""
        values = np.broadcast_to(np.asarray(values, dtype=np.float64), np.shape(places))
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError("priorities are finite and 0 or more")
        nodes = self._nodes(places)
        self._sum[nodes] = self._most[nodes] = values
        self._least[nodes] = np.where(self._sum[nodes] > 0, self._sum[nodes], np.inf)
        nodes = np.unique(nodes >> 1)
        while len(nodes) and nodes[0] >= 1:
            left, right = 2 * nodes, 2 * nodes + 1
            self._sum[nodes] = self._sum[left] + self._sum[right]
            self._least[nodes] = np.minimum(self._least[left], self._least[right])
            self._most[nodes] = np.maximum(self._most[left], self._most[right])
            nodes = np.unique(nodes >> 1)

    def put(self, place: int, value: float) -> None:
        """Set one number: the same as by [], and some ten times quicker."""
        if not 0 <= value < np.inf:
            raise ValueError("priorities are finite and 0 or more")
        sums, leasts, mosts = self._sum, self._least, self._most
        node = self._node(place)
        sums[node] = mosts[node] = value
        leasts[node] = value if value > 0 else np.inf
        node >>= 1
        while node:
            left = 2 * node
            sums[node] = sums[left] + sums[left + 1]
            leasts[node] = min(leasts[left], leasts[left + 1])
            mosts[node] = max(mosts[left], mosts[left + 1])
            node >>= 1

    def at(self, place: int) -> float:
        """One number."""
        return float(self._sum[self._node(place)])

    def find(self, points: Floats) -> Ints:
        """The places at which the running sum passes these points, from 0 to below the total.

        A place that holds 0 is never found, whatever rounding does, and the last one that does not can be.
        """
        nodes = np.ones(len(points), dtype=np.int64)
        points = np.array(points, dtype=np.float64)
        while nodes.size and nodes[0] < self._leaves:
            left, right = self._sum[2 * nodes], self._sum[2 * nodes + 1]
            go_right = (right > 0) & (points >= left)
            points -= np.where(go_right, left, 0)
            nodes = 2 * nodes + go_right
        return nodes - self._leaves

    def _node(self, place: int) -> int:
        if not 0 <= place < self.capacity:
            raise IndexError(f"places are from 0 to {self.capacity - 1}")
        return self._leaves + place

    def _nodes(self, places: Ints) -> Ints:
        if ((places < 0) | (places >= self.capacity)).any():
            raise IndexError(f"places are from 0 to {self.capacity - 1}")
        return self._leaves + places
