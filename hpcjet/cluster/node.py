"""The node agent: what Slurm, or submitit on this machine, starts once on every node.

It finds out whether it is the head or a worker, starts Ray and the workload, and ends them. Stand-alone templates start
it as `srun python -m hpcjet.cluster.node RUN/plan.json`; on the nodes of a worker allocation it is started with
`--worker GROUP`, and is no head whatever its rank.
"""

import argparse
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet.atomic import atomic_write
from hpcjet.cluster.cgroup import kernel_limits
from hpcjet.cluster.child import adopt_orphans, end_orphans
from hpcjet.cluster.ending import End, final_state, queue_again, stop_at, until_stop_s
from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.guest import Guest
from hpcjet.cluster.head import Head
from hpcjet.cluster.members import member_name
from hpcjet.cluster.place import GIB, Place, available_memory, local_place, slurm_place
from hpcjet.cluster.rendezvous import exit_file
from hpcjet.cluster.signals import Interrupted, signals_ignored, signals_raise
from hpcjet.cluster.site import Site, prepared_site
from hpcjet.cluster.state import REQUEUED, Phase, RunState, read_state, write_state
from hpcjet.cluster.worker import Worker
from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, BootstrapError, HpcjetError
from hpcjet.plan import NodeGroup, Plan, read_plan
from hpcjet.rundir import path_name
from hpcjet.runlock import RunLock
from hpcjet.slurm.allocations import cancel_allocations
from hpcjet.slurm.het import step_hosts
from hpcjet.slurm.requeue import element_id
from hpcjet.slurm.submission import Submission

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission

WORKERS_PATIENCE_S = 60.0
_log = logging.getLogger(__name__)


class NodeAgent:
    """The callable that submitit pickles: it knows where the plan is, and the group in a worker allocation."""

    def __init__(self, plan: Path, group: str | None = None) -> None:
        self.plan, self.group = plan, group

    def __call__(self) -> int:
        # SystemExit, not a return value: the job must end with the run's exit code.
        sys.exit(run_agent(self.plan, self.group))

    def checkpoint(self) -> "DelayedSubmission":
        """submitit's hook, for a warning that comes before `run_agent` listens: nothing is begun, so begin again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def run_agent(plan_file: Path, group: str | None = None) -> int:
    """Run this node's part of a plan; returns the exit code of the run, or of this node in a worker allocation."""
    started = time.time()
    plan = read_plan(plan_file.read_text())
    try:
        hosts = _hosts(plan)
        place = _place(plan, hosts, plan.groups[0] if group is None else plan.group(group))
    except HpcjetError as error:
        return _out_of_place(plan, error, is_worker=group is not None)
    _log_to(plan.run.node_log(place.allocation, restart=place.restart, node=path_name(place.host)))
    _log.info("node %d of %d: %s, %d CPUs, %d GPUs", place.rank, place.num_nodes, place.host, place.cpus, place.gpus)
    for warning in place.warnings:
        _log.warning("%s", warning)
    adopt_orphans()
    _raise_file_limit()
    if group is not None:
        return _guest(plan, place, plan.group(group), started)
    if place.is_head:
        over = _over_before(plan, place)
        return _head(plan, place, hosts, started) if over is None else over
    return _worker(plan, place, started)


def _head(plan: Plan, place: Place, hosts: list[str], started: float) -> int:
    exit_file(plan.run, os.environ).unlink(missing_ok=True)
    events = Events(plan.run.events, allocation=place.allocation, restart=place.restart)
    _note_start(plan, place, events, started)
    member = {"member": member_name(place.name, 0), "group": plan.group_of(0).name, "job": place.allocation}
    events.note(Event.agent_up, at=started, host=hosts[0], rank=0, **member)

    stop = stop_at(plan, place, started=started)

    def work(site: Site) -> int:
        check_nodes(plan, place)
        _write_submission(plan)
        write_state(plan.run.state, RunState(Phase.running, allocation=place.allocation, started=started))
        return Head(site, hosts, events, stop_at=stop).run()

    end = _run(plan, place, work, delay_s=lambda number: until_stop_s(plan, number, stop))
    with signals_ignored(signal.SIGTERM, signal.SIGUSR2):
        state = final_state(plan, place, end, events, started=started)
        _log.info("ends with %d%s", end.code, f": {state.reason}" if state.reason else "")
        _last_words(plan, state, events)
        if state.then == REQUEUED:
            queue_again(plan, state, events)
        elif not state.then:
            end_worker_allocations(plan)
    return end.code


