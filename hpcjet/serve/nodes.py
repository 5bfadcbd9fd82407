"""Which nodes have replicas of an engine, and what the engine and the node agent are told as they come and go."""

from collections.abc import Callable, Sequence

from hpcjet.engine import Serving
from hpcjet.plan import Plan
from hpcjet.workload import Cluster


def serving_groups(plan: Plan) -> frozenset[str]:
    """The names of the groups with replicas; none where no engine of ours runs."""
    return frozenset(plan.sidecar_groups)


def serving_grows(plan: Plan) -> bool:
    """Whether one of them has allocations of its own."""
    return any(group.name in plan.sidecar_groups for group in plan.worker_groups)


def serving_hosts(plan: Plan, hosts: Sequence[str]) -> dict[int, str]:
    """Rank -> host of those of the head allocation's `hosts` that have replicas."""
    groups = serving_groups(plan)
    return {rank: host for rank, host in enumerate(hosts) if plan.group_of(rank).name in groups}


class EngineNodes:
    """The nodes of a run that serves: its engine is told which of them drain or are lost, and those that drain are
    given back once nothing of the run's is on them."""

    def __init__(
        self, cluster: Cluster, plan: Plan, serving: Serving, *, works: Callable[[str], bool] = lambda group: False
    ) -> None:
        """`works`: whether somebody else works on the nodes of a group, and gives them back."""
        self._cluster, self._serving, self._works = cluster, serving, works
        self._groups = serving_groups(plan)
        self._is_on_head = bool(serving_hosts(plan, cluster.hosts))
        self._drained: set[str] = set()
        self._lost: set[str] = set()
        self._given: set[str] = set()

    def look(self) -> None:
        """Called again and again."""
        for member, told in self._cluster.inbox.nodes().items():
            serves = told.group in self._groups
            if told.lost:
                if serves and member not in self._lost:
                    self._lost.add(member)
                    self._serving.lose(member)
                continue
            self._lost.discard(member)  # it may have come back
            if not told.drains:
                continue
            if serves and member not in self._drained:
                self._drained.add(member)
                self._serving.drain(member, reason=told.drains, by=told.drains_by)
            if not self._works(told.group) and member not in self._given and self.is_free(member, told.group):
                self._given.add(member)
                self._cluster.give_back(member)

    def is_free(self, member: str, group: str) -> bool:
        """Whether the engine has nothing under way on a node that drains."""
        return group not in self._groups or self._serving.has_left(member)

    def awaited(self) -> str:
        """Which nodes have to come before there can be a replica; empty if there are some. It looks as well."""
        self.look()
        if not self._groups or self._is_on_head:
            return ""
        told = self._cluster.inbox.nodes().values()
        if any(each.group in self._groups and not each.lost and not each.drains for each in told):
            return ""
        return f"a node of {' or '.join(sorted(self._groups))}"
