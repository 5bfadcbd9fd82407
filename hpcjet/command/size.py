"""How many ranks and processes a node gets. Pure."""

import re
from collections.abc import Mapping

from hpcjet.cluster.gpus import gpu_count
from hpcjet.config.command import MpiConfig, TorchrunConfig
from hpcjet.plan import Plan


def node_cpus(plan: Plan, env: Mapping[str, str], *, here: int) -> int:
    """CPUs that every node has for the run: the least, where they differ; `here` is what this process may use."""
    if plan.groups[0].cpus:
        return plan.groups[0].cpus
    if plan.cluster == "local":
        return here
    listed = [int(count) for count in re.findall(r"(?:^|,)(\d+)", env.get("SLURM_JOB_CPUS_PER_NODE", ""))]
    return min(listed, default=here)


def node_gpus(plan: Plan, env: Mapping[str, str]) -> int:
    """GPUs of the head, which is a node like the others."""
    if plan.groups[0].gpus is not None:
        return plan.groups[0].gpus
    return gpu_count(env.get("SLURM_GPUS_ON_NODE", "")) or 0


def ranks_per_node(exp: MpiConfig, cpus: int) -> int:
    """As many as the CPUs of a node allow, unless it is said."""
    return exp.ranks_per_node or max(1, cpus // exp.cpus_per_rank)


def procs_per_node(exp: TorchrunConfig, gpus: int) -> int:
    """One for each GPU, unless it is said."""
    return exp.procs_per_node or gpus or 1