def end_worker_allocations(plan: Plan) -> None:
    """Those that still wait in the queue: nobody would let them join any more. Those that run end by themselves."""
    if not plan.worker_groups:
        return
    try:
        cancelled = cancel_allocations(plan.run, queued_only=True)
    except (HpcjetError, OSError) as error:
        _log.warning("worker allocations may still be in the queue: %s", error)
    else:
        _log.info("cancelled %d worker allocations that were in the queue", len(cancelled))


def _over_before(plan: Plan, place: Place) -> int | None:
    """The exit code if this job ended the run before Slurm started it again, as it does when a batch script is lost."""
    state = read_state(plan.run.state)
    if not (state and place.restart and state.phase in (Phase.done, Phase.failed)):
        return None
    if state.allocation != place.allocation or state.exit_code is None:
        return None
    _log.warning("this job ended the run before, with %d; hpcjet resume %s does it again", state.exit_code, plan.run)
    atomic_write(exit_file(plan.run, os.environ), str(state.exit_code))
    return state.exit_code


def _last_words(plan: Plan, state: RunState, events: Events) -> None:
    """What others wait for. With a full disk the job still ends, and Slurm's own word has to do."""
    events.note(Event.released, exit_code=state.exit_code or 0)
    words: list[Callable[[], object]] = [
        lambda: _free_the_run(plan),
        lambda: write_state(plan.run.state, state),
        lambda: atomic_write(exit_file(plan.run, os.environ), str(state.exit_code)),
    ]
    for say in words:
        try:
            say()
        except OSError as error:
            _log.error("the run directory cannot be written: %s", error)


def _raise_file_limit() -> None:
    """As many open files as are allowed: Ray wants 65,535 of them, the head's lifeline one per node."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _out_of_place(plan: Plan, error: HpcjetError, *, is_worker: bool) -> int:
    """The variables of this step are not what a node agent can work with; the first task says it for all."""
    print(f"hpcjet: {error}", file=sys.stderr, flush=True)
    if not is_worker and os.environ.get("SLURM_PROCID", "0") == "0":
        write_state(plan.run.state, RunState(Phase.failed, exit_code=error.exit_code, reason=str(error)))
        atomic_write(exit_file(plan.run, os.environ), str(error.exit_code))
    return error.exit_code


def _worker(plan: Plan, place: Place, started: float) -> int:
    longest_s = plan.stop_timeout_s(time_limit=True) + (plan.signal_delay_s or 0) + WORKERS_PATIENCE_S
    workers: list[Worker] = []

    def work(site: Site) -> int:
        check_nodes(plan, place)
        workers.append(Worker(site, started=started))
        return workers[0].run()

    def patience_s(number: int) -> float:
        # Slurm tells every node at once, and the driver still has its time: the head says when it is over. One that
        # was told to stop before it was found may never say anything.
        return longest_s if number == signal.SIGUSR2 or (workers and workers[0].has_found_head) else 0.0

    end = _run(plan, place, work, delay_s=patience_s)
    _log.info("ends with %d%s", end.code, f": {end.reason}" if end.reason else "")
    return end.code


def _guest(plan: Plan, place: Place, group: NodeGroup, started: float) -> int:
    guests: list[Guest] = []

    def work(site: Site) -> int:
        guests.append(Guest(site, group, started=started))
        return guests[0].run()

    end = _run(plan, place, work, delay_s=lambda number: guests[0].patience_s(number) if guests else 0.0)
    _log.info("ends with %d%s", end.code, f": {end.reason}" if end.reason else "")
    return EXIT_OK if end.signal == "SIGUSR2" else end.code


def _run(plan: Plan, place: Place, work: Callable[[Site], int], *, delay_s: Callable[[int], float]) -> End:
    """Do this node's part, with every kind of end turned into a code and a reason; nothing that it started is left."""
    try:
        with signals_raise(signal.SIGTERM, signal.SIGUSR2, delay_s=delay_s), prepared_site(plan, place) as site:
            return End(work(site))
    except Interrupted as interrupted:
        return End(EXIT_INTERRUPTED, f"it got {interrupted.name}", signal=interrupted.name, asked=interrupted.at)
    except HpcjetError as error:
        _log.error("%s", error)
        return End(error.exit_code, str(error))
    except Exception as error:
        # The last resort: the reason must reach state.json, or the user sees only that the job failed.
        _log.exception("the node agent failed")
        return End(EXIT_CLUSTER, f"{type(error).__name__}: {error}")
    finally:
        end_orphans()


