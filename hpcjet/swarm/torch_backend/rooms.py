"""Buffers that each thread has of its own, by the number of rows they are for: memory that is at hand, not fresh."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from threading import local
from typing import Any, Generic, TypeVar

Room = TypeVar("Room")
MOST = 64e6
"""Bytes that a thread keeps, of all `Rooms` together: those that were used last."""

_numbers = count()


class _Held(local):
    def __init__(self) -> None:
        self.rooms: OrderedDict[tuple[int, int], tuple[Any, float]] = OrderedDict()
        self.bytes = 0.0


_held = _Held()


class Rooms(Generic[Room]):
    """`row` is about how many bytes a row takes."""

    def __init__(self, make: Callable[[int], Room], row: float) -> None:
        self._make, self._row, self._number = make, row, next(_numbers)

    def of(self, rows: int) -> Room:
        """This thread's, for so many rows. What it holds is left from the last use."""
        key, rooms = (self._number, rows), _held.rooms
        if key in rooms:
            rooms.move_to_end(key)
        else:
            rooms[key] = self._make(rows), rows * self._row
            _held.bytes += rows * self._row
            while _held.bytes > MOST and len(rooms) > 1:
                _held.bytes -= rooms.popitem(last=False)[1][1]
        room: Room = rooms[key][0]
        return room
