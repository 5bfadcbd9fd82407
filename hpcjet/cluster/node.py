"""The node agent: what Slurm, or submitit on this machine, starts once on every node.

It finds out whether it is the head or a worker, starts Ray and the workload, and ends them. Stand-alone templates start
it as `srun python -m hpcjet.cluster.node RUN/plan.json`.
"""

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

from hpcjet.cluster.child import adopt_orphans, end_orphans
from hpcjet.cluster.head import run_head
from hpcjet.cluster.place import GIB, Place, available_memory, local_place, slurm_place
from hpcjet.cluster.signals import Interrupted, signals_raise
from hpcjet.cluster.site import prepared_site
from hpcjet.cluster.state import Phase, RunState, read_state, write_state
from hpcjet.cluster.worker import run_worker
from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, BootstrapError, HpcjetError
from hpcjet.plan import Plan, read_plan
from hpcjet.rundir import atomic_write, path_name
from hpcjet.runlock import RunLock
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.submission import Submission

_log = logging.getLogger(__name__)


class NodeAgent:
    """The callable that submitit pickles: it knows nothing but where the plan is."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan

    def __call__(self) -> int:
        # SystemExit, not a return value: the job must end with the run's exit code.
        sys.exit(run_agent(self.plan))


def run_agent(plan_file: Path) -> int:
    """Run this node's part of a plan; returns the exit code of the run."""
    started = time.time()
    plan = read_plan(plan_file.read_text())
    hosts = _hosts(plan)
    place = _place(plan, hosts)
    _log_to(plan.run.node_log(place.allocation, restart=place.restart, node=path_name(place.host)))
    _log.info("node %d of %d: %s, %d CPUs, %d GPUs", place.rank, place.num_nodes, place.host, place.cpus, place.gpus)
    adopt_orphans()
    code, reason = _run(plan, place, hosts, started)
    end_orphans()
    if place.is_head:
        _free_the_run(plan)
        _write_state(plan, place, _final_phase(code), started, code, reason or _drivers_reason(plan, code))
    _log.info("ends with %d%s", code, f": {reason}" if reason else "")
    return code


def _run(plan: Plan, place: Place, hosts: list[str], started: float) -> tuple[int, str]:
    """(exit code, why it failed)"""
    try:
        _check_nodes(plan, place)
        with signals_raise(signal.SIGTERM, signal.SIGUSR2), prepared_site(plan, place) as site:
            if not place.is_head:
                return run_worker(site), ""
            _write_submission(plan)
            _write_state(plan, place, Phase.running, started)
            return run_head(site, hosts), ""
    except Interrupted as interrupted:
        return EXIT_INTERRUPTED, f"it got {interrupted.name} ({_meaning(interrupted.name)})"
    except HpcjetError as error:
        _log.error("%s", error)
        return error.exit_code, str(error)
    except Exception as error:
        # The last resort: the reason must reach state.json, or the user sees only that the job failed.
        _log.exception("the node agent failed")
        return EXIT_CLUSTER, f"{type(error).__name__}: {error}"


def _check_nodes(plan: Plan, place: Place) -> None:
    if place.num_nodes < plan.min_nodes:
        raise BootstrapError(
            f"the allocation has {place.num_nodes} nodes and the run needs {plan.min_nodes}: "
            f"submit it with --nodes={plan.num_nodes}, or launch with cluster.min_nodes={place.num_nodes}"
        )


def _write_submission(plan: Plan) -> None:
    """For a run that a template started: nobody else knows its job."""
    if plan.cluster != "local":
        atomic_write(plan.run.submission, json.dumps(asdict(Submission("slurm", os.environ["SLURM_JOB_ID"]))))


def _meaning(name: str) -> str:
    return {"SIGTERM": "cancelled or preempted", "SIGUSR2": "the time limit is near"}[name]


def _free_the_run(plan: Plan) -> None:
    """Let go for a driver that was killed: only on its own node is it known at once that it is gone."""
    with contextlib.suppress(HpcjetError), RunLock(plan.run.path):
        pass


def _final_phase(code: int) -> Phase:
    return {EXIT_OK: Phase.done, EXIT_INTERRUPTED: Phase.interrupted}.get(code, Phase.failed)


def _write_state(
    plan: Plan, place: Place, phase: Phase, started: float, code: int | None = None, reason: str = ""
) -> None:
    state = RunState(phase, allocation=place.allocation, exit_code=code, reason=reason, started=started)
    write_state(plan.run.state, state)


def _drivers_reason(plan: Plan, code: int) -> str:
    """What the driver noted before it failed."""
    state = read_state(plan.run.state)
    return state.reason if state and code else ""


def _hosts(plan: Plan) -> list[str]:
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST")
    return expand(nodes) if nodes and plan.cluster != "local" else [socket.gethostname()]


def _place(plan: Plan, hosts: list[str]) -> Place:
    host, memory = socket.gethostname(), int(available_memory() * 0.9)
    if plan.cluster != "local":
        return slurm_place(os.environ, host=host, first_host=hosts[0], memory_bytes=memory)
    group = plan.groups[0]
    return local_place(
        host=host,
        cpus=group.cpus or len(os.sched_getaffinity(0)),
        gpus=group.gpus or 0,
        memory_bytes=int(group.memory_gb * GIB) if group.memory_gb else memory,
    )


def _log_to(file: Path) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    logging.basicConfig(
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        level=logging.INFO,
        handlers=[logging.FileHandler(file), logging.StreamHandler()],
        force=True,
    )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m hpcjet.cluster.node RUN/plan.json (one per node, started by srun)")
    sys.exit(run_agent(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
