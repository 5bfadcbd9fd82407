"""Slurm's short form of host lists."""

import itertools
import math
import re

from hpcjet.errors import ConfigError

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_PART = re.compile(r"[^\[\],\s]*(?:\[[^\[\]]*\][^\[\],\s]*)*")
MAX_HOSTS = 1_000_000
"""More than any cluster has: a slip of the pen, which must not eat the memory."""


def expand(text: str) -> list[str]:
    """Host names of a list such as `rack[1-2]n[01-02],login1,n[3,5]-ib`, in Slurm's order, which is that of the ranks.

    Raises ConfigError for text that is no such list.
    """
    if text.count("[") != text.count("]"):
        raise _no_list(text, "its brackets do not match")
    return [host for part in _split(text) for host in _expand_part(part)]


def _split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _expand_part(part: str) -> list[str]:
    if not _PART.fullmatch(part):
        raise _no_list(part, "brackets hold numbers, and names hold no spaces")
    literals = _BRACKETS.split(part)[::2]
    choices = [_numbers(inside, part) for inside in _BRACKETS.findall(part)]
    if math.prod(map(len, choices)) > MAX_HOSTS:
        raise _no_list(part, f"more than {MAX_HOSTS:,} hosts")
    return [
        "".join(itertools.chain.from_iterable(itertools.zip_longest(literals, combination, fillvalue="")))
        for combination in itertools.product(*choices)
    ]


def _numbers(inside: str, part: str) -> list[str]:
    found: list[str] = []
    for each in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each.strip(), re.ASCII)
        if not match:
            raise _no_list(part, f"{each!r} is no number or range")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MAX_HOSTS:
            raise _no_list(part, f"{each!r} does not go from a number to a higher one that is near")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _no_list(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} is not a Slurm node list: {why}; see scontrol show hostnames")
