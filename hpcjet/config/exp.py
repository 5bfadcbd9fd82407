"""The config group `exp`: the experiments, each a workload and its settings."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import ClassVar

from hpcjet.config.check import at_least


class ScaffoldName(Enum):
    """Programs that drive an agent."""

    mini = "mini"
    reference = "reference"


OnNodeLoss = Enum("OnNodeLoss", ["fail", "continue"])
"""What a run does when a node is lost. Not a class statement: continue is a word of Python's own."""


@dataclass
class ExpConfig:
    """What every experiment takes."""

    on_node_loss: ClassVar[OnNodeLoss] = OnNodeLoss.fail
    """Unless cluster.on_node_loss says otherwise."""
    one_step: ClassVar[bool] = False
    """Whether it runs as one step over all nodes: then they must be of one job with one request."""

    group: str | None = None
    """The group of cluster.groups whose nodes do the work; by default all of them."""

    @property
    def wants_ray(self) -> bool:
        return True

    @property
    def wants_engine(self) -> bool:
        return False


@dataclass
class NoopConfig(ExpConfig):
    """Starts the cluster, runs one task on every node, ends: to see that a cluster works and how fast it starts."""


@dataclass
class SweConfig(ExpConfig):
    """Software-engineering agents: each attempt works on one task in a sandbox, and its patch is tested."""

    on_node_loss: ClassVar[OnNodeLoss] = OnNodeLoss["continue"]

    tasks: Path | None = None
    """Tasks file (SWE-bench's fields, JSONL); by default the newest set made by `hpcjet tasks build`."""
    repos: Path | None = None
    """Folder of git repositories that the tasks name; by default `repos` beside the tasks file."""
    limit: int = 0
    """First N tasks; 0 means all."""
    ids: list[str] = field(default_factory=list)
    """Only the tasks of these instance ids."""
    attempts: int = 1
    """Attempts at each task, at least 1."""
    scaffold: ScaffoldName = ScaffoldName.mini
    """mini: mini-swe-agent drives a model; reference: applies the task's own solution, without a model."""
    cpus: float = 1.0
    """CPUs that Ray counts for one attempt, at least 0.01."""
    memory_gb: float = 1.0
    """Memory in GiB that Ray counts for one attempt, at least 0.1."""
    attempts_per_process: int = 16
    """Most attempts at a time in one worker process, at least 1; each process takes seconds to start and 150 MB."""
    in_flight: int = 0
    """Most attempts at a time in the whole run; 0: as many as CPUs and memory allow."""
    max_tries: int = 3
    """How often an attempt is started in all when the infrastructure fails, at least 1."""
    step_limit: int = 250
    """Most steps of one agent; 0: no limit."""
    agent_timeout_s: float = 2700.0
    """Seconds that an agent may work on a task, at least 1."""
    command_timeout_s: float = 300.0
    """Seconds for one command of an agent, at least 1."""
    test_timeout_s: float = 1800.0
    """Seconds for the tests of a patch, build included, at least 1."""
    build_timeout_s: float = 3600.0
    """Seconds for building a base tree, at least 1."""
    trees: Path | None = None
    """Folder of built base trees on a local disk of each node; by default in the cache folder, if that is on a local
    disk with room, else on another local disk, else in the node's memory (/dev/shm)."""
    trees_shared: Path | None = None
    """Folder that all nodes see for packed trees, so that one node builds each and the others unpack it; by default
    `packs` in the cache folder if that is on a network file system, else none. For nodes of one kind of processor."""
    trees_gb: float | None = 50.0
    """Size of the base trees of a node in GiB, at least 0.1; those longest unused go first; null: no limit."""
    trees_days: float | None = 30.0
    """Days after which a base tree that nobody used is removed, at least 0.01; null: never."""
    trees_free_gb: float = 2.0
    """Free space in GiB that there must be before a base tree is built, at least 0."""

    def __post_init__(self) -> None:
        for key, lowest in LOWEST.items():
            at_least(f"exp.{key}", getattr(self, key), lowest)

    @property
    def wants_engine(self) -> bool:
        return self.scaffold is not ScaffoldName.reference


LOWEST = {
    "limit": 0,
    "attempts": 1,
    "cpus": 0.01,
    "memory_gb": 0.1,
    "attempts_per_process": 1,
    "in_flight": 0,
    "max_tries": 1,
    "step_limit": 0,
    "agent_timeout_s": 1,
    "command_timeout_s": 1,
    "test_timeout_s": 1,
    "build_timeout_s": 1,
    "trees_gb": 0.1,
    "trees_days": 0.01,
    "trees_free_gb": 0,
}
