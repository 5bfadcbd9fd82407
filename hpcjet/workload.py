"""The seam between the driver and the workloads, and the cluster that a workload is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from hpcjet.cluster.inbox import Inbox
from hpcjet.cluster.outbox import IDLE, Outbox
from hpcjet.cluster.roster import UsableNode, roster


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster that is up, seen from its head."""

    ray: Any
    """The module ray, connected; None for a workload that does not connect itself."""
    address: str
    """Of this node, as the other nodes reach it."""
    gcs_port: int | None
    """Of Ray's head; None without Ray."""
    ports: Mapping[str, int]
    """Ports on this node that are the workload's, by use: engine, router, pool, master."""
    hosts: tuple[str, ...]
    """The nodes of the head allocation, in Slurm's order."""
    inbox: Inbox
    """What the node agent says while the workload runs."""
    outbox: Outbox = field(default_factory=Outbox)
    """What the node agent is told."""
    head: str = ""
    """<allocation>-<restart> of the head allocation."""

    def members(self) -> list[UsableNode]:
        """The nodes that can be used now, of all allocations: those in Ray without those that are lost."""
        return roster(self.ray.nodes(), self.inbox.nodes(), head=self.head)

    def own_members(self) -> list[UsableNode]:
        """Those of the head allocation."""
        return [node for node in self.members() if node.member.rpartition(":")[0] in ("", self.head)]

    def give_back(self, member: str) -> None:
        """Nothing of this workload is on a node that drains any more: it may be ended now."""
        self.outbox.say(IDLE, member=member)

    def lost(self) -> list[str]:
        """The hosts that were lost since the start, in the order in which they were."""
        return self.inbox.lost()


class Workload(Protocol):
    """One experiment. Made with (plan, config); used as a context manager around `run`."""

    connects: bool
    """Whether the driver itself connects to Ray, or only what it starts."""

    def prepare(self) -> None:
        """Work that needs no Ray, done while Ray starts. Raises HpcjetError for what would fail later."""
        ...

    def __enter__(self) -> "Workload": ...

    def run(self, cluster: Cluster) -> int:
        """Do the work on a cluster of at least min_nodes nodes; returns the exit code: 0, or 1 if the work failed.

        SIGTERM raises Interrupted here: stop at a safe point within the promised time.
        """
        ...

    def __exit__(self, *_: object) -> None: ...
