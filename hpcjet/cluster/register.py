"""The members of a run: the node agents of all its allocations as the head knows them, and what members.json says."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any

from hpcjet.cluster.members import place_of

MOST_GONE = 1000
"""So many that are gone are kept; a run that goes on for days may see many more."""


class Standing(str, Enum):
    """Where a member stands."""

    hello = "hello"
    """Its node agent is connected."""
    joined = "joined"
    """Its node works."""
    draining = "draining"
    """It gets no new work."""
    left = "left"
    """It ended in order."""
    lost = "lost"


GONE = (Standing.left, Standing.lost)


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node agent; times are Unix seconds."""

    member: str
    """Its name: <allocation>-<restart>:<rank>."""
    host: str
    group: str
    job: str
    rank: int
    """Within its allocation."""
    address: str = ""
    state: Standing = Standing.hello
    since: float
    """Since when it stands there."""
    ends: float | None = None
    """When its allocation ends; None: not known."""
    cpus: int = 0
    gpus: int = 0
    reason: str = ""
    """Why it drains, left or is lost."""
    by: float | None = None
    """When a draining one is ended."""

    @property
    def is_gone(self) -> bool:
        return self.state in GONE

    @property
    def works(self) -> bool:
        """Whether it may have work."""
        return self.state in (Standing.joined, Standing.draining)

    def facts(self) -> dict[str, str]:
        """What an event says about it."""
        return {"host": self.host, "member": self.member, "group": self.group, "job": self.job}


def introduced(member: str, rank: int, facts: dict[str, Any], *, now: float) -> Member:
    """A member from what its agent says of itself. Raises TypeError, KeyError or ValueError for what cannot be."""
    ends = facts.get("ends")
    return Member(
        member=member,
        host=str(facts["host"]),
        group=str(facts.get("group", "")),
        job=str(facts.get("job", "")) or place_of(member).rpartition("-")[0],
        rank=rank,
        since=now,
        ends=None if ends is None else float(ends),
        cpus=int(facts.get("cpus", 0)),
        gpus=int(facts.get("gpus", 0)),
    )


@dataclass
class Register:
    """Members by name. Each change costs the same, however many there are."""

    _members: dict[str, Member] = field(default_factory=dict)
    _gone: deque[str] = field(default_factory=deque)
    has_changed: bool = False
    """Since `to_json` was called last."""

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def get(self, member: str) -> Member | None:
        return self._members.get(member)

    def put(self, member: Member) -> None:
        """Add a member, or replace what is known of it."""
        self._members[member.member] = member
        self.has_changed = True
        if member.is_gone:
            self._gone.append(member.member)
            self._forget()

    def change(self, member: Member, state: Standing, *, now: float, **facts: Any) -> Member:
        """Have it stand elsewhere; returns what it is now."""
        changed = replace(member, state=state, since=now, **facts)
        self.put(changed)
        return changed

    def to_json(self) -> str:
        """The content of members.json."""
        self.has_changed = False
        return json.dumps([{**asdict(each), "state": each.state.value} for each in self])

    def _forget(self) -> None:
        while len(self._gone) > MOST_GONE:
            oldest = self._members.get(self._gone.popleft())
            # One that came again is not gone, and one that went twice is named twice.
            if oldest and oldest.is_gone and oldest.member not in self._gone:
                del self._members[oldest.member]
