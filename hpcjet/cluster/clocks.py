"""Times of several machines on one clock, the head's: clocks differ, and no step can take less than no time.

What cannot have been is known from the order of things: no agent starts before its nodes are allocated, and what the
head noted in one line had happened before what it noted in the next.
"""

from collections.abc import Sequence
from dataclasses import replace

from hpcjet.cluster.events import Entry, Event

_AMISS_S = 1.0
"""Slurm's times are whole seconds: less says nothing of a clock."""
_OF_A_NODE = (Event.agent_up, Event.ray_up)
_OF_OTHERS = (Event.submitted, Event.allocated, Event.agent_up)


def on_one_clock(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, float]]:
    """The events of one allocation on the head's clock, and whose clock differs by about how many seconds.

    Ahead is positive. A clock that is wrong by less than the steps around it cannot be told from one that is right.
    """
    times = [entry.t for entry in entries]
    _forward_only(entries, times)
    clocks = _before_the_agents(entries, times) | _of_the_nodes(entries, times)
    _allocated_first(entries, times)
    moved = [replace(entry, t=t) for entry, t in zip(entries, times, strict=True)]
    return moved, {who: by for who, by in clocks.items() if abs(by) > _AMISS_S}


def _live(entry: Entry) -> bool:
    """Whether the head noted it as it happened."""
    return "noted" not in entry.facts and entry.event not in _OF_OTHERS


def _forward_only(entries: Sequence[Entry], times: list[float]) -> None:
    """The head's own clock may have been set back."""
    latest = float("-inf")
    for index, entry in enumerate(entries):
        if _live(entry):
            times[index] = latest = max(latest, times[index])


def _before_the_agents(entries: Sequence[Entry], times: list[float]) -> dict[str, float]:
    """Submitted, then allocated, then the head's agent: by the clocks of the login node, of Slurm, of the head."""
    where = {entry.event: index for index, entry in reversed(list(enumerate(entries)))}
    submitted, allocated = where.get("submitted"), where.get("allocated")
    clocks, limit = {}, _head_began(entries, times)
    if allocated is not None:
        at_least = times[allocated] if submitted is None else max(times[submitted], times[allocated])
        clocks["Slurm"] = max(times[allocated] - limit, 0.0)
        times[allocated] = limit = min(at_least, limit)
    if submitted is not None:
        clocks["the login node"] = max(times[submitted] - limit, 0.0)
        times[submitted] = min(times[submitted], limit)
    return clocks


def _head(entries: Sequence[Entry]) -> str | None:
    agents = [entry for entry in entries if entry.event == Event.agent_up and not entry.joined_later]
    return next((entry.host for entry in agents if entry.facts.get("rank") == 0), agents[0].host if agents else None)


def _head_began(entries: Sequence[Entry], times: list[float]) -> float:
    """The earliest time on the head's clock."""
    head = _head(entries)
    own = [
        t
        for t, entry in zip(times, entries, strict=True)
        if _live(entry) or (entry.event in _OF_A_NODE and entry.host == head and not entry.joined_later)
    ]
    return min(own, default=float("inf"))


def _of_the_nodes(entries: Sequence[Entry], times: list[float]) -> dict[str, float]:
    """Move the times of a node whose clock must be wrong: all alike, so that its own steps keep their lengths."""
    floor, ceilings, began = _floor(entries, times), _ceilings(entries, times), _head_began(entries, times)
    nodes: dict[tuple[str, str], list[int]] = {}
    for index, entry in enumerate(entries):
        if entry.event in _OF_A_NODE and not _live(entry):
            nodes.setdefault((entry.host, entry.member), []).append(index)
    clocks, head = {}, _head(entries)
    for (host, _), indexes in nodes.items():
        indexes.sort(key=lambda index: (entries[index].event != Event.agent_up, times[index]))
        first, later = indexes[0], entries[indexes[0]].joined_later
        before = float("-inf") if later else floor
        out = max(max(before - times[index], times[index] - ceilings[index]) for index in indexes)
        # The agents of one allocation are started at once, so that is the best guess. Of another one it is known that
        # its nodes may start at any time, the head's before them or after them.
        right = ceilings[first] if later else began
        clocks[host] = by = times[first] - right if out > 0 and (later or host != head) else 0.0
        for index in indexes:
            times[index] = before = max(before, min(times[index] - by, ceilings[index]))
    return clocks


def _floor(entries: Sequence[Entry], times: list[float]) -> float:
    """Before this no agent can have started; an `allocated` that is the head's own start says nothing of the others."""
    known = {entry.event: t for t, entry in zip(times, entries, strict=True)}
    if known.get("allocated", float("inf")) < _head_began(entries, times) - 0.001:
        return known["allocated"]
    return known.get("submitted", float("-inf"))


def _ceilings(entries: Sequence[Entry], times: list[float]) -> list[float]:
    """For each line the head's time when it, or a later one, was written."""
    ceilings, latest = [], float("inf")
    for t, entry in zip(reversed(times), reversed(entries), strict=True):
        noted = entry.facts.get("noted")
        latest = min(latest, noted) if isinstance(noted, int | float) else latest
        ceilings.append(latest)
        if _live(entry):
            latest = min(latest, t)
    return ceilings[::-1]


def _allocated_first(entries: Sequence[Entry], times: list[float]) -> None:
    """Where Slurm does not tell its time, `allocated` is the head's start, and others may have been quicker."""
    agents = [
        t for t, entry in zip(times, entries, strict=True) if entry.event in _OF_A_NODE and not entry.joined_later
    ]
    for index, entry in enumerate(entries):
        if entry.event == Event.allocated:
            times[index] = min([times[index], *agents])
