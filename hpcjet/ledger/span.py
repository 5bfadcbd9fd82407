"""A time for which a node stood somewhere, and the words about one node as a list of such times. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Stand(str, Enum):
    """Where a node stood."""

    booting = "booting"
    """It was had, and not in the run yet; or it waited for another head."""
    joined = "joined"
    draining = "draining"
    dead = "dead"
    """It was lost, and its allocation had it still."""


class Word(str, Enum):
    """What became of a node."""

    up = "up"
    joined = "joined"
    drain = "drain"
    lost_here = "lost_here"
    """It is no more, but its allocation keeps it."""
    headless = "headless"
    """The head ended, and another is to come."""
    gone = "gone"
    """It is not had any more."""


@dataclass(frozen=True, kw_only=True)
class Span:
    """Times are Unix seconds on the head's clock."""

    member: str
    group: str
    is_head: bool
    """Whether it is the node with the driver."""
    stand: Stand
    begin: float
    end: float
    worked_s: float = 0.0
    """For how long of it the workload ran."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


_NEXT = {
    Word.up: Stand.booting,
    Word.joined: Stand.joined,
    Word.drain: Stand.draining,
    Word.lost_here: Stand.dead,
    Word.headless: Stand.booting,
    Word.gone: None,
}


def stands(words: Iterable[tuple[float, Word]]) -> list[tuple[Stand, float, float]]:
    """(where, begin, end) from the words in the order in which they were said; the last one is `gone`.

    A time before that of the word before it, as of a clock that is behind, is taken for the same.
    """
    found: list[tuple[Stand, float, float]] = []
    stand, since = None, float("-inf")
    for t, word in words:
        at = max(t, since)
        if stand is not None and at > since:
            found.append((stand, since, at))
        if not _says_nothing(stand, word):
            stand = _NEXT[word]
        since = at
    return found


def _says_nothing(stand: Stand | None, word: Word) -> bool:
    """An agent that was up already; a word about a node that is not there; one that is dead stays so."""
    if word is Word.up:
        return stand is not None
    if stand is Stand.dead:
        return word is not Word.gone
    return stand is None and word is not Word.joined


def overlap_s(begin: float, end: float, windows: Sequence[tuple[float, float]]) -> float:
    """Seconds of a time that lie in any of the windows, which do not overlap each other."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in windows)
