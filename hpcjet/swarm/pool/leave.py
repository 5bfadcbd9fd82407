"""What sources ask for before they make a fragment, and what the index answers."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


@dataclass(frozen=True)
class Leave:
    """A source may begin."""

    version: int
    """Of the learner."""
    at_least: int
    """The oldest version that it may act with."""


class Refusal(Enum):
    """A source may not begin, however long it waits."""

    over = "over"
    """Its attempt is over: there is a later one, or it was given up."""
    again = "again"
    """It asked under an index that is no more. One that is alive asks again; so nothing is kept for the dead."""


class Wish(NamedTuple):
    """Of a source, to begin; see `Index.begin`."""

    source: str
    attempt: int
    node: str
    n: int
    ticket: int
