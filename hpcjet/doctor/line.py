"""One finding, as a person reads it."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

Facts = dict[str, Any]
"""What a look found: plain data that JSON can hold."""


class Level(str, Enum):
    """How good it is."""

    ok = "ok"
    warn = "warn"
    fail = "fail"


@dataclass(frozen=True)
class Line:
    """One line of the report."""

    level: Level
    subject: str
    text: str
    """What was found; `{}` stands for `amount`."""
    do: str = ""
    """What to do about it."""
    amount: int | None = None
    """Bytes that differ from node to node, though they mean the same."""
    nodes: tuple[str, ...] = ()
    """Where it was found; empty: not on a node."""

    @property
    def shown(self) -> str:
        """What was found, with its amount."""
        if self.amount is None:
            return self.text
        least = "at least " if len(self.nodes) > 1 else ""
        return self.text.replace("{}", f"{least}{size(self.amount)}", 1)


def ok(subject: str, text: str, *, amount: int | None = None) -> Line:
    return Line(Level.ok, subject, text, amount=amount)


def warn(subject: str, text: str, do: str, *, amount: int | None = None) -> Line:
    return Line(Level.warn, subject, text, do, amount)


def fail(subject: str, text: str, do: str) -> Line:
    return Line(Level.fail, subject, text, do)


def size(amount: float) -> str:
    """Bytes for a person: 512 MiB, 1.5 GiB, 68 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.1f} {unit}" if unit == "GiB" and amount < 10 else f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
