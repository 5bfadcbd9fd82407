"""What a batch script of one's own runs on the first node: the one srun of a run, and the run's exit code.

`python -m hpcjet.cluster.batch RUN`, inside an allocation; hpcjet's own script does the same in its last lines.
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
from hpcjet.errors import EXIT_CLUSTER, EXIT_REQUEST, ConfigError
from hpcjet.plan import Plan, agent_command, read_plan
from hpcjet.slurm.het import component_env, component_hosts
from hpcjet.slurm.requeue import element_id
from hpcjet.slurm.script import LEAVE_ALONE

END_S, LOST_NODE_S = 5.0, 2.0
"""srun's time to end after the head's; it would wait for a node that is lost until Slurm gives the node up."""


def srun_command(plan: Plan, env: Mapping[str, str]) -> list[str]:
    """The srun of this allocation, over all components of a heterogeneous one."""
    components = component_hosts(env)
    if not components:
        return ["srun", *_options(plan, env), *agent_command(plan)]
    words = ["srun"]
    for number in range(len(components)):
        words += [":"] if number else []
        words += [f"--het-group={number}", *_options(plan, component_env(env, number)), *agent_command(plan)]
    return words


def _options(plan: Plan, env: Mapping[str, str]) -> list[str]:
    """cpus-per-task is repeated: since Slurm 22.05 a step does not inherit it."""
    nodes = env["SLURM_JOB_NUM_NODES"]
    words = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", *LEAVE_ALONE]
    if cpus := env.get("SLURM_CPUS_PER_TASK"):
        words.append(f"--cpus-per-task={cpus}")
    return [*words, "--no-kill"] if plan.continues else words


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


def main() -> None:
    if len(sys.argv) != 2 or "SLURM_JOB_NUM_NODES" not in os.environ:
        print("usage, in a Slurm job: python -m hpcjet.cluster.batch RUN", file=sys.stderr)
        sys.exit(EXIT_REQUEST)
    try:
        plan = read_plan((Path(sys.argv[1]) / "plan.json").read_text())
    except OSError as error:
        print(f"hpcjet: {sys.argv[1]} is no run directory: {error}; make one with submit=false", file=sys.stderr)
        sys.exit(EXIT_REQUEST)
    except ConfigError as error:
        print(f"hpcjet: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(run_agents(plan))


if __name__ == "__main__":
    main()
