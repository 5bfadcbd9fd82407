"""usage.json: how much of the nodes the attempts used, by member; the ledger is made of it.

{member: {"group", "host", "job", "slots", "busy_s", "running_s", "wasted_s", "attempts", "lost", "since",
"ready"}}. The seconds
are those of attempts over the slots of the member, so that a node whose slots are all at work is busy for one second in
a second. `running_s` is of attempts under way; `wasted_s` of those that were lost with the node or its process.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from hpcjet.cluster.roster import UsableNode


@dataclass
class MemberUse:
    """Of one member; seconds of attempts, not yet over its slots."""

    group: str
    host: str
    job: str
    slots: int = 0
    busy_s: float = 0.0
    running_s: float = 0.0
    wasted_s: float = 0.0
    attempts: int = 0
    lost: int = 0
    since: float = 0.0
    """When its first process was asked for, in Unix seconds."""
    ready: float = 0.0
    """When one could begin with work; 0 before."""


class Usage:
    """The use of all members, those of earlier starts of the run included."""

    def __init__(self, before: Mapping[str, MemberUse] | None = None, *, now: Callable[[], float] = time.time) -> None:
        self._members = dict(before or {})
        self._now = now
        for use in self._members.values():  # what was under way when the driver before this one ended came to nothing
            use.wasted_s, use.running_s = use.wasted_s + use.running_s, 0.0

    def add_slots(self, node: UsableNode, slots: int) -> None:
        """The node has room for so many more attempts at a time."""
        job = node.member.rpartition(":")[0].rpartition("-")[0]
        use = self._members.setdefault(node.member, MemberUse(node.group, node.host, job, since=round(self._now(), 3)))
        use.slots += slots

    def is_ready(self, member: str) -> None:
        """A process there can begin with work."""
        self._members[member].ready = self._members[member].ready or round(self._now(), 3)

    def ended(self, member: str, seconds: float) -> None:
        """An attempt on it left a record."""
        self._members[member].busy_s += seconds
        self._members[member].attempts += 1

    def lost(self, member: str, seconds: float) -> None:
        """An attempt on it left none."""
        self._members[member].wasted_s += seconds
        self._members[member].lost += 1

    def to_json(self, running: Mapping[str, float], *, ended: bool = False) -> str:
        """`running`: member -> seconds of the attempts that are under way there, or are lost if the run has `ended`."""
        members = {}
        for member, use in self._members.items():
            seconds = running.get(member, 0.0)
            change = {"wasted_s": use.wasted_s + seconds} if ended else {"running_s": seconds}
            members[member] = _per_slot(asdict(use) | change)
        return json.dumps(members)


_SECONDS = ("busy_s", "running_s", "wasted_s")


def _per_slot(facts: dict[str, Any]) -> dict[str, Any]:
    return facts | {name: round(facts[name] / max(1, facts["slots"]), 3) for name in _SECONDS}


def read_usage(text: str) -> dict[str, MemberUse]:
    """What `to_json` wrote, in seconds of attempts again; nothing for a text that is no such thing."""
    try:
        data = json.loads(text)
        names = {field.name for field in fields(MemberUse)}
        members = {
            str(member): MemberUse(**{name: facts[name] for name in names if name in facts})
            for member, facts in data.items()
        }
        for use in members.values():
            for name in _SECONDS:
                setattr(use, name, float(getattr(use, name)) * max(1, use.slots))
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
        return {}
    return members
