"""What `hpcjet status` says of groups that come and go: what a person wants, what rests, what cannot be asked for."""

import time

from hpcjet.elastic.keeper import NO_SBATCH
from hpcjet.elastic.memory import read_memory
from hpcjet.elastic.wish import wishes
from hpcjet.plan import Plan


def elastic_lines(plan: Plan, *, now: float) -> list[str]:
    """Nothing for a run without such groups, and little where all goes well."""
    if not plan.worker_groups:
        return []
    memory, wanted = read_memory(plan.run.elastic), wishes(plan.run, plan)
    lines = [] if memory.submits else [NO_SBATCH]
    for group in plan.worker_groups:
        if wish := wanted.get(group.name):
            lines.append(f"group {group.name}: {wish.nodes} nodes by hpcjet scale; nodes=auto ends that")
        mine = memory.groups.get(group.name)
        if mine and mine.paused_until > now:
            until = time.strftime("%H:%M:%S", time.localtime(mine.paused_until))
            lines.append(f"group {group.name} rests until {until} after {mine.failures} failed starts: {mine.reason}")
    return lines
