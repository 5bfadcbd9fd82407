"""The nodes of the head allocation, there, joined or lost, as the head knows them; and the words of the lifeline.

Pure: fed with words, asked for facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcjet.cluster.lifeline import GONE, Word

HELLO = "hello"
"""A node agent is connected; facts: host, started (Unix seconds), links, nonce (for the head's proof), group, job,
cpus, gpus, and ends, when its allocation ends in Unix seconds, or None."""
JOINED = "joined"
"""Its Ray is up; facts: interface, address."""
FAILED = "failed"
"""Something there failed; facts: reason."""
BYE = "bye"
"""It has ended all that it started; facts: drained, whether nothing of anybody's was left there before."""
LEAVING = "leaving"
"""Slurm takes the node back; facts: reason (PREEMPTED, TIME_LIMIT, CANCELLED), by (Unix seconds)."""
WELCOME = "welcome"
"""The head to a member: it is let in; facts: proof, which shows that this is the head."""
RAY = "ray"
"""The head to all: Ray's head is up, or there is none to wait for; facts: address, gcs_port (None without Ray)."""
DRAIN = "drain"
"""The head to a member: nothing new for it, it will be given back; facts: reason, by (Unix seconds)."""
DONE = "done"
"""The head to one or all: the end, in order."""

PREEMPTED, TIME_LIMIT, CANCELLED = "preempted", "time limit", "cancelled"
"""Why Slurm takes a node back."""


def member_name(place_name: str, rank: int) -> str:
    """The name of a node agent among those of all allocations; `place_name` is its allocation's, with the restart."""
    return f"{place_name}:{rank}"


def place_of(member: str) -> str:
    """The allocation and restart in a member's name."""
    return member.rpartition(":")[0]


@dataclass
class Members:
    """The nodes by rank; the head is rank 0 and joins like the others."""

    hosts: Sequence[str]
    hellos: dict[int, dict[str, Any]] = field(default_factory=dict)
    joined: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)
    """Rank -> why."""
    _left: set[int] = field(default_factory=set)

    def take(self, word: Word) -> None:
        """Learn from one word of a worker."""
        if word.word == HELLO:
            self.hellos[word.rank] = word.facts
            self.lost.pop(word.rank, None)
        elif word.word == JOINED:
            self.joined.add(word.rank)
        elif word.word == FAILED:
            self._lose(word.rank, word.facts["reason"])
        elif word.word == BYE:
            self._left.add(word.rank)
        elif word.word == GONE and word.rank not in self._left:
            self._lose(word.rank, "its node agent was killed, or the node is down")

    @property
    def possible(self) -> int:
        """The most nodes that the run can still have."""
        return len(self.hosts) - len(self.lost)

    @property
    def missing(self) -> list[str]:
        """Hosts that have not joined, in Slurm's order."""
        return [host for rank, host in enumerate(self.hosts) if rank not in self.joined]

    def why_lost(self) -> str:
        """The lost nodes and the first reason, for an error message."""
        names = ", ".join(self.hosts[rank] for rank in sorted(self.lost)[:8])
        more = f" and {len(self.lost) - 8} more" if len(self.lost) > 8 else ""
        return f"{names}{more}: {next(iter(self.lost.values()))}"

    def _lose(self, rank: int, reason: str) -> None:
        self.joined.discard(rank)
        self.lost.setdefault(rank, reason)
