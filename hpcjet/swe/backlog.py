"""backlog.json: what waits for nodes, for the keeper that asks Slurm for more and gives idle ones back. Pure."""

from collections.abc import Iterable
from typing import Any

from hpcjet.config.exp import SweConfig
from hpcjet.swe.worker import Worker


def backlog(exp: SweConfig, *, waiting: int, workers: Iterable[Worker], longest_s: float, now: float) -> dict[str, Any]:
    """Times in seconds, `now` in Unix seconds; cpus and memory_gb are those of one attempt."""
    busy: dict[str, int] = {}
    for worker in workers:
        busy[worker.node.member] = busy.get(worker.node.member, 0) + len(worker.jobs)
    return {
        "updated": round(now, 3),
        "waiting": waiting,
        "in_flight": sum(busy.values()),
        "cpus": exp.cpus,
        "memory_gb": exp.memory_gb,
        "longest_s": round(longest_s, 1),
        "group": exp.group,
        "busy": {member: number for member, number in busy.items() if number},
    }
