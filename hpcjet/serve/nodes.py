"""Which nodes have replicas of an engine, and the wait for one where they come in jobs of their own."""

import logging
import time
from collections.abc import Sequence

from hpcjet.cluster.sidecar import has_sidecar
from hpcjet.plan import Plan
from hpcjet.workload import Cluster

LOOK_S = 0.5

_log = logging.getLogger(__name__)


def serving_groups(plan: Plan) -> frozenset[str]:
    """The names of the groups with replicas; none where no engine of ours runs."""
    return frozenset(group.name for group in plan.groups if has_sidecar(plan, group.name))


def serving_hosts(plan: Plan, hosts: Sequence[str]) -> tuple[str, ...]:
    """Those of the head allocation's `hosts`, in Slurm's order, that have replicas."""
    groups = serving_groups(plan)
    return tuple(host for rank, host in enumerate(hosts) if plan.group_of(rank).name in groups)


def await_serving_node(cluster: Cluster, plan: Plan) -> None:
    """Where no node of the head allocation has replicas: until one of another has joined, however long it queues."""
    groups = serving_groups(plan)
    if not groups or serving_hosts(plan, cluster.hosts):
        return
    _log.info("waiting for a node of %s, which has the replicas", " or ".join(sorted(groups)))
    while not any(told.group in groups and not told.lost for told in cluster.inbox.nodes().values()):
        time.sleep(LOOK_S)


class GiveBack:
    """Gives nodes that drain back, where the workload has nothing on them."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster, self._groups = cluster, serving_groups(plan)
        self._given: set[str] = set()

    def look(self) -> None:
        """Called again and again."""
        for told in self._cluster.inbox.nodes().values():
            if told.drains and not told.lost and told.group not in self._groups and told.member not in self._given:
                self._given.add(told.member)
                self._cluster.give_back(told.member)
