"""Buffers that each thread has of its own, by the number of rows they are for."""

from collections.abc import Callable
from threading import local
from typing import Generic, TypeVar

Room = TypeVar("Room")
MOST = 4
"""Sizes that a thread keeps room for."""


class Rooms(Generic[Room]):
    def __init__(self, make: Callable[[int], Room]) -> None:
        self._make, self._own = make, local()

    def of(self, rows: int) -> Room:
        """This thread's, for so many rows. What it holds is left from the last use."""
        held: dict[int, Room] = self._own.__dict__.setdefault("held", {})
        if rows not in held:
            if len(held) >= MOST:
                held.clear()
            held[rows] = self._make(rows)
        return held[rows]
