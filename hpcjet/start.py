"""Bring a run on its way: write its directory, submit its node agent."""

import json
import logging
import os
import secrets
import shlex
import sys
import time
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from hpcjet import provenance
from hpcjet.atomic import atomic_write
from hpcjet.cluster.node import NodeAgent
from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.cluster.state import Phase, RunState, read_state, write_state
from hpcjet.config.cluster import LocalConfig, SlurmConfig
from hpcjet.config.command import CommandConfig
from hpcjet.config.engine import ServedConfig
from hpcjet.config.exp import SweConfig
from hpcjet.config.plain import to_dict
from hpcjet.config.root import LaunchConfig, SnapshotKind, kind_of
from hpcjet.config.serve import ServeConfig
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.errors import BusyError, ConfigError, SubmitError
from hpcjet.plan import Plan, make_plan, read_plan
from hpcjet.preflight import become_lab_user, check_slurm, find_lab
from hpcjet.rundir import RunDir, new_run_dir, new_short_id
from hpcjet.runlock import Owner, RunLock
from hpcjet.slurm.allocations import Allocation, allocations, cancel_allocations, living, submit_initial
from hpcjet.slurm.query import Stage, job_state
from hpcjet.slurm.submission import Submission, cancel, submission_state
from hpcjet.slurm.submit import interpreter, submit
from hpcjet.snapshot import Snapshot, take

if TYPE_CHECKING:
    from hpcjet.tasks.task import Task

LATE_SUBMISSION_S = 10.0
"""For a submission that is under way while its run is cancelled."""
_log = logging.getLogger(__name__)


def prepared_run(config: LaunchConfig) -> RunDir:
    """The run directory of the Slurm job that this process is in; its name ends with the job's number.

    The first start of a job makes it; after a requeue it is the one from before. Raises HpcjetError.
    """
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        raise ConfigError("--prepare is for a batch script, and this is no Slurm job: launch with submit=false instead")
    root = config.run.root.expanduser().absolute()
    if int(os.environ.get("SLURM_RESTART_COUNT") or 0):
        folders = sorted((root / kind_of("exp", config.exp)).glob(f"*-{job}/plan.json"))
        if folders:
            return RunDir(folders[-1].parent)
    return new_run(replace(config, submit=False), short_id=job)[0]


def new_run(config: LaunchConfig, *, short_id: str | None = None) -> tuple[RunDir, Submission | None]:
    """Check, make the run directory, submit; with submit=false there is no submission.

    Nothing is left behind if a check fails. Raises HpcjetError.
    """
    find_lab(config)
    become_lab_user(config)
    if config.submit:
        check_slurm(config)
    config, tasks = resolved(config)
    root = config.run.root.expanduser().absolute()
    config, code = frozen(config, root)
    run = new_run_dir(root, kind_of("exp", config.exp), now=datetime.now(), short_id=short_id or new_short_id())
    keep_provenance(run)
    if code:
        code.add_user(run)
    if tasks is not None:
        from hpcjet.tasks.jsonl import dump_tasks

        dump_tasks(run.tasks, tasks)
    if config.submit:
        return run, _submit(config, run)
    with RunLock(run.path):
        _write(config, run)
    return run, None


def frozen(config: LaunchConfig, root: Path) -> tuple[LaunchConfig, Snapshot | None]:
    """With snapshot=git or copy: the code copied to below `root`, and a config that runs from the copy."""
    if config.snapshot is SnapshotKind.none:
        return config, None
    workdir = config.exp.workdir if isinstance(config.exp, CommandConfig) else None
    code = take(config.snapshot, workdir or Path.cwd(), root)
    if isinstance(config.exp, CommandConfig) and workdir:
        config = replace(config, exp=replace(config.exp, workdir=code.inside(workdir)))
    path = ":".join(code.python_path(sys.path))
    if not path:
        return config, code
    cluster = config.cluster
    if isinstance(cluster, SlurmConfig):
        # In the script, so that the node agent itself is imported from there.
        line = f"export PYTHONPATH={shlex.quote(path)}${{PYTHONPATH:+:$PYTHONPATH}}"
        return replace(config, cluster=replace(cluster, setup=[line, *cluster.setup])), code
    before = cluster.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")
    env = {**cluster.env, "PYTHONPATH": f"{path}:{before}" if before else path}
    return replace(config, cluster=replace(cluster, env=env)), code


def keep_provenance(run: RunDir) -> None:
    """Note with a run where it came from."""
    here = Path.cwd()
    provenance.keep(run, provenance.facts(sys.argv, here), here)


def resume(run: RunDir) -> Submission:
    """Submit a run again; what is recorded is not done again. Raises BusyError while another launch works on it.

    Worker allocations that still live wait for the new head, and are counted among those that are submitted.
    """
    config = stored_config(run)
    find_lab(config)
    become_lab_user(config)
    check_slurm(config)
    _refuse_if_submitted(run)
    return _submit(config, run)


