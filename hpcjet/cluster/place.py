"""Where a node agent finds itself: its allocation, its rank, and its share of the node."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.cluster.cgroup import Limits, meminfo, memory_limits
from hpcjet.cluster.gpus import slurm_gpus
from hpcjet.errors import BootstrapError
from hpcjet.slurm.het import component_env, component_of, step_components
from hpcjet.slurm.requeue import element_id

GIB = 1024**3
LOCAL = "local-"
UNITS = {"K": 1024, "M": 1024**2, "G": GIB, "T": 1024 * GIB}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One node of one allocation, as the job was given it (not as the machine has it)."""

    allocation: str
    """Slurm's job id (array element: 12_3), or `local-<pid>`."""
    restart: int
    """How often the allocation was requeued."""
    rank: int
    num_nodes: int
    host: str
    cpus: int
    gpus: int
    memory_bytes: int
    first_host: str
    """The head's host name."""
    warnings: tuple[str, ...] = ()
    """Where what Slurm says and what the kernel allows differ; the lower number was taken."""

    @property
    def is_local(self) -> bool:
        """This machine, without Slurm."""
        return self.allocation.startswith(LOCAL)

    @property
    def name(self) -> str:
        """A name for files of this allocation: fresh after each requeue."""
        return f"{self.allocation}-{self.restart}"

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def slurm_place(
    env: Mapping[str, str], *, host: str, first_host: str, memory_bytes: int, limits: Limits | None = None
) -> Place:
    """The place that the variables of a Slurm step tell; `memory_bytes` is used where Slurm names no memory.

    `limits` are the kernel's (`kernel_limits()`): of two numbers the lower is taken, with a warning. Raises
    BootstrapError if there is more than one task per node (two agents on a node would start two Rays), and where the
    variables cannot be those of one step.
    """
    limits = limits or Limits()
    num_nodes = _num_nodes(env)
    rank = _rank(env, num_nodes)
    allocation, inner, alike = element_id(env), rank, num_nodes
    if components := step_components(env):
        _check_apart(components)
        number, inner = component_of(components, rank)
        env, alike = component_env(env, number), len(components[number])
    given, warnings = _slurm_cpus(env, inner, alike)
    cpus = min(given or limits.cpus or 1, limits.cpus or given or 1)
    gpus, gpu_warnings = slurm_gpus(env, host)
    asked = _slurm_memory(env, given or cpus, gpus)
    memory = min(asked or memory_bytes, limits.memory_bytes or asked or memory_bytes)
    return Place(
        allocation=allocation,
        restart=int(env.get("SLURM_RESTART_COUNT") or 0),
        rank=rank,
        num_nodes=num_nodes,
        host=host,
        cpus=cpus,
        gpus=gpus,
        memory_bytes=memory,
        first_host=first_host,
        warnings=(*warnings, *_limited(host, cpus, given, memory, asked), *gpu_warnings),
    )


def local_place(*, host: str, cpus: int, gpus: int, memory_bytes: int, restart: int = 0) -> Place:
    """This machine as the only node."""
    return Place(
        allocation=f"{LOCAL}{os.getpid()}",
        restart=restart,
        rank=0,
        num_nodes=1,
        host=host,
        cpus=cpus,
        gpus=gpus,
        memory_bytes=memory_bytes,
        first_host=host,
    )


