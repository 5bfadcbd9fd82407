"""What a batch script of one's own runs on the first node: the one srun of a run, and the run's exit code.

`python -m hpcjet.cluster.batch RUN`, inside an allocation; hpcjet's own script does the same in its last lines.
`... RUN GROUP` inside one that adds its nodes to a run.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpcjet.cluster.aftermath import aftermath
from hpcjet.cluster.output import Output
from hpcjet.cluster.rendezvous import exit_file, lost_file
from hpcjet.config.check import bad
from hpcjet.errors import EXIT_CLUSTER, EXIT_REQUEST, ConfigError
from hpcjet.plan import Plan, agent_command, read_plan
from hpcjet.slurm.allocations import note_allocation
from hpcjet.slurm.het import component_env, component_hosts
from hpcjet.slurm.requeue import element_id
from hpcjet.slurm.script import LEAVE_ALONE

END_S, LOST_NODE_S = 5.0, 2.0
"""srun's time to end after the head's; it would wait for a node that is lost until Slurm gives the node up."""


def srun_command(plan: Plan, env: Mapping[str, str], group: str | None = None) -> list[str]:
    """The srun of this allocation, over all components of a heterogeneous one; `group` of a worker allocation."""
    components, agent = component_hosts(env), agent_command(plan, group)
    continues = plan.continues or group is not None
    if not components:
        return ["srun", *_options(env, continues=continues), *agent]
    words = ["srun"]
    for number in range(len(components)):
        words += [":"] if number else []
        words += [f"--het-group={number}", *_options(component_env(env, number), continues=continues), *agent]
    return words


def _options(env: Mapping[str, str], *, continues: bool) -> list[str]:
    """cpus-per-task is repeated: since Slurm 22.05 a step does not inherit it."""
    nodes = env["SLURM_JOB_NUM_NODES"]
    words = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *LEAVE_ALONE]
    if cpus := env.get("SLURM_CPUS_PER_TASK"):
        words.append(f"--cpus-per-task={cpus}")
    return [*words, "--no-kill"] if continues else words


def run_agents(plan: Plan) -> int:
    """Start a node agent on every node and wait for them; returns the run's exit code."""
    ended = exit_file(plan.run, os.environ)
    ended.unlink(missing_ok=True)
    step = subprocess.Popen(srun_command(plan, os.environ))
    output = Output(plan.run, allocations=f"{element_id(os.environ)}-{os.environ.get('SLURM_RESTART_COUNT') or 0}")
    ended_at: float | None = None
    while step.poll() is None:
        time.sleep(0.1)
        _print_new(output)
        if ended_at is None and ended.exists():
            ended_at = time.monotonic()
        patience_s = LOST_NODE_S if lost_file(plan.run, os.environ).exists() else END_S
        if ended_at is not None and time.monotonic() > ended_at + patience_s:
            step.kill()
    _print_new(output)
    if not ended.exists() or lost_file(plan.run, os.environ).exists():
        aftermath(plan)
    try:
        return int(ended.read_text())
    except (OSError, ValueError):
        return EXIT_CLUSTER


def _print_new(output: Output) -> None:
    """What a program of the user's prints stands in the job's own log as well."""
    for piece in output.read():
        sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()


def add_nodes(plan: Plan, group: str) -> int:
    """Start a node agent on every node of a worker allocation and wait for them; returns srun's exit code.

    Raises ConfigError for a group that has no jobs of its own.
    """
    if group not in (names := [each.name for each in plan.worker_groups]):
        there = f"the run's groups with jobs of their own are {', '.join(names)}" if names else "the run is one job"
        raise bad("GROUP", group, there, "launch with cluster.form=jobs and name a group that is not the first")
    note_allocation(plan.run, group, int(os.environ["SLURM_JOB_NUM_NODES"]), element_id(os.environ))
    return subprocess.run(srun_command(plan, os.environ, group), check=False).returncode


def main() -> None:
    if len(sys.argv) not in (2, 3) or "SLURM_JOB_NUM_NODES" not in os.environ:
        print("usage, in a Slurm job: python -m hpcjet.cluster.batch RUN [GROUP]", file=sys.stderr)
        sys.exit(EXIT_REQUEST)
    try:
        text = (Path(sys.argv[1]) / "plan.json").read_text()
    except OSError as error:
        print(f"hpcjet: {sys.argv[1]} is no run directory: {error}; make one with submit=false", file=sys.stderr)
        sys.exit(EXIT_REQUEST)
    try:
        plan = read_plan(text)
        code = run_agents(plan) if len(sys.argv) == 2 else add_nodes(plan, sys.argv[2])
    except ConfigError as error:
        print(f"hpcjet: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(code)


if __name__ == "__main__":
    main()
