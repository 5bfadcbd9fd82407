"""After node agents that were killed, from the batch script: the run's last word if the head left none, tidy nodes.

`python -m hpcjet.cluster.aftermath RUN`; and without RUN, on a node whose agent was killed.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcjet.cluster.child import tail
from hpcjet.cluster.leftovers import sweep
from hpcjet.cluster.rendezvous import exit_file, lost_file
from hpcjet.cluster.state import Phase, RunState, read_state, write_state
from hpcjet.cluster.temp import bases
from hpcjet.errors import EXIT_CLUSTER
from hpcjet.plan import Plan, read_plan
from hpcjet.rundir import path_name
from hpcjet.slurm.het import component_hosts
from hpcjet.slurm.requeue import element_id

SWEEP_S = 5.0
"""For the lost nodes to be swept. Those without power never answer, and the job must end before Slurm misses them too,
else it calls a run that ended well NODE_FAIL. What is left on a busy node the next agent there removes."""


def aftermath(plan: Plan) -> None:
    """Say why the head's agent left no word, and remove the temp folders of agents that were killed."""
    if not exit_file(plan.run, os.environ).exists():
        before = read_state(plan.run.state)
        if not before or before.phase not in (Phase.done, Phase.failed):
            write_state(plan.run.state, _last_word(plan, before))
        sweep_here()
    if lost := lost_hosts(plan):
        _sweep_on(plan, lost)


def sweep_here() -> None:
    for base in bases(os.environ):
        sweep(Path(base))


def lost_hosts(plan: Plan) -> list[str]:
    """The nodes that the head lost."""
    file = lost_file(plan.run, os.environ)
    return file.read_text().split() if file.exists() else []


def _last_word(plan: Plan, before: RunState | None) -> RunState:
    """What the head's agent would have written."""
    host, job = os.environ.get("SLURMD_NODENAME") or socket.gethostname(), element_id(os.environ)
    log = plan.run.node_log(job, restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0), node=path_name(host))
    if before and before.phase is Phase.running:
        reason = f"the node agent of the head, {host}, was killed; {log} ends with:\n{tail(log)}"
    else:
        reason = f"the node agent of the head, {host}, did not come up; see {plan.run.submit_folder}"
    started = before.started if before else 0.0
    return RunState(Phase.failed, allocation=job, exit_code=EXIT_CLUSTER, reason=reason, started=started)


def _sweep_on(plan: Plan, hosts: list[str]) -> None:
    deadline = time.monotonic() + SWEEP_S
    steps: list[subprocess.Popen[bytes]] = []
    try:
        steps += [subprocess.Popen(words) for words in sweep_steps(plan, hosts, os.environ)]
        for step in steps:
            step.wait(max(0.0, deadline - time.monotonic()))
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"hpcjet: temp folders may be left on {', '.join(hosts)}: {error}", file=sys.stderr)
    finally:
        for step in steps:
            step.kill()
            step.wait()


def sweep_steps(plan: Plan, hosts: Sequence[str], env: Mapping[str, str]) -> list[list[str]]:
    """A job step on these hosts; in a heterogeneous job one for each component, as a step sees only its own."""
    components = component_hosts(env)
    parts = [
        (f"--het-group={number}", [host for host in hosts if host in each]) for number, each in enumerate(components)
    ]
    steps = []
    for group, there in parts if components else [("", list(hosts))]:
        count = len(there)
        step = ["srun", "--overlap", *([group] if group else []), f"--nodes={count}", f"--ntasks={count}"]
        step += ["--ntasks-per-node=1", "--mem=0", "--no-kill", f"--nodelist={','.join(there)}"]
        steps += [[*step, plan.python, "-m", "hpcjet.cluster.aftermath"]] if there else []
    return steps


def main() -> None:
    if len(sys.argv) == 1:
        sweep_here()
    else:
        aftermath(read_plan((Path(sys.argv[1]) / "plan.json").read_text()))


if __name__ == "__main__":
    main()
