"""The config group `cluster`: where a run gets its nodes from."""

from dataclasses import dataclass, field, replace
from typing import Any

from hpcjet.config.check import at_least, bad
from hpcjet.config.exp import OnNodeLoss
from hpcjet.config.group import INHERITED, MAIN, Form, GroupConfig, check_groups


@dataclass
class ClusterConfig:
    """What every kind of cluster takes."""

    min_nodes: int | None = None
    """The run starts with this many nodes and takes more as they come; by default all of them."""
    boot_timeout_s: float = 120.0
    """Seconds until Ray must be up on min_nodes nodes, at least 5."""
    end_timeout_s: float = 10.0
    """Seconds that the parts of a run have to end by themselves before they are killed, at least 1."""
    on_node_loss: OnNodeLoss | None = None
    """fail: with fewer than min_nodes left the run ends with exit code 3; continue: it goes on with what is left. By
    default continue for exp=swe, fail for the others. Without its first node no run goes on."""
    interface: str | None = None
    """Network interface that Ray and the engines use, such as ib0; by default the one with the route to other nodes."""
    object_store_gb: float | None = None
    """Ray's object store per node in GiB; by default a tenth of the node's memory, at most 8."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for everything that runs on the nodes. Not for secrets: they stand in the run directory."""

    def __post_init__(self) -> None:
        at_least("cluster.min_nodes", self.min_nodes, 1)
        at_least("cluster.boot_timeout_s", self.boot_timeout_s, 5)
        at_least("cluster.end_timeout_s", self.end_timeout_s, 1)
        at_least("cluster.object_store_gb", self.object_store_gb, 0.1)


@dataclass
class LocalConfig(ClusterConfig):
    """This machine, without Slurm."""

    cpus: int | None = None
    """CPUs that Ray may use; by default all that this process may run on."""
    gpus: int = 0
    """GPUs that Ray may use."""
    memory_gb: float | None = None
    """Memory that Ray may use in GiB; by default 80 % of what is free."""

    def __post_init__(self) -> None:
        ClusterConfig.__post_init__(self)
        at_least("cluster.cpus", self.cpus, 1)
        at_least("cluster.gpus", self.gpus, 0)
        at_least("cluster.memory_gb", self.memory_gb, 0.5)


