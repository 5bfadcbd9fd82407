"""When a replica that gets no more requests has none under way any more. Pure: fed with looks, asked for a verdict."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_LOOKS = 2
"""Looks in a row that must find nothing: a request may have been on its way to the replica at the first."""


@dataclass
class _Parted:
    at: float
    idle_looks: int = 0


class Quiet:
    """Of the replicas of a pool, by number."""

    def __init__(self, longest_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`longest_s`: after so many seconds nothing counts as under way any more."""
        self._longest_s, self._clock = longest_s, clock
        self._parted: dict[int, _Parted] = {}

    def part(self, number: int) -> None:
        """From now on it gets no requests."""
        self._parted[number] = _Parted(self._clock())

    def forget(self, number: int) -> None:
        """It gets requests again."""
        self._parted.pop(number, None)

    def take(self, number: int, load: Mapping[str, Any], *, began: float) -> None:
        """A look at it, which began at that time; `load` is what Gauges tell, empty if the replica did not answer."""
        if (parted := self._parted.get(number)) and began >= parted.at:
            is_idle = load.get("running") == 0 and not load.get("waiting")
            parted.idle_looks = parted.idle_looks + 1 if is_idle else 0

    def is_quiet(self, number: int) -> bool:
        """Whether nothing is under way there; also of one that never got any requests."""
        parted = self._parted.get(number)
        return parted is None or parted.idle_looks >= _LOOKS or self._clock() >= parted.at + self._longest_s
