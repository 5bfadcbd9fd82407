"""Keeps the seats roughly in step: none runs further ahead of the slowest than it may."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class Seat:
    """A source that is expected to make fragments all the time."""

    fragments: int = 0
    """Begun, less those that have to be made again."""
    at_a_time: int = 1
    here: bool = True
    """False since it was lost, until it asks again: nobody waits for it."""

    @property
    def round(self) -> int:
        return self.fragments // self.at_a_time


class Pacing:
    """Sources that are not expected are not held back, and nobody waits for them.

    `ahead` is how many rounds a seat may be ahead of the slowest one that is here; None for no bound. With 0 it is also
    settled who begins where not all can: the names decide, so that what is begun does not depend on who asks first.
    """

    def __init__(self, ahead: int | None, seats: Iterable[str] = ()) -> None:
        self.ahead = ahead
        self._seats: dict[str, Seat] = {}
        self._rounds: Counter[int] = Counter()
        self.expect(seats)

    @property
    def least(self) -> int:
        """The round that all who are here have begun."""
        return min(self._rounds, default=0)

    def rounds(self) -> dict[str, int]:
        """Of each seat."""
        return {name: seat.round for name, seat in self._seats.items()}

    def expect(self, sources: Iterable[str]) -> None:
        """These are the seats from now on. One that joins late counts from the least of the others."""
        wanted, least = dict.fromkeys(sources), self.least
        at_a_time = next((seat.at_a_time for seat in self._seats.values()), 1)
        for name in [name for name in self._seats if name not in wanted]:
            self._count(self._seats.pop(name), -1)
        for name in wanted:
            if name not in self._seats:
                self._count(self._seats.setdefault(name, Seat(least * at_a_time, at_a_time)), 1)

    def may_begin(self, source: str, n: int, room: int | None) -> bool:
        """Whether a source may begin its next n fragments, while the budget has room for so many."""
        if (seat := self._seats.get(source)) is None:
            return True
        since = self.least * n if not seat.here else seat.fragments
        self._set(seat, at_a_time=n, here=True, fragments=max(seat.fragments, since))
        if self.ahead is None:
            return True
        if seat.round > self.least + self.ahead:
            return False
        if self.ahead or room is None or room >= n * self._rounds[seat.round]:
            return True
        before = sum(other.here and other.round == seat.round and name < source for name, other in self._seats.items())
        return before * n < room

    def began(self, source: str, n: int) -> None:
        self._add(source, n)

    def again(self, source: str, n: int) -> None:
        """n fragments that it had begun will not be learned from, and have to be made again."""
        self._add(source, -n)

    def lost(self, source: str) -> None:
        """Nobody waits for it until it asks to begin again."""
        if (seat := self._seats.get(source)) is not None:
            self._set(seat, here=False)

    def _add(self, source: str, n: int) -> None:
        if (seat := self._seats.get(source)) is not None:
            self._set(seat, fragments=seat.fragments + n)

    def _set(self, seat: Seat, **changes: int) -> None:
        self._count(seat, -1)
        for name, value in changes.items():
            setattr(seat, name, value)
        self._count(seat, 1)

    def _count(self, seat: Seat, by: int) -> None:
        if seat.here:
            self._rounds[seat.round] += by
            if not self._rounds[seat.round]:
                del self._rounds[seat.round]
