"""Groups of nodes: one entry of `cluster.groups`, and how the groups are asked of Slurm."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
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

    @property
    def most_nodes(self) -> int:
        """The most nodes that the group may have."""
        return self.nodes if self.max is None else self.max


MAIN = "main"
"""The group of a run that names none."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""Of a group: it stands in names of jobs and files, and in Ray's labels."""
INHERITED = (
    "cpus_per_node",
    "gpus_per_node",
    "mem_gb",
    "time_min",
    "partition",
    "account",
    "qos",
    "constraint",
    "gres",
    "exclusive",
)
"""Keys that a group has from `cluster` unless it sets them."""
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
_REQUEST = ("partition", "account", "qos", "constraint", "gres", "exclusive", "sbatch")
"""Keys of a request as a whole: groups that share one have none of their own."""
_ELASTIC = ("min", "max", "idle_s", "nodes_per_job", "max_failures")
"""Keys of groups that grow and shrink."""


def check_groups(groups: Mapping[str, GroupConfig], form: Form) -> None:
    """Raise ConfigError for groups that cannot be, and for keys that say nothing in this form."""
    if form is not Form.job and len(groups) < 2:
        there = f"cluster.groups has only {', '.join(groups)}" if groups else "cluster.groups is empty"
        raise bad("cluster.form", form.name, f"{there}, and it takes two groups or more", _EXAMPLE)
    for number, (name, group) in enumerate(groups.items()):
        if not NAME.fullmatch(name):
            allowed = "a name begins with a letter, then letters, digits, _ and -, at most 32 in all"
            raise bad("cluster.groups", f"{{{name}: ...}}", allowed, "rename the group")
        _check_values(name, group)
        own_jobs = form is Form.jobs and number > 0
        if not own_jobs and group.nodes < 1:
            only = "only groups with jobs of their own (cluster.form=jobs, not the first group) may begin with 0"
            raise bad(f"cluster.groups.{name}.nodes", group.nodes, only, f"set cluster.groups.{name}.nodes=1 or higher")
        if own_jobs:
            _check_size(name, group)
        else:
            _refuse(name, group, _ELASTIC, "only groups with jobs of their own grow and shrink", _OWN_JOBS)
        if form is not Form.jobs:
            _refuse(name, group, ("time_min",), "all groups start and end together", "set cluster.time_min")
        if form is Form.job:
            _refuse(name, group, _REQUEST, "the groups share one request", "set it in cluster, or cluster.form=het")


_OWN_JOBS = "leave it out; those are the groups after the first with cluster.form=jobs"
_EXAMPLE = "add groups, such as '+cluster.groups={head: {nodes: 1}, cpu: {nodes: 8}}'"


def _check_values(name: str, group: GroupConfig) -> None:
    for key, lowest in _LOWEST.items():
        at_least(f"cluster.groups.{name}.{key}", getattr(group, key), lowest)
    if group.gres and group.gpus_per_node:
        key = f"cluster.groups.{name}.gres"
        raise bad(key, group.gres, f"cluster.groups.{name}.gpus_per_node is set as well", "set one of the two to null")


def _check_size(name: str, group: GroupConfig) -> None:
    """min, nodes and max in this order."""
    key = f"cluster.groups.{name}"
    if group.nodes > group.most_nodes:
        raise bad(
            f"{key}.max", group.max, f"the group begins with {group.nodes} nodes", f"raise it or lower {key}.nodes"
        )
    if (group.min or 0) > group.most_nodes:
        most = f"{key}.max={group.max}" if group.max is not None else f"{key}.nodes={group.nodes}"
        raise bad(f"{key}.min", group.min, f"{most} is the most there can be", f"lower it or raise {key}.max")
    if not group.most_nodes:
        raise bad(f"{key}.nodes", 0, "the group could never have a node", f"set {key}.max to 1 or higher")


def _refuse(name: str, group: GroupConfig, keys: Sequence[str], allowed: str, step: str) -> None:
    """Raise ConfigError for the first of `keys` that is not at its default."""
    for entry in fields(group):
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        value = getattr(group, entry.name)
        if entry.name in keys and value != default:
            raise bad(f"cluster.groups.{name}.{entry.name}", value, allowed, step)
