"""CPUs and memory of the job on a node: what Slurm gave, and what the kernel allows."""

import os
from pathlib import Path

from hpcjet.cluster.cgroup import kernel_limits
from hpcjet.cluster.place import available_memory, slurm_place
from hpcjet.doctor.line import Facts, Line, fail, ok, size, warn
from hpcjet.doctor.order import Scene
from hpcjet.errors import BootstrapError

SUBJECT = "CPUs, memory"
LEAST_MEMORY = 2 * 1024**3


def look(scene: Scene) -> Facts:
    limits, memory = kernel_limits(), int(available_memory() * 0.9)
    found: Facts = {"cgroup": cgroup_version(Path("/sys/fs/cgroup"))}
    if not scene.in_slurm:
        return {**found, "cpus": limits.cpus or 1, "memory": memory, "warnings": []}
    try:
        place = slurm_place(
            os.environ, host=scene.host, first_host=scene.order.hosts[0], memory_bytes=memory, limits=limits
        )
    except BootstrapError as error:
        return {**found, "refused": str(error)}
    # GPUs have a line of their own.
    warnings = [text.replace(f" on {scene.host}", "") for text in place.warnings if "GPU" not in text]
    return {**found, "cpus": place.cpus, "memory": place.memory_bytes, "warnings": warnings}


def assess(facts: Facts) -> list[Line]:
    if "refused" in facts:
        what, _, do = facts["refused"].rpartition(": ")
        return [fail(SUBJECT, what, do)]
    controlled = f"control groups v{facts['cgroup']}" if facts["cgroup"] else "no control groups"
    text = f"{facts['cpus']} CPU{'s' if facts['cpus'] > 1 else ''}, {size(facts['memory'])}, {controlled}"
    lines = []
    for warning in facts["warnings"]:
        what, _, do = warning.rpartition("; ")
        lines.append(warn(SUBJECT, what or do, do if what else "see docs/cluster.md"))
    if facts["memory"] < LEAST_MEMORY:
        lines.append(warn(SUBJECT, f"{text}: little for Ray and a workload", "ask for more: cluster.mem_gb=8"))
    if facts["cpus"] == 1:
        lines.append(
            warn(SUBJECT, f"{text}: Ray itself wants one", "ask for more: cluster.cpus_per_node=N, or exclusive=true")
        )
    return lines or [ok(SUBJECT, text)]


def cgroup_version(root: Path) -> int:
    """2 for the unified hierarchy, 1 for one with controllers of its own each, 0 for none."""
    if (root / "cgroup.controllers").exists():
        return 2
    return 1 if any((root / name).is_dir() for name in ("memory", "cpu", "cpuset", "unified")) else 0
