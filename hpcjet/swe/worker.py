"""A worker process as the driver sees it, and how one is started on a node."""

from dataclasses import dataclass, field
from typing import Any

from hpcjet.cluster.roster import UsableNode
from hpcjet.config.exp import SweConfig
from hpcjet.errors import BootstrapError, SandboxError
from hpcjet.sandbox.spec import GIB
from hpcjet.swe.attempt import AttemptSettings, Job
from hpcjet.swe.host import AttemptHost

START_S = 300.0
"""For a worker process to start."""


@dataclass(frozen=True)
class Underway:
    """An attempt that was handed out; times are those of time.monotonic()."""

    job: Job
    began: float
    deadline: float


@dataclass
class Worker:
    """One worker process."""

    node: UsableNode
    actor: Any
    slots: int
    start_deadline: float
    life_s: float
    """How long nodes of its kind are had at the most."""
    ready: Any
    """The reference of its first word; None once it came."""
    jobs: dict[Any, Underway] = field(default_factory=dict)
    """The reference of the answer -> the attempt."""
    broken: str = ""
    """Why it died; its attempts are not given up before it is clear whether its node died with it."""
    broken_at: float = 0.0

    @property
    def free(self) -> int:
        """How many attempts more it takes now."""
        return 0 if self.ready is not None or self.broken or self.node.drains else self.slots - len(self.jobs)

    @property
    def references(self) -> list[Any]:
        """Of the answers that are awaited."""
        if self.broken:
            return []
        return [*self.jobs] if self.ready is None else [self.ready, *self.jobs]

    def late(self, now: float) -> bool:
        """Whether an attempt took longer than it may."""
        return any(now > each.deadline for each in self.jobs.values())


def start_worker(
    ray: Any, node: UsableNode, slots: int, *, exp: SweConfig, settings: AttemptSettings, now: float, life_s: float
) -> Worker:
    """Ask Ray for a process on this node; returns before it is there."""
    actor = (
        ray.remote(AttemptHost)
        .options(
            num_cpus=slots * exp.cpus,
            memory=int(slots * exp.memory_gb * GIB),
            scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.node_id, soft=False),
            max_concurrency=slots,
        )
        .remote(settings)
    )
    return Worker(node, actor, slots, now + START_S, life_s, actor.ready.remote())


def cause(error: Any) -> Exception:
    """What a worker process raised while it started: a sandbox that cannot be opened will not open next time either."""
    found = getattr(error, "cause", error)
    return found if isinstance(found, SandboxError) else BootstrapError(f"a worker process failed: {found}")
