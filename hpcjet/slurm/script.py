"""From a plan to the settings of submitit and to the text of the batch script. Pure, and needs no Slurm."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcjet.config.cluster import SlurmConfig
from hpcjet.plan import Plan, agent_command, signal_delay_s

LEAVE_ALONE = ("--kill-on-bad-exit=0", "--wait=0")
"""That one agent ends is no reason for srun to end others, whatever the site's defaults: the head sees to that."""


def settings(plan: Plan, config: SlurmConfig) -> dict[str, Any]:
    """What submitit's Slurm executor is given for one request (of several components, the first).

    Keys that are null are left out: the site's default holds.
    """
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
        "signal_delay_s": plan.signal_delay_s,
        "comment": f"hpcjet {plan.run.path.name}",
        "setup": config.setup or None,
        "srun_args": srun_args(plan, config),
        "additional_parameters": _beyond_submitit(plan, config),
        "stderr_to_stdout": True,
    }
    return {key: value for key, value in wanted.items() if value is not None}


def head_settings(plan: Plan, config: SlurmConfig) -> dict[str, Any]:
    """Those of the job that has the head; `finished` adds the further components of a heterogeneous one."""
    first, *others = config.components
    wanted = settings(plan, first)
    return wanted | {"srun_args": [_component(0), *wanted["srun_args"]]} if others else wanted


def srun_args(plan: Plan, config: SlurmConfig) -> list[str]:
    """Options of the one srun, for one request.

    cpus-per-task is repeated: since Slurm 22.05 a step does not inherit it and would get one CPU.
    """
    args = ["--nodes", str(config.nodes), "--ntasks", str(config.nodes)]
    if config.cpus_per_node:
        args.append(f"--cpus-per-task={config.cpus_per_node}")
    args += LEAVE_ALONE
    if plan.continues:
        args.append("--no-kill")
    return [*args, *config.srun_args]


def render(plan: Plan, config: SlurmConfig, *, folder: Path, command: str) -> str:
    """The batch script of the job that has the head, byte for byte as it is submitted."""
    from submitit.slurm import slurm

    text: str = slurm._make_sbatch_string(command=command, folder=folder, **head_settings(plan, config))
    return finished(text, plan, config, command=command)


def submitit_command(plan: Plan, folder: Path) -> str:
    """The command that submitit runs on each node; it loads the node agent from `folder`."""
    return f"{shlex.quote(plan.python)} -u -m submitit.core._submit {shlex.quote(str(folder))}"


def render_worker(plan: Plan, config: SlurmConfig, group: str, nodes: int) -> str:
    """The batch script of a worker allocation: a node agent on each of its nodes.

    Slurm does not queue it again by itself: the run asks for new nodes where it needs them.
    """
    from submitit.slurm import slurm

    request = replace(config.of_group(group), nodes=nodes)
    own = replace(plan, requeue=False, on_node_loss="continue", signal_delay_s=signal_delay_s(request))
    wanted = settings(own, request) | {"job_name": f"{request.job_name or f'hpcjet-{plan.exp}'}-{group}"}
    command = shlex.join(agent_command(plan, group))
    text: str = slurm._make_sbatch_string(command=command, folder=plan.run.submit_folder, **wanted)
    lines = [line for line in _without_null(text) if line != "export SUBMITIT_EXECUTOR=slurm"]
    return "\n".join(lines) + "\n"


JOB_END = """\
srun=$!
# The node agent of the head leaves the run's exit code; without one the cluster failed. A node that is lost would
# keep srun waiting until Slurm gives the node up.
code={run}/rendezvous/exit-$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}
(until [ -s "$code" ]; do sleep 1; done; [ -e "$code-lost" ] || sleep 3; sleep 2; kill -9 $srun) >/dev/null 2>&1 &
watch=$!
wait $srun
kill $watch 2>/dev/null
# Agents that were killed left their temp folders, and that of the head left no reason.
[ -s "$code" ] && [ ! -e "$code-lost" ] || {python} -m hpcjet.cluster.aftermath {run}
exit "$(cat "$code" 2>/dev/null || echo 3)"
"""


def finished(script: str, plan: Plan, config: SlurmConfig, *, command: str) -> str:
    """submitit's script without the options that are null, and with an end that returns the run's exit code.

    Of a heterogeneous job submitit renders the first component, whose srun ends with `command`; the others are added.
    """
    lines = _without_null(script)
    while not lines[-1].startswith("srun "):
        assert not lines.pop().strip(), "submitit's script ends with its srun"
    if others := config.components[1:]:
        lines[-1] = _step_over_all(lines[-1].removesuffix(command).rstrip(), plan, others)
        begin = next(number for number, line in enumerate(lines) if line.startswith("#SBATCH "))
        end = lines.index("", begin)
        lines[end:end] = [line for each in others for line in _component_lines(plan, each)]
    return "\n".join(lines) + " &\n" + JOB_END.format(run=shlex.quote(plan.run_dir), python=shlex.quote(plan.python))


def _component(number: int) -> str:
    return f"--het-group={number}"


def _step_over_all(first: str, plan: Plan, others: Sequence[SlurmConfig]) -> str:
    """One srun over all components: `first` is its beginning, for component 0.

    The node agent itself instead of submitit's loader, which looks for a file with the job's number: components have
    numbers of their own.
    """
    agent = shlex.join(agent_command(plan))
    parts = [f"{first} {agent}"]
    for number, each in enumerate(others, 1):
        parts.append(f"{shlex.join([_component(number), *srun_args(plan, each)])} {agent}")
    return " : ".join(parts)


def _component_lines(plan: Plan, config: SlurmConfig) -> list[str]:
    """A further component of a heterogeneous job; the batch script and its output belong to the first one."""
    from submitit.slurm import slurm

    text = slurm._make_sbatch_string(command="", folder=plan.run.submit_folder, **settings(plan, config))
    options = [line for line in _without_null(text) if line.startswith("#SBATCH ")]
    return ["#SBATCH hetjob", *(line for line in options if not re.match(r"#SBATCH --(output|open-mode)\b", line))]


def _without_null(script: str) -> list[str]:
    """The lines, without options that are null."""
    # Not splitlines: a name may hold what Unicode, but not the shell, takes for the end of a line.
    return [line for line in script.rstrip("\n").split("\n") if not re.fullmatch(r"#SBATCH --[a-z-]+=None", line)]


def _beyond_submitit(plan: Plan, config: SlurmConfig) -> dict[str, str | bool | None]:
    """Further options; and null for the two that submitit always writes: its wckey, and a time limit of 5 minutes."""
    unset: dict[str, str | bool | None] = {"wckey": None}
    if config.time_min is None:
        unset["time"] = None
    rules: dict[str, str | bool | None] = {"requeue" if plan.requeue else "no-requeue": True}
    if plan.continues:
        rules["no-kill"] = True
    return unset | rules | config.sbatch


def _memory(mem_gb: float | None) -> str | None:
    return None if mem_gb is None else f"{int(mem_gb * 1024)}M"
