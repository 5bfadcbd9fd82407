"""events.jsonl: what happened in the life of a run, and when; the timeline of `hpcjet status` is made of it.

One JSON object per line: {"t": unix seconds, "event": ..., "allocation": ..., "restart": n, ...facts}. All writers of
one allocation are on its head node: two machines that append to a file on NFS would overwrite each other. A `noted`
among the facts says when the head wrote the line; without it that is `t` itself. A worker allocation that finds no head
has a file of its own, events-<allocation>.jsonl.
"""

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

_log = logging.getLogger(__name__)

Fact = str | int | float

_LONGEST_FACT = 500
"""Letters of one text; a reason may carry the end of a log, which has its own file."""
_LAST_S = 2.0**36
"""Unix seconds that a calendar can show: to the year 4147."""
_BATCH_BYTES = 64 * 1024
_START = b'{"t": '


class Event(str, Enum):
    """What happened, in the order of a life; behind it the facts that belong to it.

    Where a node is meant there are also `member`, `group` and `job`: which node agent, of which nodes, in which job.
    """

    submitted = "submitted"
    allocation_submitted = "allocation_submitted"
    """name, group, nodes, job: more nodes were asked for."""
    allocation_failed = "allocation_failed"
    """group, reason, and name where it has one: they were refused, or ended before a node joined."""
    paused = "paused"
    """group, reason, until (Unix seconds): no more nodes of this group are asked for till then."""
    scaled = "scaled"
    """group, nodes: a person wants so many."""
    allocated = "allocated"
    """Slurm gave the nodes."""
    agent_up = "agent_up"
    """host, rank: the node's agent started."""
    refused = "refused"
    """peer, reason: a node agent that may not join."""
    gave_up = "gave_up"
    """reason: a worker allocation found no head and gave its nodes back."""
    ray_up = "ray_up"
    """host: Ray runs on that node."""
    ready = "ready"
    """nodes: at least the minimum is in Ray."""
    workload_start = "workload_start"
    leaving = "leaving"
    """host, reason, and by (Unix seconds) where it is known: Slurm takes the node back."""
    drain = "drain"
    """host, reason: the node gets no more work."""
    left = "left"
    """host, and reason where there is one: the node ended in order and was given back."""
    node_lost = "node_lost"
    """host, reason"""
    stop_asked = "stop_asked"
    """reason: preempted, time limit, cancelled"""
    workload_end = "workload_end"
    """exit_code"""
    requeued = "requeued"
    released = "released"
    """exit_code: all node agents ended."""


class Events:
    """Appends to the events of one allocation; no failure to write ever reaches the caller."""

    def __init__(self, file: Path, *, allocation: str, restart: int) -> None:
        self._file = file
        self._allocation = allocation
        self._restart = restart
        self._warned = False

    def note(self, event: Event, *, at: float | None = None, **facts: Fact) -> None:
        """Add one event; `at` in Unix seconds, now if it is None."""
        self._append(self._line(event, at, facts))

    def note_each(self, event: Event, notes: Iterable[tuple[float, Mapping[str, Fact]]]) -> None:
        """Add one event per (Unix seconds, facts), in few writes: on a network file system each takes milliseconds."""
        batch = b""
        for at, facts in notes:
            batch += self._line(event, at, facts)
            if len(batch) > _BATCH_BYTES:
                self._append(batch)
                batch = b""
        if batch:
            self._append(batch)

    def _line(self, event: Event, at: float | None, facts: Mapping[str, Fact]) -> bytes:
        now = time.time()
        head = {"t": round(now if at is None else at, 3), "event": event.value}
        whose = {"allocation": self._allocation, "restart": self._restart}
        rest = {name: _short(value) for name, value in facts.items() if name not in {*head, *whose}}
        if at is not None:
            rest["noted"] = round(now, 3)  # `at` may be of another machine, whose clock is ahead
        return json.dumps({**head, **whose, **rest}, default=str).encode() + b"\n"

    def _append(self, data: bytes) -> None:
        try:
            descriptor = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                written = os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._warn(error.strerror or str(error))
        else:
            if written < len(data):
                self._warn("no space left")

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("%s cannot be written (%s): the timeline of hpcjet status will have gaps", self._file, why)


def _short(value: Fact) -> Fact:
    return value[: _LONGEST_FACT - 3] + "..." if isinstance(value, str) and len(value) > _LONGEST_FACT else value


@dataclass(frozen=True)
class Entry:
    """One line of the file, as it was written; times of different machines may differ by the error of their clocks."""

    t: float
    """Unix seconds."""
    event: str
    """The value of an Event, or a word that only a later version of hpcjet knows."""
    allocation: str
    restart: int
    facts: dict[str, Fact] = field(default_factory=dict)
    apart: bool = False
    """Whether it stands in the own file of a worker allocation that found no head."""

    @property
    def member(self) -> str:
        """The node agent that it is about; the host where no agent is named."""
        return str(self.facts.get("member", "")) or self.host

    @property
    def joined_later(self) -> bool:
        """Whether it is about a node of another allocation than the head's."""
        member = str(self.facts.get("member", ""))
        return bool(member) and member.rpartition(":")[0].rpartition("-")[0] != self.allocation

    @property
    def host(self) -> str:
        """Without the domain, which Slurm's name of a node may lack, unless it is an address."""
        name = str(self.facts.get("host", "?"))
        first = name.split(".")[0]
        return name if first.isdigit() else first


def read_events(file: Path) -> list[Entry]:
    """The events in the order in which they were written, without lines that a crash or a full disk left torn.

    Those of the worker allocations that found no head come first, so that the last one is the run's.
    """
    others = sorted(file.parent.glob(f"{file.stem}-*{file.suffix}"))
    return [replace(entry, apart=True) for other in others for entry in _read(other)] + _read(file)


def _read(file: Path) -> list[Entry]:
    try:
        return list(_entries(file.read_bytes()))
    except FileNotFoundError:
        return []


def _entries(data: bytes) -> Iterator[Entry]:
    for line in data.split(b"\n"):
        # A torn line has no end: the next one is glued to it. Within a text this start would have its quotes escaped.
        entry = _entry(line[max(line.rfind(_START), 0) :])
        if entry is not None:
            yield entry


def _entry(line: bytes) -> Entry | None:
    try:
        values = json.loads(line)
        known = {name: values.pop(name) for name in ("event", "allocation", "restart")}
        entry = Entry(float(values.pop("t")), **known, facts=values)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    kinds = isinstance(entry.event, str) and isinstance(entry.allocation, str) and isinstance(entry.restart, int)
    return entry if kinds and 0 <= entry.t < _LAST_S else None