def available_memory(*, proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still use: what is free, or the lowest limit of its control groups."""
    return min([meminfo(proc)["MemAvailable"], *memory_limits(proc, cgroup_root)])


def _num_nodes(env: Mapping[str, str]) -> int:
    num_nodes = int(env.get("SLURM_STEP_NUM_NODES") or env["SLURM_JOB_NUM_NODES"])
    num_tasks = int(env.get("SLURM_STEP_NUM_TASKS") or num_nodes)
    if num_tasks != num_nodes:
        raise BootstrapError(
            f"the job step has {num_tasks} tasks on {num_nodes} nodes: hpcjet needs one per node; "
            "remove ntasks and ntasks-per-node from cluster.sbatch and cluster.srun_args"
        )
    return num_nodes


def _rank(env: Mapping[str, str], num_nodes: int) -> int:
    rank = env.get("SLURM_NODEID", "")
    if not rank.isdigit() or int(rank) >= num_nodes:
        raise BootstrapError(
            f"SLURM_NODEID={rank} is not the number of a node of a step of {num_nodes} nodes (0 to {num_nodes - 1}): "
            "start one node agent per node with srun, and do not set Slurm's variables yourself"
        )
    return int(rank)


def _check_apart(components: list[list[str]]) -> None:
    """Raises BootstrapError where two components of a heterogeneous job share a node."""
    hosts = [host for each in components for host in each]
    if twice := sorted({host for host in hosts if hosts.count(host) > 1}):
        raise BootstrapError(
            f"Slurm gave {', '.join(twice)} to two components of the job, and there would be two node agents: "
            "ask for whole nodes with cluster.exclusive=true"
        )


def _slurm_cpus(env: Mapping[str, str], rank: int, num_nodes: int) -> tuple[int | None, list[str]]:
    """(the lowest that Slurm's variables tell, None if they tell nothing; warnings)"""
    told, warnings = {}, []
    if on_node := env.get("SLURM_CPUS_ON_NODE"):
        told["SLURM_CPUS_ON_NODE"] = _positive(on_node)
    # The list is of the job's nodes: where a step has only some of them, its ranks do not count along it.
    if (per_node := env.get("SLURM_JOB_CPUS_PER_NODE")) and env.get("SLURM_JOB_NUM_NODES") == str(num_nodes):
        counts = repeated(per_node)
        told["SLURM_JOB_CPUS_PER_NODE"] = counts[rank] if len(counts) == num_nodes else None
    for key, count in told.items():
        if count is None:
            warnings.append(f"{key}={env[key]} does not tell the CPUs of node {rank} of {num_nodes}; it is ignored")
    known = {key: count for key, count in told.items() if count}
    if len(set(known.values())) > 1:
        counts_told = ", ".join(f"{key}: {count}" for key, count in known.items())
        warnings.append(
            f"the CPUs of node {rank} are told differently ({counts_told}): {min(known.values())} will be used; "
            "for all of the job's, add --cpus-per-task to cluster.srun_args"
        )
    return min(known.values(), default=None), warnings


def repeated(text: str) -> list[int]:
    """Slurm's short form of a number per node: `72(x2),36` is 72, 72, 36. Empty if it is not of this form."""
    counts: list[int] = []
    for word in text.split(","):
        found = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", word)
        if not found:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def _slurm_memory(env: Mapping[str, str], cpus: int, gpus: int) -> int | None:
    """Bytes; Slurm tells memory per node, per CPU or per GPU, and 0 means all of the node."""
    for key, count in (("SLURM_MEM_PER_NODE", 1), ("SLURM_MEM_PER_CPU", cpus), ("SLURM_MEM_PER_GPU", gpus)):
        if found := re.fullmatch(r"(\d+)([KMGT]?)", env.get(key, "")):
            unit = UNITS[found[2] or "M"]
            if told := int(found[1]) * unit * count:
                return told
    return None


def _limited(host: str, cpus: int, given: int | None, memory: int, asked: int | None) -> list[str]:
    """Warnings where the kernel allows less than Slurm gave."""
    warnings = []
    if given and cpus < given:
        warnings.append(
            f"Slurm gave {given} CPUs on {host} and the kernel allows {cpus} (CPU affinity or control group): "
            f"{cpus} will be used; look at --cpus-per-task, --hint and --cpu-bind in cluster.srun_args"
        )
    # Sites keep a little of each node for the system.
    if asked and memory < 0.97 * asked:
        warnings.append(
            f"Slurm gave {asked / GIB:.1f} GiB on {host} and the kernel allows {memory / GIB:.1f} GiB (control group "
            "or size of the machine): that will be used; ask for it with cluster.mem_gb to be sure of it"
        )
    return warnings


def _positive(text: str) -> int | None:
    return int(text) if text.isdigit() and int(text) else None
