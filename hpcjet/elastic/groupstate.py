"""Counts of one group's nodes while the policy decides. Each is kept up to date, whatever the number of jobs."""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from hpcjet.elastic.views import Allocation, Backlog, Group, Standing

PATIENCE_S = 600.0
"""What has waited in the queue for longer does not keep the next group from being asked."""


@dataclass(frozen=True)
class Counts:
    """Nodes of one allocation."""

    at_work: int
    to_come: int
    stale: int
    """Those to come of one that has waited in the queue for long."""
    near_end: bool


class State:
    """One group, and what was decided about it so far."""

    def __init__(self, group: Group, backlog: Backlog | None, now: float) -> None:
        self.group, self._now = group, now
        self.serves = (backlog is not None and backlog.group in (None, group.name)) and not group.steady
        self.slots = group.slots(backlog) if backlog else 0
        self.asked = 0
        """Nodes asked for just now."""
        self.hopeless = [each for each in group.allocations if each.hopeless and not each.members]
        self._near = {each.name for each in group.allocations if self._nears_its_end(each)}
        without = {each.name for each in self.hopeless}
        self._kept = {
            each.name: each for each in group.allocations if not each.is_draining and each.name not in without
        }
        self._counts = {name: self._count(each) for name, each in self._kept.items()}
        lasting = [each for each in self._counts.values() if not each.near_end]
        self._lasting = sum(each.at_work for each in lasting)
        self._to_come = sum(each.to_come for each in lasting)
        self._stale = sum(each.stale for each in lasting)
        self.working = sum(each.at_work for each in self._counts.values())
        """Nodes at work now, near their end or not."""

    @property
    def kept(self) -> list[Allocation]:
        """Those that nobody has told to go."""
        return list(self._kept.values())

    @property
    def ceiling(self) -> int:
        return self.group.max_nodes if self.group.wish is None else self.group.wish

    def floor(self, *, real_backlog: bool) -> int:
        """The least; what a person wishes is only held while there is work for it."""
        group = self.group
        if not self.serves:
            return min(group.start_nodes, self.ceiling) if group.wish is None else group.wish
        least = min(group.min_nodes, self.ceiling)
        return max(least, group.wish) if group.wish is not None and real_backlog else least

    @property
    def counted(self) -> int:
        """Nodes that do work or are to come, without those near their end."""
        return self.asked + self._lasting + self._to_come

    def counted_for(self, *, later: bool) -> int:
        """The same as a later group sees it, which does not count on a slow queue."""
        return self.counted - (self._stale if later else 0)

    @property
    def lasting(self) -> int:
        """Nodes at work that are not near their end."""
        return self._lasting

    @property
    def to_come(self) -> int:
        return self._to_come

    @property
    def leaving_tasks(self) -> int:
        """Tasks on members that drain or are near their end."""
        return sum(
            member.busy
            for each in self.group.allocations
            for member in each.members
            if member.standing is Standing.draining or each.name in self._near
        )

    def queue(self, *, later: bool) -> "Queued":
        """What is to come, by the time at which it was asked for."""
        return Queued(
            [
                (each.submitted, name, counts.to_come - (counts.stale if later else 0))
                for name, each in self._kept.items()
                if (counts := self._counts[name]).to_come and not counts.at_work and not counts.near_end
            ]
        )

    def nodes(self, each: Allocation) -> int:
        """Nodes of an allocation at work or to come."""
        counts = self._counts[each.name]
        return counts.at_work + counts.to_come

    def is_near_end(self, each: Allocation) -> bool:
        return each.name in self._near

    def is_idle(self, each: Allocation) -> bool:
        return all(
            member.idle_since is not None and self._now - member.idle_since >= self.group.idle_s
            for member in each.at_work
        )

    def is_too_late_for(self, each: Allocation, backlog: Backlog) -> bool:
        """Whether no task that waits is sure to end on it, though one would have at its beginning."""
        if backlog.longest_s is None or each.ends is None:
            return False
        return each.ends - self._now < backlog.longest_s <= each.ends - each.since

    def cost_of_leaving(self, each: Allocation) -> tuple[bool, int, float, float]:
        """Smallest first: in the queue and new, then with little at work, then near the end."""
        at_work = each.at_work
        busy = sum(member.busy for member in at_work)
        return bool(at_work), busy, each.ends if each.ends is not None else float("inf"), -each.submitted

    def let_go(self, each: Allocation) -> None:
        """From now on it counts as gone."""
        counts = self._counts[each.name]
        del self._kept[each.name]
        self.working -= counts.at_work
        if not counts.near_end:
            self._lasting -= counts.at_work
            self._to_come -= counts.to_come
            self._stale -= counts.stale

    def _nears_its_end(self, each: Allocation) -> bool:
        """Whether a replacement that is asked for now would come about when this one goes.

        Of a short allocation only the last quarter is near its end, however long the queue.
        """
        ends = each.ends
        if ends is None:
            return False
        lead_s = min(self.group.lead_s, max(ends - each.since, 0.0) / 4)
        return ends - self._now <= lead_s

    def _count(self, each: Allocation) -> Counts:
        at_work, to_come = len(each.at_work), each.to_come
        stale = to_come if each.queued and self._now - each.submitted > PATIENCE_S else 0
        return Counts(at_work, to_come, stale, each.name in self._near)


class Queued:
    """Nodes to come, and how many of them were asked for before a given job."""

    def __init__(self, jobs: list[tuple[float, str, int]]) -> None:
        self._keys = sorted((submitted, name) for submitted, name, _ in jobs)
        self._before = list(accumulate((nodes for _, _, nodes in sorted(jobs)), initial=0))

    def before(self, each: Allocation) -> int:
        return self._before[bisect_left(self._keys, (each.submitted, each.name))]
