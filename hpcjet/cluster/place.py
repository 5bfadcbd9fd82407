"""Where a node agent finds itself: its allocation, its rank, and its share of the node."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import BootstrapError

GIB = 1024**3


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

    @property
    def name(self) -> str:
        """A name for files of this allocation: fresh after each requeue."""
        return f"{self.allocation}-{self.restart}"

    @property
    def is_head(self) -> bool:
        return self.rank == 0


def slurm_place(env: Mapping[str, str], *, host: str, first_host: str, memory_bytes: int) -> Place:
    """The place that the variables of a Slurm step tell; `memory_bytes` is used where Slurm names no memory.

    Raises BootstrapError if there is more than one task per node: two agents on a node would start two Rays.
    """
    num_nodes = int(env.get("SLURM_STEP_NUM_NODES") or env["SLURM_JOB_NUM_NODES"])
    num_tasks = int(env.get("SLURM_STEP_NUM_TASKS") or num_nodes)
    if num_tasks != num_nodes:
        raise BootstrapError(
            f"the job step has {num_tasks} tasks on {num_nodes} nodes: hpcjet needs one per node; "
            "remove ntasks and ntasks-per-node from cluster.sbatch and cluster.srun_args"
        )
    cpus = int(env.get("SLURM_CPUS_ON_NODE") or 1)
    array = env.get("SLURM_ARRAY_JOB_ID")
    return Place(
        allocation=f"{array}_{env['SLURM_ARRAY_TASK_ID']}" if array else env["SLURM_JOB_ID"],
        restart=int(env.get("SLURM_RESTART_COUNT") or 0),
        rank=int(env["SLURM_NODEID"]),
        num_nodes=num_nodes,
        host=host,
        cpus=cpus,
        gpus=_slurm_gpus(env),
        memory_bytes=_slurm_memory(env, cpus) or memory_bytes,
        first_host=first_host,
    )


def local_place(*, host: str, cpus: int, gpus: int, memory_bytes: int, restart: int = 0) -> Place:
    """This machine as the only node."""
    return Place(
        allocation=f"local-{os.getpid()}",
        restart=restart,
        rank=0,
        num_nodes=1,
        host=host,
        cpus=cpus,
        gpus=gpus,
        memory_bytes=memory_bytes,
        first_host=host,
    )


def _slurm_gpus(env: Mapping[str, str]) -> int:
    if env.get("SLURM_GPUS_ON_NODE", "").isdigit():
        return int(env["SLURM_GPUS_ON_NODE"])
    listed = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS") or ""
    return len([each for each in listed.split(",") if each])


def _slurm_memory(env: Mapping[str, str], cpus: int) -> int | None:
    """Slurm gives MiB, per node or per CPU; 0 means all of the node."""
    if per_node := int(env.get("SLURM_MEM_PER_NODE") or 0):
        return per_node * 1024**2
    if per_cpu := int(env.get("SLURM_MEM_PER_CPU") or 0):
        return per_cpu * cpus * 1024**2
    return None


def available_memory(*, proc: Path = Path("/proc"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may still use: what is free, or the cgroup's limit if that is lower (version 1 and 2)."""
    free = _meminfo(proc / "meminfo")["MemAvailable"]
    limits = [int(text) for path in _cgroup_limit_files(proc, cgroup_root) if (text := _read(path)).isdigit()]
    return min([free, *limits])


def _meminfo(path: Path) -> dict[str, int]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) > 1}


def _cgroup_limit_files(proc: Path, root: Path) -> list[Path]:
    files = []
    for line in _read(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            files.append(root / path.lstrip("/") / "memory.max")
        elif "memory" in controllers.split(","):
            files.append(root / "memory" / path.lstrip("/") / "memory.limit_in_bytes")
    return files


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
