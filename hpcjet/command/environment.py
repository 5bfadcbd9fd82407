"""The environment of the user's program, and that of an inner srun. Pure."""

import re
from collections.abc import Mapping
from pathlib import Path

OUTER_STEP = re.compile(
    r"PMI_(FD|RANK|SIZE|JOBID|PORT|SPAWNED|ID)|PMIX_(RANK|NAMESPACE|SECURITY_MODE|SERVER_.*|GDS_MODULE|PTL_MODULE)"
)
"""With these of the node agents' step, an MPI program would take itself for a rank of it and wait for the others."""
OPTIONS_OF_SRUN = re.compile(
    r"SLURM_(CPU_BIND|MEM_BIND|NTASKS|NPROCS|NNODES|TASKS_PER_NODE|DISTRIBUTION|EXPORT_ENV|MPI_TYPE|GPU_BIND)(_.*)?"
    r"|SLURM_(CPUS_PER_TASK|MEM_PER_CPU|MEM_PER_NODE|TRES_PER_TASK)"
)
"""Set for the node agents' step, srun would read them as options of the new one."""


def program_env(
    env: Mapping[str, str], *, chosen: str | None, interpreter: str, ray_address: str | None
) -> dict[str, str]:
    """What the program gets: all that the job has, and Ray's address.

    `chosen` is exp.python: its folder comes first on PATH. Without it, that of hpcjet's `interpreter` does, unless it
    is on PATH already, as after `activate`: then the order stays as the user made it.
    """
    made = {key: value for key, value in env.items() if not OUTER_STEP.fullmatch(key)}
    made["PATH"] = _path(env.get("PATH", ""), chosen, interpreter)
    if ray_address:
        made["RAY_ADDRESS"] = ray_address
    return made


def step_env(env: Mapping[str, str]) -> dict[str, str]:
    """What srun gets when it starts a step within a job."""
    return {key: value for key, value in env.items() if not OPTIONS_OF_SRUN.fullmatch(key)}


def _path(path: str, chosen: str | None, interpreter: str) -> str:
    if chosen and "/" in chosen:
        return f"{Path(chosen).parent}:{path}"
    folder = str(Path(interpreter).parent)
    return path if folder in path.split(":") else f"{folder}:{path}"
