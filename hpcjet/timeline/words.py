"""How the timeline writes numbers, names and what comes from elsewhere."""

from collections.abc import Sequence

from hpcjet.cluster.events import Fact
from hpcjet.shown.duration import duration


def number(number: Fact) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


def seconds(seconds: float) -> str:
    """For a sentence: no line ends between a number and its unit."""
    return duration(seconds).replace(" ", "\xa0")


def some(hosts: Sequence[str], most: int = 2) -> str:
    """`n1`, `n1 and n2`, `n1, n2 and 7 more`"""
    names = list(hosts[:most])
    if len(hosts) > most:
        return f"{', '.join(names)} and {number(len(hosts) - most)} more"
    return " and ".join(names)


def clean(text: str) -> str:
    """On one line, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\xa0" else " " for letter in text)


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."
