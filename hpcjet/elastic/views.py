"""What the policy sees of a run, and what it can ask for. Times are seconds of one clock, real or virtual."""

from dataclasses import dataclass
from enum import Enum
from statistics import median_low

UNKNOWN_CPUS = 8
"""Of a node of which nobody has said how many it has, until the first one of its group joins and tells."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What the driver says of its work."""

    waiting: int
    in_flight: int
    cpus: float = 1.0
    """CPUs of one task."""
    memory_gb: float = 0.0
    longest_s: float | None = None
    """The longest that a task may take; None: nobody knows."""
    group: str | None = None
    """The group whose nodes do the work; None: any."""
    most: int | None = None
    """No more tasks than this are at work at once, however many nodes there are."""

    @property
    def is_over(self) -> bool:
        return self.waiting + self.in_flight <= 0

    @property
    def wanted(self) -> int:
        """Tasks that could be at work now."""
        all_of_them = self.waiting + self.in_flight
        return all_of_them if self.most is None else min(all_of_them, max(self.most, self.in_flight))


class Standing(Enum):
    """Of a member."""

    coming = "coming"
    """Its agent has said hello; Ray is not up yet."""
    joined = "joined"
    draining = "draining"
    gone = "gone"


@dataclass(frozen=True, kw_only=True)
class Member:
    """One node of a run."""

    name: str
    standing: Standing
    since: float
    """When it came."""
    cpus: float | None = None
    ends: float | None = None
    """When Slurm takes the node away; None: nobody knows."""
    busy: int = 0
    """Tasks at work on it."""
    idle_since: float | None = None
    """Since when nothing is at work on it; None while something is, or where nobody says."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One Slurm job of a group."""

    name: str
    nodes: int
    queued: bool
    """It waits in Slurm's queue; else its nodes are there, or are being made ready."""
    submitted: float
    members: tuple[Member, ...] = ()
    hopeless: str = ""
    """Why it will never start as it is."""

    @property
    def at_work(self) -> tuple[Member, ...]:
        """Members that take work."""
        return tuple(member for member in self.members if member.standing is Standing.joined)

    @property
    def to_come(self) -> int:
        """Nodes that have not joined yet."""
        if self.queued:
            return self.nodes
        there = sum(member.standing is not Standing.coming for member in self.members)
        return max(self.nodes - there, 0)

    @property
    def is_draining(self) -> bool:
        return any(member.standing is Standing.draining for member in self.members)

    @property
    def ends(self) -> float | None:
        return min((member.ends for member in self.at_work if member.ends is not None), default=None)

    @property
    def since(self) -> float:
        return min((member.since for member in self.members), default=self.submitted)


@dataclass(frozen=True, kw_only=True)
class Group:
    """One group of nodes, with its allocations."""

    name: str
    start_nodes: int = 1
    min_nodes: int = 0
    max_nodes: int = 1
    nodes_per_job: int = 1
    idle_s: float = 60.0
    max_failures: int = 3
    cpus: float | None = None
    """Of one node, as asked for."""
    memory_gb: float | None = None
    elastic: bool = True
    """False for the head's: its nodes do work, and none are added or taken away."""
    steady: bool = False
    """Its nodes hold more than tasks, such as an engine's replicas: no backlog says how many are needed."""
    wish: int | None = None
    """How many nodes a person wants."""
    lead_s: float = 600.0
    """How long an allocation takes from its submission to its first task."""
    failures: int = 0
    """Starts in a row that came to nothing."""
    failed_at: float = 0.0
    allocations: tuple[Allocation, ...] = ()

    @property
    def node_cpus(self) -> float:
        """What a member has, or what was asked for, or a guess."""
        told = [member.cpus for each in self.allocations for member in each.members if member.cpus is not None]
        return median_low(told) if told else self.cpus if self.cpus is not None else UNKNOWN_CPUS

    def slots(self, backlog: Backlog) -> int:
        """Tasks that one node holds at once."""
        by_cpus = _parts(self.node_cpus, backlog.cpus)
        known = self.memory_gb is not None and backlog.memory_gb > 0
        return min(by_cpus, _parts(self.memory_gb or 0.0, backlog.memory_gb)) if known else by_cpus


def _parts(whole: float, part: float) -> int:
    return int(whole / part + 1e-9) if part > 0 else 1


@dataclass(frozen=True)
class Submit:
    """One job."""

    group: str
    nodes: int


@dataclass(frozen=True)
class Drain:
    """No new work for this member; what is under way ends, then its node is given back."""

    member: str
    reason: str


@dataclass(frozen=True)
class Cancel:
    """An allocation that has no node at work yet."""

    allocation: str
    reason: str
    hopeless: bool = False
    """It would never have started: that counts as a failed start."""


@dataclass(frozen=True)
class Pause:
    """Nothing is submitted for this group before `until`."""

    group: str
    until: float
    why: str


Action = Submit | Drain | Cancel | Pause
