"""The share of a node that one of several points side by side gets. Pure, but for taking it."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar

from hpcjet.cluster.gpus import VISIBLE

T = TypeVar("T")


def share_of(items: Sequence[T], slot: int, slots: int) -> list[T]:
    """The part of place `slot`: equal parts in order, what cannot be parted is left; with too few, one of them."""
    each = len(items) // slots
    return list(items[slot * each : (slot + 1) * each] if each else items[slot % len(items) :][:1])


def share_env(env: Mapping[str, str], *, cpus: int, slot: int, slots: int) -> dict[str, str]:
    """Slurm's variables as a job of that share would have them; GPUs that do not suffice for all go to the first."""
    made = {**env, "SLURM_CPUS_ON_NODE": str(cpus), "SLURM_JOB_CPUS_PER_NODE": str(cpus)}
    if (memory := env.get("SLURM_MEM_PER_NODE", "")).isdigit() and int(memory):
        made["SLURM_MEM_PER_NODE"] = str(max(1, int(memory) // slots))
    count = env.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit():
        gpus = _gpus(list(map(str, range(int(count)))), slot, slots)
        made["SLURM_GPUS_ON_NODE"] = str(len(gpus))
        made.pop("SLURM_STEP_GPUS", None)
    for name in VISIBLE:
        if devices := [each for each in env.get(name, "").split(",") if each]:
            made[name] = ",".join(_gpus(devices, slot, slots))
    return made


def take_share(*, slot: int, slots: int, on_slurm: bool) -> None:
    """Narrow this process, and all that it starts, to its share."""
    mine = share_of(sorted(os.sched_getaffinity(0)), slot, slots)
    os.sched_setaffinity(0, mine)
    if on_slurm:
        given = os.environ.get("SLURM_CPUS_ON_NODE", "")
        cpus = max(1, int(given) // slots) if given.isdigit() else len(mine)
        os.environ.update(share_env(os.environ, cpus=cpus, slot=slot, slots=slots))


def _gpus(devices: list[str], slot: int, slots: int) -> list[str]:
    each = len(devices) // slots
    return devices[slot * each : (slot + 1) * each] if each else devices[slot : slot + 1]
