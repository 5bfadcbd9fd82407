"""From a plan to the settings of submitit and to the text of the batch script. Pure, and needs no Slurm."""

import re
import shlex
from pathlib import Path
from typing import Any

from hpcjet.config.cluster import SlurmConfig
from hpcjet.plan import Plan


def settings(plan: Plan, config: SlurmConfig) -> dict[str, Any]:
    """What submitit's Slurm executor is given. Keys that are null are left out: the site's default holds."""
    wanted = {
        "job_name": config.job_name or f"hpcjet-{plan.exp}",
        "nodes": config.nodes,
        "ntasks_per_node": 1,
        "cpus_per_task": config.cpus_per_node,
        "gpus_per_node": config.gpus_per_node,
        "gres": config.gres,
        "mem": _memory(config.mem_gb),
        "time": config.time_min,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "nodelist": config.nodelist,
        "exclude": config.exclude,
        "exclusive": config.exclusive or None,
        "signal_delay_s": config.signal_delay_s,
        "comment": f"hpcjet {plan.run.path.name}",
        "setup": config.setup or None,
        "srun_args": srun_args(plan, config),
        "additional_parameters": _beyond_submitit(config),
        "stderr_to_stdout": True,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def srun_args(plan: Plan, config: SlurmConfig) -> list[str]:
    """Options of the one srun.

    cpus-per-task is repeated: since Slurm 22.05 a step does not inherit it and would get one CPU. With every node
    needed, the first agent that ends takes the others along, after time to end by themselves: killing them at once, as
    kill-on-bad-exit does, would hide the head's exit code behind theirs.
    """
    args = ["--nodes", str(config.nodes), "--ntasks", str(config.nodes)]
    if config.cpus_per_node:
        args.append(f"--cpus-per-task={config.cpus_per_node}")
    if plan.min_nodes == plan.num_nodes:
        args.append(f"--wait={max(10, round(plan.end_timeout_s))}")
    return [*args, *config.srun_args]


def render(plan: Plan, config: SlurmConfig, *, folder: Path, command: str) -> str:
    """The batch script, byte for byte as it is submitted."""
    from submitit.slurm import slurm

    text: str = slurm._make_sbatch_string(command=command, folder=folder, **settings(plan, config))
    return drop_unset(text)


def submitit_command(plan: Plan, folder: Path) -> str:
    """The command that submitit runs on each node; it loads the node agent from `folder`."""
    return f"{shlex.quote(plan.python)} -u -m submitit.core._submit {shlex.quote(str(folder))}"


def drop_unset(script: str) -> str:
    """Without the lines of options that are null."""
    lines = [line for line in script.splitlines() if not re.fullmatch(r"#SBATCH --[a-z-]+=None", line)]
    return "\n".join(lines) + "\n"


def _beyond_submitit(config: SlurmConfig) -> dict[str, str | None]:
    """Further options; and null for the two that submitit always writes: its wckey, and a time limit of 5 minutes."""
    unset: dict[str, str | None] = {"wckey": None}
    if config.time_min is None:
        unset["time"] = None
    return unset | config.sbatch


def _memory(mem_gb: float | None) -> str | None:
    return None if mem_gb is None else f"{int(mem_gb * 1024)}M"
