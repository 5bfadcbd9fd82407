"""plan(config) -> Plan: what a run will do, before anything is touched. Pure: no disk, no process, no clock."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hpcjet.config.check import bad
from hpcjet.config.cluster import LocalConfig, SlurmConfig
from hpcjet.config.engine import ServedConfig
from hpcjet.config.group import MAIN, Form, GroupConfig
from hpcjet.config.plain import from_dict, to_dict
from hpcjet.config.root import LaunchConfig, kind_of
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Nodes that are alike. None: what the site or the machine gives."""

    name: str
    nodes: int
    cpus: int | None
    gpus: int | None
    memory_gb: float | None
    min_nodes: int = 0
    max_nodes: int = 0
    """Where the group has jobs of its own: to how many nodes it shrinks and grows."""
    idle_s: float = 60.0
    nodes_per_job: int = 1
    max_failures: int = 3
    time_min: int | None = None
    """Time limit of one job of the group."""

    @property
    def elastic(self) -> bool:
        """Whether its number of nodes changes while the run goes on."""
        return self.max_nodes > self.min_nodes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """All that the node agents need; plan.json in the run directory."""

    exp: str
    cluster: str
    run_dir: str
    python: str
    groups: tuple[NodeGroup, ...]
    ray: bool
    """Whether Ray is started on the nodes."""
    min_nodes: int
    on_node_loss: str
    """`fail` or `continue`."""
    time_min: int | None
    signal_delay_s: int | None
    """Seconds before the time limit at which Slurm tells the run to stop; None without Slurm."""
    requeue: bool
    max_restarts: int
    boot_timeout_s: float
    end_timeout_s: float
    interface: str | None
    object_store_gb: float | None
    env: dict[str, str]
    """Variables for everything that runs on the nodes, on top of what the job has."""
    driver: tuple[str, ...]
    """The command that runs on the head: the workload."""
    sidecar: tuple[str, ...]
    """A command that runs on every node beside Ray, such as an engine's replicas there; empty for none."""
    config: dict[str, Any]
    """The resolved config as plain data."""
    form: str = "job"
    """How the groups are asked of Slurm: `job`, `het` or `jobs`, as cluster.form."""
    head_wait_s: float = 900.0
    """How long the nodes of a worker allocation wait for a head."""
    max_hours: float | None = None
    """Bound of the time that the run's head allocations take together."""

    @property
    def num_nodes(self) -> int:
        """Nodes at the start, of all groups."""
        return sum(group.nodes for group in self.groups)

    @property
    def head_groups(self) -> tuple[NodeGroup, ...]:
        """The groups of the head allocation; the first one has the head."""
        return self.groups[:1] if self.form == Form.jobs.name else self.groups

    @property
    def worker_groups(self) -> tuple[NodeGroup, ...]:
        """The groups that have allocations of their own."""
        return self.groups[1:] if self.form == Form.jobs.name else ()

    @property
    def sidecar_groups(self) -> tuple[str, ...]:
        """Whose nodes have a sidecar: an engine's are those of engine.group, else those with GPUs, else all."""
        names = tuple(group.name for group in self.groups)
        if not self.sidecar:
            return ()
        if wanted := (self.config.get("engine") or {}).get("group"):
            return tuple(name for name in names if name == wanted)
        return tuple(group.name for group in self.groups if group.gpus) or names

    @property
    def head_nodes(self) -> int:
        """Nodes of the head allocation."""
        return sum(group.nodes for group in self.head_groups)

    def group(self, name: str) -> NodeGroup:
        """Raises ConfigError if there is no such group."""
        for group in self.groups:
            if group.name == name:
                return group
        raise bad("group", name, f"the run's groups are {', '.join(each.name for each in self.groups)}", "name one")

    def group_of(self, rank: int) -> NodeGroup:
        """The group of a rank of the head allocation: ranks go through the groups in their order."""
        for group in self.head_groups:
            if rank < group.nodes:
                return group
            rank -= group.nodes
        return self.head_groups[-1]

    @property
    def continues(self) -> bool:
        """Whether the run goes on without a node that is lost."""
        return self.on_node_loss == "continue"

    def stop_timeout_s(self, *, time_limit: bool) -> float:
        """Seconds that the workload has to stop at a safe point: before the time limit most of the warning's time."""
        return max(self.end_timeout_s, (self.signal_delay_s or 0) * 2 / 3) if time_limit else self.end_timeout_s

    @property
    def run(self) -> RunDir:
        from pathlib import Path

        return RunDir(Path(self.run_dir))

    def typed_config(self) -> LaunchConfig:
        return from_dict(self.config)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


