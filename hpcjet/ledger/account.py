"""Where the time of the nodes went: at work, idle, booting, draining, lost. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpcjet.ledger.span import Span, Stand

KINDS = ("busy", "idle", "booting", "draining", "wasted")
"""busy: slots at work over slots; booting: until it can begin with work; draining: what was free then; wasted: work
that was lost with its node, and dead nodes."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """Of one node; None: not known."""

    cpus: float | None = None
    gpus: int | None = None


@dataclass(frozen=True, kw_only=True)
class GroupUse:
    """The nodes of one group together."""

    name: str
    seconds: dict[str, float]
    """Node-seconds by kind."""
    size: Size = field(default_factory=Size)
    members: int = 0
    """Nodes that were had, each time anew."""
    most: int = 0
    """Nodes at once."""
    lost: int = 0
    """Attempts that were lost with their node or process."""

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """Hours by kind of nodes, CPUs and GPUs; None where it is not known how many a node has."""
        hours = {kind: seconds / 3600 for kind, seconds in self.seconds.items()}

        def times(number: float | None) -> dict[str, float] | None:
            return None if number is None else {kind: round(each * number, 4) for kind, each in hours.items()}

        return {
            "nodes": self.members,
            "most_at_once": self.most,
            "attempts_lost": self.lost,
            "node_hours": times(1),
            "cpu_hours": times(self.size.cpus),
            "gpu_hours": times(self.size.gpus),
        }


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Of a run."""

    groups: tuple[GroupUse, ...]
    spans: tuple[Span, ...] = ()

    @property
    def total_s(self) -> float:
        """Node-seconds of all groups."""
        return sum(group.total_s for group in self.groups)

    def seconds(self, kind: str) -> float:
        return sum(group.seconds[kind] for group in self.groups)

    def share(self, kind: str) -> float:
        """Of all node-seconds."""
        return self.seconds(kind) / self.total_s if self.total_s else 0.0

    def to_json(self) -> dict[str, Any]:
        shares = {kind: round(self.share(kind), 4) for kind in KINDS}
        return {
            "node_hours": round(self.total_s / 3600, 4),
            "shares": shares,
            "groups": {group.name: group.to_json() for group in self.groups},
        }


@dataclass(frozen=True, kw_only=True)
class Work:
    """What tells how much of a node's time in the run was work."""

    usage: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """usage.json: of the members where attempts were made."""
    by_attempts: bool = False
    """Whether attempts are the work; else the nodes of `whole` are at work as long as the workload runs."""
    whole: Collection[str] = ()
    """Groups whose nodes are at work as a whole, such as those with an engine."""
    is_over: bool = True
    """What is under way in `usage` came to nothing then."""


def account(spans: Sequence[Span], work: Work, *, sizes: Mapping[str, Size]) -> Ledger:
    """The ledger, with a line for each group of `sizes` and for others of which there were nodes, in this order."""
    by_member: dict[tuple[str, str, bool], list[Span]] = {}
    for span in spans:
        by_member.setdefault((span.group, span.member, span.is_head), []).append(span)
    names = list(dict.fromkeys([*sizes, *(span.group for span in spans)]))
    seconds = {name: dict.fromkeys(KINDS, 0.0) for name in names}
    for (group, member, is_head), mine in by_member.items():
        whole = group in work.whole or (is_head and work.by_attempts and member not in work.usage)
        for kind, each in _member(mine, work.usage.get(member, {}), whole=whole, is_over=work.is_over).items():
            seconds[group][kind] += each
    return Ledger(
        groups=tuple(
            GroupUse(
                name=name, seconds=seconds[name], size=sizes.get(name, Size()),
                members=sum(group == name for group, _, _ in by_member),
                most=most_at_once(span for span in spans if span.group == name),
                lost=sum(int(use.get("lost", 0)) for use in work.usage.values() if use.get("group") == name),
            )
            for name in names
        ),
        spans=tuple(spans),
    )  # fmt: skip


def _member(spans: Sequence[Span], use: Mapping[str, Any], *, whole: bool, is_over: bool) -> dict[str, float]:
    """Seconds of one node by kind."""
    stood = {stand: sum(span.seconds for span in spans if span.stand is stand) for stand in Stand}
    in_run = stood[Stand.joined] + stood[Stand.draining]
    running, busy, wasted = (float(use.get(name, 0.0)) for name in ("running_s", "busy_s", "wasted_s"))
    busy, wasted = (busy, wasted + running) if is_over else (busy + running, wasted)
    if whole:
        busy = max(busy, sum(span.worked_s for span in spans if span.stand in (Stand.joined, Stand.draining)))
    busy = min(busy, in_run)
    wasted = min(wasted, in_run - busy)
    starting = min(_starting_s(spans, use), in_run - busy - wasted)
    draining = min(stood[Stand.draining], in_run - busy - wasted - starting)
    return {
        "busy": busy,
        "idle": in_run - busy - wasted - starting - draining,
        "booting": stood[Stand.booting] + starting,
        "draining": draining,
        "wasted": wasted + stood[Stand.dead],
    }


def _starting_s(spans: Sequence[Span], use: Mapping[str, Any]) -> float:
    """From when a node joined until a process there could begin with work, which none may ever have."""
    joined = min((span.begin for span in spans if span.stand is Stand.joined), default=None)
    if joined is None or "ready" not in use:
        return 0.0
    return max(0.0, float(use["ready"]) - joined) if use["ready"] else math.inf


def most_at_once(spans: Iterable[Span]) -> int:
    """The most nodes that were had at one time."""
    changes: list[tuple[float, int]] = []
    for span in spans:
        changes += [(span.begin, 1), (span.end, -1)]
    here = most = 0
    for _, change in sorted(changes):  # of one moment those that end come first
        here += change
        most = max(most, here)
    return most
