"""Groups of nodes: one entry of `cluster.groups`, and how the groups are asked of Slurm."""

from dataclasses import dataclass, field
from enum import Enum

from hpcjet.config.check import at_least, bad


class Form(Enum):
    """How the groups of nodes become Slurm jobs."""

    job = "job"
    het = "het"
    jobs = "jobs"


@dataclass
class GroupConfig:
    """Nodes that are alike. A key that is null is that of `cluster`; an empty text asks for nothing at all."""

    nodes: int = 1
    """Nodes at the start, at least 1; with cluster.form=jobs a group other than the first may begin with 0."""
    cpus_per_node: int | None = None
    """CPUs on each node, at least 1."""
    gpus_per_node: int | None = None
    """GPUs on each node; 0: none, whatever cluster.gres says."""
    mem_gb: float | None = None
    """Memory on each node in GiB."""
    time_min: int | None = None
    """Time limit in minutes of each job of this group, at least 1; only with cluster.form=jobs."""
    partition: str | None = None
    """With cluster.form=jobs also a list such as a,b: Slurm chooses for each job. Not with cluster.form=job."""
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    gres: str | None = None
    exclusive: bool | None = None
    """Ask for whole nodes."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options for this group, on top of cluster.sbatch."""
    min: int | None = None
    """Nodes below which an idle group does not shrink, at least 0; by default 0. This and the keys below: only with
    cluster.form=jobs, and not for the first group, whose nodes do not change."""
    max: int | None = None
    """Nodes to which the group may grow; by default as many as at the start."""
    idle_s: float = 60.0
    """Seconds without work after which a node is given back, at least 1."""
    nodes_per_job: int = 1
    """Nodes of each of the group's jobs, at least 1: small jobs start earlier and are given back one by one."""
    max_failures: int = 3
    """Failed starts in a row after which no more jobs are submitted for a while, at least 1."""

    def problems(self, name: str) -> None:
        """Raise ConfigError for a value that no form allows; `name` is the group's."""
        for key, lowest in _LOWEST.items():
            at_least(f"cluster.groups.{name}.{key}", getattr(self, key), lowest)
        if self.gres and self.gpus_per_node:
            raise bad(
                f"cluster.groups.{name}.gres", self.gres, "gpus_per_node is set as well", "set one of the two to null"
            )

    @property
    def most_nodes(self) -> int:
        """The most nodes that the group may have."""
        return self.nodes if self.max is None else self.max


_LOWEST = {
    "nodes": 0,
    "cpus_per_node": 1,
    "gpus_per_node": 0,
    "mem_gb": 0.1,
    "time_min": 1,
    "min": 0,
    "max": 0,
    "idle_s": 1,
    "nodes_per_job": 1,
    "max_failures": 1,
}
REQUEST = ("partition", "account", "qos", "constraint", "exclusive", "sbatch", "time_min")
"""Keys of a Slurm request as a whole: groups that share one request have none of their own."""
ELASTIC = ("min", "max", "idle_s", "nodes_per_job", "max_failures")
"""Keys of groups that grow and shrink."""
