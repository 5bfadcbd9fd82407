"""Which nodes a run works on, and which may still come. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from hpcjet.cluster.roster import UsableNode
from hpcjet.cluster.times import BEFORE_THE_END_S
from hpcjet.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Prospects:
    """Of one start of a run's head."""

    head: str = ""
    """<allocation>-<restart> of the head allocation."""
    group: str | None = None
    """The group whose nodes do the work; None: all."""
    expected: int = 0
    """Nodes of the head allocation that do the work."""
    boot_s: float = math.inf
    """How long those of the head allocation may take to come."""
    grows: frozenset[str] = frozenset()
    """Groups of which new nodes may come as long as the run lasts."""
    life_s: Mapping[str, float] = field(default_factory=dict)
    """Group -> how long its nodes are had, where that is known."""
    head_life_s: float = math.inf
    """How long the head is."""
    warning_s: float = 0.0
    """How long before its end the head stops the work, wherever it is."""
    goes_on: bool = False
    """Whether another allocation takes the run up when the head's ends."""

    @classmethod
    def of(cls, plan: Plan, group: str | None, *, head: str, restart: int) -> "Prospects":
        """Of the run that `plan` is of, at the given restart of its head."""
        works = [each for each in plan.groups if group in (None, each.name)]
        times = {each.name: each.time_min if each.time_min is not None else plan.time_min for each in works}
        return cls(
            head=head,
            group=group,
            expected=sum(each.nodes for each in works if each in plan.head_groups),
            boot_s=plan.boot_timeout_s,
            grows=frozenset(each.name for each in works if each in plan.worker_groups and each.max_nodes > 0),
            life_s={name: minutes * 60.0 for name, minutes in times.items() if minutes is not None},
            head_life_s=math.inf if plan.groups[0].time_min is None else plan.groups[0].time_min * 60.0,
            warning_s=float(plan.signal_delay_s or 0),
            goes_on=plan.requeue and restart < plan.max_restarts,
        )

    def works(self, node: UsableNode) -> bool:
        """Whether attempts are made on it."""
        return self.group is None or node.group == self.group

    def is_of_head(self, member: str) -> bool:
        """Whether the node is one of the head allocation; one that is known by its host alone is."""
        allocation, separator, _ = member.rpartition(":")
        return not separator or allocation == self.head

    def may_come(self, seen: Collection[str], *, waited_s: float = 0.0) -> bool:
        """Whether there may be other nodes than those members that were seen, or lost, since the work began."""
        own = sum(self.is_of_head(member) for member in seen)
        return bool(self.grows) or (own < self.expected and waited_s < self.boot_s)

    def head_ends(self, nodes: Iterable[UsableNode]) -> float | None:
        """When the head allocation ends, in Unix seconds; None where it is not known."""
        return min(
            (node.ends for node in nodes if node.ends is not None and self.is_of_head(node.member)), default=None
        )

    def left_s(self, node: UsableNode, *, now: float, head_ends: float | None = None) -> float:
        """Seconds that work on a node has; `now` and `head_ends` in Unix seconds.

        The node is given back a little before its end, and the head stops all work before its own. An end does not
        count where nothing comes after it.
        """
        left_s = math.inf
        if node.ends is not None and (self.grows or self.goes_on) and not self.is_of_head(node.member):
            left_s = node.ends - BEFORE_THE_END_S - now
        if head_ends is not None and self.goes_on:
            left_s = min(left_s, head_ends - self.warning_s - now)
        return max(0.0, left_s)

    def whole_life_s(self, node: UsableNode, *, now: float, head_ends: float | None = None) -> float:
        """What a fresh node of its kind would have at the most; one that has more than planned says so itself."""
        planned = self.life_s.get(node.group, math.inf) - (0.0 if self.is_of_head(node.member) else BEFORE_THE_END_S)
        planned = min(planned, self.head_life_s - self.warning_s if self.goes_on else math.inf)
        left_s = self.left_s(node, now=now, head_ends=head_ends)
        return left_s if planned == math.inf else max(planned, left_s)
