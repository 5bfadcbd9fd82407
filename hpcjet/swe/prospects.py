"""Which nodes a run works on, and which may still come. Pure."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hpcjet.cluster.roster import UsableNode
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
    grows: frozenset[str] = frozenset()
    """Groups of which new nodes may come as long as the run lasts."""
    life_s: Mapping[str, float] = field(default_factory=dict)
    """Group -> how long its nodes are had, where that is known."""
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
            grows=frozenset(each.name for each in works if each in plan.worker_groups and each.max_nodes > 0),
            life_s={name: minutes * 60.0 for name, minutes in times.items() if minutes is not None},
            goes_on=plan.requeue and restart < plan.max_restarts,
        )

    def works(self, node: UsableNode) -> bool:
        """Whether attempts are made on it."""
        return self.group is None or node.group == self.group

    def is_of_head(self, member: str) -> bool:
        """Whether the node is one of the head allocation; one that is known by its host alone is."""
        allocation, separator, _ = member.rpartition(":")
        return not separator or allocation == self.head

    def may_come(self, seen: Collection[str]) -> bool:
        """Whether there may be other nodes than those members that were seen or lost, too small ones left out."""
        return bool(self.grows) or sum(self.is_of_head(member) for member in seen) < self.expected

    def left_s(self, node: UsableNode, *, now: float) -> float:
        """Seconds until its end, `now` in Unix seconds; the end does not count where nothing comes after it."""
        if node.ends is None or not (self.goes_on or self.grows):
            return math.inf
        return max(0.0, node.ends - now)

    def whole_life_s(self, node: UsableNode, *, now: float) -> float:
        """How long nodes of its kind are had at the most; one that is longer than planned says so itself."""
        return max(self.life_s.get(node.group, 0.0), self.left_s(node, now=now)) or math.inf