def _refuse_if_submitted(run: RunDir) -> None:
    """Raise BusyError if the job of an earlier launch is queued or runs; the lock only knows of one that runs."""
    submission, state = read_submission(run), read_state(run.state)
    if submission is None:
        return
    stage = submission_state(submission).stage
    # After the run's last word Slurm may need a while to clean up; a job that it requeued is pending.
    if stage is Stage.pending or (stage is Stage.running and not (state and state.final)):
        job = f"Slurm job {submission.job_id}" if submission.cluster == "slurm" else f"process {submission.pid}"
        raise BusyError(
            f"run directory {run} is in use by another launch, {job}; follow it with hpcjet status {run} --follow, "
            f"or end it with hpcjet cancel {run}"
        )


def _job_ended(owner: Owner) -> bool:
    """Whether a holder on another node is gone for certain: Slurm says that its job is over."""
    return bool(owner.job_id) and job_state(owner.job_id).stage is Stage.ended


def resolved(config: LaunchConfig) -> "tuple[LaunchConfig, list[Task] | None]":
    """The config with its files found and checked, and the tasks it names, if it is about tasks."""
    if config.exp.wants_engine and isinstance(config.engine, ServedConfig):
        from hpcjet.engine import check as engine

        config = replace(config, engine=engine.resolve(config.engine, here=Path.cwd()))
        engine_lines(config)
    if isinstance(config.exp, CommandConfig):
        from hpcjet.command.check import check, resolve

        config = resolve(config, here=Path.cwd())
        check(config, interpreter=_python(config))
        return config, None
    if isinstance(config.exp, ServeConfig):
        from hpcjet.serve.check import check as check_serve

        check_serve(config)
    if isinstance(config.exp, SwarmConfig):
        from hpcjet.swarm.check import check as check_swarm

        check_swarm(config)
    if not isinstance(config.exp, SweConfig):
        return config, None
    from hpcjet.swe import check as swe

    config, tasks = swe.resolve(config)
    swe.check(config, tasks)
    return config, tasks


def stored_config(run: RunDir) -> LaunchConfig:
    """The config of a run. Raises ConfigError if the directory is no run."""
    return stored_plan(run).typed_config()


def stored_plan(run: RunDir) -> Plan:
    """The plan of a run. Raises ConfigError if the directory is no run."""
    try:
        return read_plan(run.plan.read_text())
    except OSError as error:
        raise ConfigError(f"{run} is no run directory: {run.plan.name}: {error.strerror}; see hpcjet runs") from None


def read_submission(run: RunDir) -> Submission | None:
    """What was submitted last for a run."""
    try:
        return Submission(**json.loads(run.submission.read_text()))
    except FileNotFoundError:
        return None


def _submit(config: LaunchConfig, run: RunDir) -> Submission:
    # Held while the files are written; on the nodes the driver takes it again for as long as it works.
    with RunLock(run.path, is_dead=_job_ended):
        plan = _write(config, run)
        write_state(run.state, RunState(Phase.submitted))
        try:
            submission = submit(plan, config, NodeAgent(run.plan))
        except (SubmitError, ConfigError) as error:
            write_state(run.state, RunState(Phase.failed, exit_code=error.exit_code, reason=str(error)))
            raise
        atomic_write(run.submission, json.dumps(asdict(submission)))
    for fault in submit_initial(plan, config):
        _log.warning("%s; the run tries again once it has begun", fault)
    return submission


def cancel_run(run: RunDir, submission: Submission) -> list[Allocation]:
    """End a run: the job with its head, then all worker allocations; returns those. Raises SubmitError.

    The head first: it would ask for others in their place. One that is being submitted just then is awaited.
    """
    fault = None
    try:
        cancel(submission)
    except SubmitError as error:
        fault = error
    ended = cancel_allocations(run)
    deadline = time.monotonic() + LATE_SUBMISSION_S
    while any(not each.job_id and not each.ended for each in allocations(run)) and time.monotonic() < deadline:
        time.sleep(0.5)
    if late := [each for each, _ in living(run) if each.job_id and each.name not in {one.name for one in ended}]:
        ended += [each for each in cancel_allocations(run) if each in late]
    if fault and not ended:
        raise fault
    return ended


def _write(config: LaunchConfig, run: RunDir) -> Plan:
    """The files that the node agents need."""
    plan = make_plan(config, run_dir=run, python=_python(config))
    run.write_secret(RAY_TOKEN, secrets.token_urlsafe(32))
    atomic_write(run.config, yaml.safe_dump(to_dict(config), sort_keys=False))
    atomic_write(run.plan, plan.to_json())
    return plan


def _python(config: LaunchConfig) -> str:
    return getattr(config.cluster, "python", None) or interpreter()


def engine_lines(config: LaunchConfig) -> list[str]:
    """What the nodes make of an engine that the run starts itself; none without one.

    Raises ConfigError for what could not run there.
    """
    if not (config.exp.wants_engine and isinstance(config.engine, ServedConfig)):
        return []
    from hpcjet.engine.check import check

    plan = plan_only(config)
    served, workers = (
        [group for group in groups if group.name in plan.sidecar_groups]
        for groups in (plan.head_groups, plan.worker_groups)
    )
    return check(config.engine, served, local=isinstance(config.cluster, LocalConfig), workers=workers)


def plan_only(config: LaunchConfig) -> Plan:
    """The plan of a dry run: nothing is made, and the run's id is a stand-in."""
    root = config.run.root.expanduser().absolute()
    run = RunDir(root / kind_of("exp", config.exp) / "TIME-ID")
    return make_plan(config, run_dir=run, python=_python(config))
