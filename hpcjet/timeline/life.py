"""One allocation between two restarts: what happened in it, on one clock, and the steps that are made of that."""

from dataclasses import dataclass, field

from hpcjet.cluster.events import Entry, Event


@dataclass(frozen=True)
class Step:
    """What happened, at which Unix second, and what the time before it was spent on."""

    at: float
    label: str
    spent: str = ""
    """`41 s` + this: in the queue."""
    style: str = ""
    took: float = 0.0
    """Seconds since the step before."""
    at_work: bool = False
    """Whether the workload ran in that time: then it is no part of the start or of the end."""


@dataclass(frozen=True)
class Life:
    """One allocation between two restarts."""

    allocation: str
    restart: int
    entries: list[Entry]
    """With the times on one clock."""
    clocks: dict[str, float]
    """Whose clock differs from the head's, by about how many seconds (ahead is positive)."""
    num_nodes: int
    steps: list[Step] = field(default_factory=list)

    def first(self, event: Event) -> Entry | None:
        return next((entry for entry in self.entries if entry.event == event), None)

    def hosts(self, event: Event) -> dict[str, float]:
        """Host of the head allocation -> when, for the first time."""
        found: dict[str, float] = {}
        for entry in self.entries:
            if entry.event == event and not entry.joined_later:
                found.setdefault(entry.host, entry.t)
        return found

    @property
    def joins(self) -> list[Entry]:
        """Of the nodes of other allocations, when they joined."""
        event = Event.ray_up if any(entry.event == Event.ray_up for entry in self.entries) else Event.agent_up
        return [entry for entry in self.entries if entry.event == event and entry.joined_later]

    @property
    def began(self) -> float:
        return self.steps[0].at

    @property
    def origin(self) -> str:
        words = {"submitted": "submission", "requeued": "requeue"}
        return words.get(self.steps[0].label, "its first event")

    @property
    def works(self) -> bool:
        return self.first(Event.workload_start) is not None and self.first(Event.workload_end) is None

    @property
    def worked_s(self) -> float | None:
        start, end = self.first(Event.workload_start), self.first(Event.workload_end) or self.first(Event.released)
        return end.t - start.t if start and end else None

    @property
    def without_ray(self) -> list[str]:
        """Hosts whose agent is up, in the order of their names; none in a run that does without Ray."""
        up = self.hosts(Event.ray_up)
        return sorted(host for host in self.hosts(Event.agent_up) if host not in up) if up else []
