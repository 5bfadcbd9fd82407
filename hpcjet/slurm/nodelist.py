"""Slurm's short form of host lists."""

import itertools
import re

from hpcjet.errors import ConfigError

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def expand(text: str) -> list[str]:
    """Host names of a list such as `rack[1-2]n[01-02],login1,n[3,5]-ib`, in Slurm's order, which is that of the ranks.

    Raises ConfigError for text that is no such list.
    """
    if text.count("[") != text.count("]"):
        raise ConfigError(f"{text!r} is not a Slurm node list: its brackets do not match; see scontrol show hostnames")
    return [host for part in _split(text) for host in _expand_part(part)]


def _split(text: str) -> list[str]:
    """Parts between the commas that stand outside brackets."""
    return [part for part in re.split(r",(?![^\[]*\])", text) if part]


def _expand_part(part: str) -> list[str]:
    literals = _BRACKETS.split(part)[::2]
    choices = [_numbers(inside, part) for inside in _BRACKETS.findall(part)]
    return [
        "".join(itertools.chain.from_iterable(itertools.zip_longest(literals, combination, fillvalue="")))
        for combination in itertools.product(*choices)
    ]


def _numbers(inside: str, part: str) -> list[str]:
    found = []
    for each in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", each)
        if not match:
            raise ConfigError(f"{part!r} is not a Slurm node list: {each!r} is no number or range")
        first, last = match[1], match[2] or match[1]
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found