FIXED_ENV = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "PYTHONUNBUFFERED": "1",
    "PYTHONUTF8": "1",
}
"""Set for everything on the nodes. litellm would try to fetch a price list from the internet at import, three times."""

SEED = "HPCJET_SEED"
"""The variable with the seed of the run."""


def make_plan(config: LaunchConfig, *, run_dir: RunDir, python: str) -> Plan:
    """The plan of one launch into `run_dir` with the interpreter `python`."""
    cluster = config.cluster
    groups = _groups(cluster)
    plan = Plan(
        exp=kind_of("exp", config.exp),
        cluster=kind_of("cluster", cluster),
        run_dir=str(run_dir.path),
        python=python,
        groups=groups,
        ray=config.exp.wants_ray,
        min_nodes=0,
        on_node_loss=(cluster.on_node_loss or config.exp.on_node_loss).name,
        time_min=cluster.time_min if isinstance(cluster, SlurmConfig) else None,
        signal_delay_s=signal_delay_s(cluster) if isinstance(cluster, SlurmConfig) else None,
        requeue=isinstance(cluster, SlurmConfig) and cluster.requeue,
        max_restarts=cluster.max_restarts if isinstance(cluster, SlurmConfig) else 0,
        boot_timeout_s=cluster.boot_timeout_s,
        end_timeout_s=cluster.end_timeout_s,
        interface=cluster.interface,
        object_store_gb=cluster.object_store_gb,
        env={**FIXED_ENV, SEED: str(config.seed), **cluster.env},
        driver=(python, "-m", "hpcjet.drive", str(run_dir.plan)),
        sidecar=_sidecar(config, run_dir, python),
        config=to_dict(config),
        form=cluster.form.name if isinstance(cluster, SlurmConfig) else Form.job.name,
        head_wait_s=cluster.head_wait_s if isinstance(cluster, SlurmConfig) else 0.0,
        max_hours=config.run.max_hours,
    )
    return dataclasses.replace(plan, min_nodes=cluster.min_nodes or plan.head_nodes)


def read_plan(text: str) -> Plan:
    """The reverse of Plan.to_json. Raises ConfigError for a file that is not a plan of this version."""
    try:
        data = json.loads(text)
        groups = tuple(NodeGroup(**group) for group in data.pop("groups"))
        commands = {name: tuple(data[name]) for name in ("driver", "sidecar")}
        return Plan(**{**data, **commands}, groups=groups) if groups else _no_groups()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"plan.json is not a plan of this version of hpcjet ({error}); launch again") from None


def agent_command(plan: Plan, group: str | None = None) -> list[str]:
    """The command that starts the node agent of this plan on a node; `group` on one of a worker allocation."""
    worker = [] if group is None else ["--worker", group]
    return [plan.python, "-u", "-m", "hpcjet.cluster.node", str(plan.run.plan), *worker]


@dataclass(frozen=True)
class Cost:
    """The most that a run can use up, in hours; None where the plan leaves the number to the site."""

    node_hours: float | None
    cpu_hours: float | None
    gpu_hours: float | None


@dataclass(frozen=True)
class Defaults:
    """What the site gives where a plan is silent; None where nobody knows."""

    time_min: float | None = None
    cpus_per_node: int | None = None
    gpus_per_node: int | None = None
    whole_nodes: bool = False
    """Nodes are charged as a whole, whatever is asked for."""


def cost(plan: Plan, defaults: Mapping[str, Defaults] | None = None) -> Cost:
    """Time limit times what is asked for, or what the site gives each group without being asked."""
    return total(group_costs(plan, defaults or {}).values())


def group_costs(plan: Plan, defaults: Mapping[str, Defaults]) -> dict[str, Cost]:
    """Group -> the most that it can use up. One that grows may have all its nodes for as long as the run lasts."""
    silent = Defaults()
    hours = _longest_hours(plan, defaults.get(plan.groups[0].name, silent))
    return {group.name: _group_cost(plan, group, defaults.get(group.name, silent), hours) for group in plan.groups}


