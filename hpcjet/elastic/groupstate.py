"""Counts of one group's nodes while the policy decides."""

from hpcjet.elastic.views import Allocation, Backlog, Group, Standing

PATIENCE_S = 600.0
"""What has waited in the queue for longer does not keep the next group from being asked."""


class State:
    """One group, and what was decided about it so far."""

    def __init__(self, group: Group, backlog: Backlog | None, now: float) -> None:
        self.group, self._now = group, now
        self.serves = (backlog is not None and backlog.group in (None, group.name)) and not group.steady
        self.slots = group.slots(backlog) if backlog else 0
        self.hopeless = [each for each in group.allocations if each.hopeless and not each.members]
        self.kept = [each for each in group.allocations if not each.is_draining and each not in self.hopeless]
        self.asked = 0
        """Nodes asked for just now."""

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
        return self.counted_for(later=False)

    def counted_for(self, *, later: bool) -> int:
        return self.asked + sum(self._counts(each, later=later) for each in self.kept)

    def counted_without(self, gone: Allocation, *, later: bool) -> int:
        """Nodes at work, and those to come that were asked for before `gone`."""
        return sum(
            self._counts(each, later=later)
            for each in self.kept
            if each is not gone and (each.at_work or each.submitted <= gone.submitted)
        )

    def _counts(self, each: Allocation, *, later: bool) -> int:
        if self.is_near_end(each):
            return 0
        stale = later and each.queued and self._now - each.submitted > PATIENCE_S
        return len(each.at_work) + (0 if stale else each.to_come)

    @property
    def working(self) -> int:
        """Nodes at work now, near their end or not."""
        return sum(len(each.at_work) for each in self.kept)

    @property
    def to_come(self) -> int:
        return sum(each.to_come for each in self.kept)

    @property
    def leaving_tasks(self) -> int:
        """Tasks on members that drain or are near their end."""
        return sum(
            member.busy
            for each in self.group.allocations
            for member in each.members
            if member.standing is Standing.draining or self.is_near_end(each)
        )

    def is_near_end(self, each: Allocation) -> bool:
        """Whether a replacement that is asked for now would come about when this one goes.

        Of a short allocation only the last quarter is near its end, however long the queue.
        """
        if each.ends is None:
            return False
        lead_s = min(self.group.lead_s, max(each.ends - each.since, 0.0) / 4)
        return each.ends - self._now <= lead_s

    def is_idle(self, each: Allocation, now: float) -> bool:
        return all(
            member.idle_since is not None and now - member.idle_since >= self.group.idle_s for member in each.at_work
        )

    def is_too_late_for(self, each: Allocation, backlog: Backlog, now: float) -> bool:
        """Whether no task that waits is sure to end on it, though one would have at its beginning."""
        if backlog.longest_s is None or each.ends is None:
            return False
        return each.ends - now < backlog.longest_s <= each.ends - each.since

    def cost_of_leaving(self, each: Allocation) -> tuple[bool, int, float, float]:
        """Smallest first: in the queue and new, then with little at work, then near the end."""
        busy = sum(member.busy for member in each.at_work)
        return bool(each.at_work), busy, each.ends if each.ends is not None else float("inf"), -each.submitted

    def let_go(self, each: Allocation) -> None:
        """From now on it counts as gone."""
        self.kept = [other for other in self.kept if other is not each]
