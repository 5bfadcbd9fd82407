"""The run directory of a point, made where the point starts: from the sweep's files, without Hydra."""

import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, replace

import yaml

from hpcjet.atomic import atomic_write
from hpcjet.cluster.site import RAY_TOKEN
from hpcjet.cluster.state import Phase, RunState
from hpcjet.config.plain import from_dict
from hpcjet.plan import Plan, make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.submission import Submission
from hpcjet.sweep.folder import About, Array, SweepDir
from hpcjet.sweep.points import Point


def prepare(sweep: SweepDir, about: About, array: Array, point: Point, submission: Submission, *, fresh: bool) -> Plan:
    """Write what the node agents of a point need; `fresh` unless Slurm queued this very job again.

    What an earlier try recorded in the run directory stays, and the run goes on from there.
    """
    run = sweep.run(point.index)
    run.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    data = sweep.config(about, point)
    plan = make_plan(from_dict(data), run_dir=run, python=about.python)
    if array.pack > 1:
        # One point must not queue the allocation again while others are at work in it: the element does.
        plan = replace(plan, requeue=False)
    if point.tasks >= 0 and not run.tasks.exists():
        _share(sweep, point, run)
    if not run.secret(RAY_TOKEN).exists():
        run.write_secret(RAY_TOKEN, secrets.token_urlsafe(32))
    atomic_write(run.config, yaml.safe_dump(data, sort_keys=False))
    atomic_write(run.plan, plan.to_json())
    atomic_write(run.submission, json.dumps(asdict(submission)))
    if fresh:
        state = {
            **asdict(RunState(Phase.submitted)),
            "phase": Phase.submitted.value,
            "updated": array.submitted or time.time(),
        }
        atomic_write(run.state, json.dumps(state))
    return plan


def element_of(env: Mapping[str, str]) -> int:
    """The number of this array element; 0 where the job is no array."""
    return int(env.get("SLURM_ARRAY_TASK_ID") or 0)


def _share(sweep: SweepDir, point: Point, run: RunDir) -> None:
    """The list of tasks, which no one changes: a second name where the file system has them, else a copy."""
    try:
        os.link(sweep.tasks(point.tasks), run.tasks)
    except OSError:
        atomic_write(run.tasks, sweep.tasks(point.tasks).read_bytes())