def total(costs: Iterable[Cost]) -> Cost:
    """All of them together."""
    listed = list(costs)
    return Cost(
        _sum(each.node_hours for each in listed),
        _sum(each.cpu_hours for each in listed),
        _sum(each.gpu_hours for each in listed),
    )


def _longest_hours(plan: Plan, site: Defaults) -> float | None:
    """How long the run may last: its head's time limit, or the bound of a chain of restarts."""
    if plan.max_hours is not None and plan.requeue:
        return plan.max_hours
    time_min = plan.time_min if plan.time_min is not None else site.time_min
    return None if time_min is None else time_min / 60


def _group_cost(plan: Plan, group: NodeGroup, site: Defaults, hours: float | None) -> Cost:
    if hours is None:
        return Cost(None, None, None)
    node_hours = hours * (group.max_nodes if group in plan.worker_groups else group.nodes)
    cpus = _charged(group.cpus, site.cpus_per_node, whole=site.whole_nodes)
    gpus = _charged(group.gpus, site.gpus_per_node, whole=site.whole_nodes) or 0
    return Cost(node_hours, None if cpus is None else node_hours * cpus, node_hours * gpus)


def _charged(asked: int | None, given: int | None, *, whole: bool) -> int | None:
    return given if asked is None or (whole and given is not None) else asked


def _sum(numbers: Iterable[float | None]) -> float | None:
    """None if one of them is not known."""
    sum_: float | None = 0.0
    for number in numbers:
        sum_ = None if sum_ is None or number is None else sum_ + number
    return sum_


def signal_delay_s(cluster: SlurmConfig) -> int:
    """How long before the limit Slurm warns: what was asked, but no more than a third of a short job's time."""
    if cluster.time_min is None:
        return cluster.signal_delay_s
    return min(cluster.signal_delay_s, max(10, cluster.time_min * 60 // 3))


def _groups(cluster: Any) -> tuple[NodeGroup, ...]:
    if not isinstance(cluster, SlurmConfig):
        assert isinstance(cluster, LocalConfig)
        cpus, gpus, memory_gb = cluster.cpus, cluster.gpus, cluster.memory_gb
        return (NodeGroup(name=MAIN, nodes=1, cpus=cpus, gpus=gpus, memory_gb=memory_gb, min_nodes=1, max_nodes=1),)
    if not cluster.groups:
        return (_slurm_group(MAIN, cluster, cluster.nodes),)
    if cluster.form is Form.job:
        [shared] = cluster.components
        return tuple(_slurm_group(name, shared, group.nodes) for name, group in cluster.groups.items())
    found = []
    for number, (name, group) in enumerate(cluster.groups.items()):
        each = _slurm_group(name, cluster.of_group(name), group.nodes)
        found.append(_growing(each, group) if number and cluster.form is Form.jobs else each)
    return tuple(found)


def _slurm_group(name: str, request: SlurmConfig, nodes: int) -> NodeGroup:
    return NodeGroup(
        name=name,
        nodes=nodes,
        cpus=request.cpus_per_node,
        gpus=_gpus(request),
        memory_gb=request.mem_gb,
        min_nodes=nodes,
        max_nodes=nodes,
        time_min=request.time_min,
    )


def _growing(group: NodeGroup, config: GroupConfig) -> NodeGroup:
    """The group with what its config says of its size."""
    return dataclasses.replace(
        group,
        min_nodes=config.min or 0,
        max_nodes=config.most_nodes,
        idle_s=config.idle_s,
        nodes_per_job=config.nodes_per_job,
        max_failures=config.max_failures,
    )


def _sidecar(config: LaunchConfig, run_dir: RunDir, python: str) -> tuple[str, ...]:
    """The replicas of an engine that hpcjet starts itself."""
    if not (config.exp.wants_engine and isinstance(config.engine, ServedConfig)):
        return ()
    return (python, "-m", "hpcjet.engine.node", str(run_dir.plan))


def _gpus(cluster: SlurmConfig) -> int | None:
    """gpus_per_node, or the count at the end of gres=gpu:4 or gres=gpu:a100:4."""
    if cluster.gpus_per_node is not None or not cluster.gres:
        return cluster.gpus_per_node
    counts = [each.split("(")[0].split(":") for each in cluster.gres.split(",") if each.split(":")[0] == "gpu"]
    return sum(int(words[-1]) if words[-1].isdigit() else 1 for words in counts)


def _no_groups() -> Plan:
    raise ValueError("no node groups")
