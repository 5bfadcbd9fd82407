"""The driver: runs the workload on the head. Started by the node agent, which says on standard input where Ray is."""

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.inbox import Inbox
from hpcjet.cluster.outbox import Outbox
from hpcjet.cluster.signals import Interrupted, signals_raise
from hpcjet.cluster.state import annotate_state
from hpcjet.errors import EXIT_INTERRUPTED, EXIT_WORKLOAD, BootstrapError, HpcjetError
from hpcjet.plan import Plan, read_plan
from hpcjet.runlock import Owner, RunLock
from hpcjet.workload import Cluster, Workload

_log = logging.getLogger(__name__)

WORKLOADS = {
    "swe": "hpcjet.swe.workload:SweWorkload",
    "noop": "hpcjet.noop:NoopWorkload",
    "doctor": "hpcjet.doctor.workload:DoctorWorkload",
    "serve": "hpcjet.serve.workload:ServeWorkload",
    **dict.fromkeys(("formation", "gymnasium", "pettingzoo"), "hpcjet.swarm.workload:SwarmWorkload"),
    **dict.fromkeys(("ray", "mpi", "torchrun"), "hpcjet.command.workload:CommandWorkload"),
}
"""Experiment -> the class of its workload, imported when it is run."""


def main() -> None:
    """`python -m hpcjet.drive RUN/plan.json`"""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    plan = read_plan(Path(sys.argv[1]).read_text())
    sys.exit(_drive(plan))


def _drive(plan: Plan) -> int:
    allocation, restart = os.environ["HPCJET_ALLOCATION"], int(os.environ["HPCJET_RESTART"])
    events = Events(plan.run.events, allocation=allocation, restart=restart)
    try:
        with signals_raise(signal.SIGTERM), RunLock(plan.run.path, is_dead=_was_this_job):
            workload = _workload(plan)
            workload.prepare()
            code = _run(plan, workload, events)
            events.note(Event.workload_end, exit_code=code)
            return code
    except Interrupted as interrupted:
        _log.warning("ended by %s", interrupted.name)
        return EXIT_INTERRUPTED
    except HpcjetError as error:
        _log.error("%s", error)
        annotate_state(plan.run.state, str(error))
        return error.exit_code
    except Exception as error:
        # The last resort: who watches the run must see why it failed, not only that it did.
        _log.exception("the workload failed")
        annotate_state(plan.run.state, f"the workload failed: {type(error).__name__}: {error}")
        return EXIT_WORKLOAD


def _was_this_job(owner: Owner) -> bool:
    """Whether it was the driver of this very job before Slurm requeued it: then it cannot live any more."""
    return bool(owner.job_id) and owner.job_id == os.environ.get("SLURM_JOB_ID")


def _workload(plan: Plan) -> Workload:
    module, _, name = WORKLOADS[plan.exp].partition(":")
    workload: Workload = getattr(importlib.import_module(module), name)(plan, plan.typed_config())
    return workload


def _run(plan: Plan, workload: Workload, events: Events) -> int:
    inbox, outbox = Inbox(), Outbox.from_env(os.environ)
    ray = _imported_ray() if workload.connects else None
    where = inbox.await_where()
    cluster = Cluster(
        ray=ray,
        address=where["address"],
        gcs_port=where["gcs_port"],
        ports=where["ports"],
        hosts=tuple(where["hosts"]),
        inbox=inbox,
        outbox=outbox,
        head=f"{os.environ['HPCJET_ALLOCATION']}-{os.environ['HPCJET_RESTART']}",
    )
    if ray:
        inbox.await_up()  # ray.init looks for it once a second only
    with workload, _connected(ray, where):
        # Ray knows a node a moment before `ray start` there says so, and the node agent after it.
        inbox.await_ready(lambda: ray is not None and len(cluster.own_members()) >= plan.min_nodes)
        events.note(Event.workload_start)
        return workload.run(cluster)


def _imported_ray() -> Any:
    import ray  # while the head starts: it takes most of a second

    return ray


@contextlib.contextmanager
def _connected(ray: Any, where: dict[str, Any]) -> Iterator[None]:
    if ray is None:
        yield
        return
    address = f"{where['address']}:{where['gcs_port']}"
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise BootstrapError(f"the driver cannot connect to Ray at {address}: {error.__cause__ or error}") from error
    # ray.init has set its own, which ends the process as sys.exit does: no workload would know why.
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