@dataclass
class SlurmConfig(ClusterConfig):
    """One Slurm job. A key that is null is left to the site's default: no such line in the script."""

    nodes: int = 1
    """Nodes of the allocation, at least 1."""
    cpus_per_node: int | None = None
    """CPUs on each node; null with exclusive=true means all of them."""
    gpus_per_node: int | None = None
    """GPUs on each node."""
    mem_gb: float | None = None
    """Memory on each node in GiB."""
    time_min: int | None = None
    """Time limit in minutes, at least 1; null: the partition's default."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    nodelist: str | None = None
    exclude: str | None = None
    gres: str | None = None
    """Generic resources with a type, such as gpu:a100:4; instead of gpus_per_node."""
    exclusive: bool = False
    """Ask for whole nodes."""
    job_name: str | None = None
    """By default hpcjet-<exp>."""
    signal_delay_s: int = 90
    """Seconds before the time limit at which the run is told to stop safely, at least 10."""
    requeue: bool = True
    """Preempted, or near its time limit, the run stops at a safe point and its job is queued again."""
    max_restarts: int = 20
    """How often one job may start again, at least 0."""
    setup: list[str] = field(default_factory=list)
    """Shell lines run on the first node before the job step, such as `module load cuda`."""
    sbatch: dict[str, str] = field(default_factory=dict)
    """Further sbatch options by their long name, such as {reservation: maint}."""
    srun_args: list[str] = field(default_factory=list)
    """Further options of the one srun."""
    python: str | None = None
    """The Python that runs on the nodes; by default the one that launches."""
    groups: dict[str, GroupConfig] = field(default_factory=dict)
    """Groups of nodes that differ, the head's first, such as '+cluster.groups={head: {nodes: 1}, cpu: {nodes: 8}}';
    none: cluster.nodes nodes that are alike."""
    form: Form = Form.job
    """How groups are asked for. job: all in one request, nodes alike; het: a heterogeneous job, one component for each
    group; jobs: the head's group is one job, every other group has jobs of its own that come and go."""
    head_wait_s: float = 900.0
    """cluster.form=jobs: seconds that nodes wait for a head before they are given back, at least 5."""

    def __post_init__(self) -> None:
        ClusterConfig.__post_init__(self)
        at_least("cluster.nodes", self.nodes, 1)
        at_least("cluster.cpus_per_node", self.cpus_per_node, 1)
        at_least("cluster.gpus_per_node", self.gpus_per_node, 0)
        at_least("cluster.mem_gb", self.mem_gb, 0.1)
        at_least("cluster.time_min", self.time_min, 1)
        at_least("cluster.signal_delay_s", self.signal_delay_s, 10)
        at_least("cluster.max_restarts", self.max_restarts, 0)
        at_least("cluster.head_wait_s", self.head_wait_s, 5)
        check_groups(self.groups, self.form)
        if self.groups and self.nodes != 1:
            raise bad("cluster.nodes", self.nodes, "cluster.groups says how many nodes there are", "leave it out")
        if self.nodelist and self.form is not Form.job:
            names = "it would name the nodes of every group"
            raise bad("cluster.nodelist", self.nodelist, names, "set cluster.groups.NAME.sbatch={nodelist: ...}")
        if self.min_nodes is not None and self.min_nodes > self.head_nodes:
            raise bad("cluster.min_nodes", self.min_nodes, *_too_few(self))
        if self.gres and self.gpus_per_node:
            raise bad("cluster.gres", self.gres, "cluster.gpus_per_node is set as well", "set one of the two to null")

    @property
    def head_nodes(self) -> int:
        """Nodes of the job that has the head."""
        if not self.groups:
            return self.nodes
        counts = [group.nodes for group in self.groups.values()]
        return counts[0] if self.form is Form.jobs else sum(counts)

    @property
    def components(self) -> "list[SlurmConfig]":
        """The requests of the job that has the head: one, or with form=het one for each group."""
        if not self.groups:
            return [self]
        alone = [self.of_group(name) for name in self.groups]
        if self.form is Form.job:
            return [self._for_all(alone)]
        return alone if self.form is Form.het else alone[:1]

    @property
    def requests(self) -> "dict[str, SlurmConfig]":
        """Group -> a request that gives it nodes, as Slurm gets it; of a group with jobs of its own, one of those."""
        if not self.groups:
            return {MAIN: self}
        if self.form is Form.job:
            return dict.fromkeys(self.groups, self.components[0])
        found = {name: self.of_group(name) for name in self.groups}
        for name in list(found)[1:] if self.form is Form.jobs else ():
            found[name] = replace(found[name], nodes=min(self.groups[name].nodes_per_job, self.groups[name].most_nodes))
        return found

    def of_group(self, name: str) -> "SlurmConfig":
        """The request of one group by itself, with the keys that it has of its own."""
        group = self.groups[name]
        own: dict[str, Any] = {key: value for key in INHERITED if (value := getattr(group, key)) is not None}
        if {"gres", "gpus_per_node"} & set(own):
            own = {"gres": None, "gpus_per_node": None, **own}
        values: dict[str, Any] = {key: None if value == "" else value for key, value in own.items()}
        values |= {"nodes": group.nodes or 1, "sbatch": {**self.sbatch, **group.sbatch}, "groups": {}}
        return replace(self, **values, form=Form.job, min_nodes=None)

    def _for_all(self, alone: "list[SlurmConfig]") -> "SlurmConfig":
        """One request that suits every group: nodes are alike, so that each has what the largest group wants."""
        gpus = max((each.gpus_per_node for each in alone if each.gpus_per_node is not None), default=None)
        return replace(
            self,
            nodes=self.head_nodes,
            cpus_per_node=max((each.cpus_per_node for each in alone if each.cpus_per_node), default=None),
            gpus_per_node=gpus,
            gres=None if gpus else self.gres,
            mem_gb=max((each.mem_gb for each in alone if each.mem_gb), default=None),
            groups={},
        )


@dataclass
class LabConfig(SlurmConfig):
    """The Slurm lab on this machine (`hpcjet lab up`)."""


def _too_few(config: SlurmConfig) -> tuple[str, str]:
    """What min_nodes may be at most, and the next step."""
    if not config.groups:
        return f"cluster.nodes={config.nodes} is the most there can be", "lower it or raise cluster.nodes"
    names = list(config.groups)[:1] if config.form is Form.jobs else list(config.groups)
    most = f"the job with the head has {config.head_nodes} nodes (cluster.groups: {', '.join(names)})"
    return most, "lower it or give those groups more nodes"