def check_nodes(plan: Plan, place: Place) -> None:
    if place.num_nodes < plan.min_nodes:
        raise BootstrapError(
            f"the allocation has {place.num_nodes} nodes and the run needs {plan.min_nodes}: "
            f"submit it with --nodes={plan.num_nodes}, or launch with cluster.min_nodes={place.num_nodes}"
        )


def _write_submission(plan: Plan) -> None:
    """For a run that a template started: nobody else knows its job."""
    job = element_id(os.environ) if plan.cluster != "local" else ""
    with suppress(OSError, ValueError, KeyError, TypeError):
        if not job or json.loads(plan.run.submission.read_text())["job_id"] == job:
            return
    atomic_write(plan.run.submission, json.dumps(asdict(Submission("slurm", job))))


def _free_the_run(plan: Plan) -> None:
    """Let go for a driver that was killed: only on its own node is it known at once that it is gone."""
    with suppress(HpcjetError), RunLock(plan.run.path):
        pass


def _note_start(plan: Plan, place: Place, events: Events, started: float) -> None:
    """When the job was submitted and when Slurm gave the nodes; noted here, since one machine alone writes the file."""
    before = read_state(plan.run.state)
    if before and before.phase is Phase.submitted and not place.restart:
        events.note(Event.submitted, at=before.updated)
    events.note(Event.allocated, at=_job_start(os.environ) or started)


def _job_start(env: Mapping[str, str]) -> float | None:
    """When Slurm gave the nodes, where it says so."""
    text = env.get("SLURM_JOB_START_TIME", "")
    return float(text) if text.isdigit() else None


def _hosts(plan: Plan) -> list[str]:
    there = step_hosts(os.environ) if plan.cluster != "local" else []
    return there or [socket.gethostname()]


def _place(plan: Plan, hosts: list[str], group: NodeGroup) -> Place:
    host, memory = socket.gethostname(), int(available_memory() * 0.9)
    if plan.cluster != "local":
        limits = kernel_limits()
        return slurm_place(os.environ, host=host, first_host=hosts[0], memory_bytes=memory, limits=limits)
    return local_place(
        host=host,
        cpus=group.cpus or kernel_limits().cpus or 1,
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
    parser = argparse.ArgumentParser(
        prog="python -m hpcjet.cluster.node", description="One per node, started by srun.", allow_abbrev=False
    )
    parser.add_argument("plan", type=Path, metavar="RUN/plan.json")
    parser.add_argument("--worker", metavar="GROUP", help="on a node of a worker allocation of this group")
    given = parser.parse_args()
    sys.exit(run_agent(given.plan, given.worker))


if __name__ == "__main__":
    main()
