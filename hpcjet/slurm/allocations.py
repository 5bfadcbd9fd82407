"""Worker allocations: jobs of one group of nodes, whose nodes find the run's head through the run directory.

Each has a record `allocations/<group>-<n>.json` in the run directory, and the script that was submitted beside it.
"""

import contextlib
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hpcjet.atomic import atomic_write, sync_folder
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError, SubmitError
from hpcjet.plan import NodeGroup, Plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.jobid import JobId
from hpcjet.slurm.query import JobState, cancel_jobs, job_states
from hpcjet.slurm.sbatch import GIVE_UP_S, find, sbatch
from hpcjet.slurm.script import render_worker
from hpcjet.slurm.states import Stage

UNSETTLED_S = GIVE_UP_S + 300.0
"""After this long nobody is still submitting an allocation whose record names no job."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """One worker allocation, as it was submitted."""

    name: str
    """`<group>-<n>`"""
    group: str
    nodes: int
    token: str
    """What the job carries for all to see; see hpcjet.slurm.sbatch."""
    submitted: float
    """Seconds since the epoch."""
    uid: int
    job_id: str = ""
    """Empty while it is being submitted, or if whoever did it was killed."""
    slurm_cluster: str | None = None
    ended: str = ""
    """Slurm's word for how it ended, once that is certain: nobody needs to ask again."""

    @property
    def key(self) -> str:
        """The job for hpcjet's queries; empty without one."""
        return JobId(self.job_id, self.slurm_cluster).key if self.job_id else ""


def submit_allocation(plan: Plan, config: LaunchConfig, group: str, nodes: int) -> Allocation:
    """Submit `nodes` more nodes of a group as one job, exactly once whatever becomes of sbatch's answer.

    Raises ConfigError if Slurm does not take such a request: then the record is gone. SubmitError for the rest, after
    which it stays: the job may be there all the same, and its token finds it.
    """
    assert isinstance(config.cluster, SlurmConfig)
    plan.group(group)
    allocation = _recorded(plan.run, group, nodes)
    script = script_file(plan.run, allocation.name)
    try:
        atomic_write(script, render_worker(plan, config.cluster, group, nodes))
        job = sbatch(script, token=allocation.token)
    except ConfigError:
        record_file(plan.run, allocation.name).unlink()
        raise
    return _keep(plan.run, replace(allocation, job_id=job.number, slurm_cluster=job.cluster))


def note_allocation(run: RunDir, group: str, nodes: int, job_id: str) -> Allocation:
    """Record a job that somebody else submitted, so that status shows it and cancel ends it; once for each job."""
    for known in allocations(run):
        if known.job_id == job_id and not known.ended:
            return known
    return _keep(run, replace(_recorded(run, group, nodes), job_id=job_id))


def allocations(run: RunDir) -> list[Allocation]:
    """All that were ever submitted for a run, oldest first."""
    found = []
    for name in _names(run):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Allocation(**json.loads(record_file(run, name).read_text())))
    return sorted(found, key=lambda each: (each.submitted, each.name))


def allocation_states(run: RunDir, listed: Iterable[Allocation] | None = None) -> dict[str, JobState]:
    """Name -> Slurm's state, by one batched question; by default of all of the run's allocations.

    One that is being submitted counts as pending.
    """
    every = allocations(run) if listed is None else list(listed)
    states = {each.name: JobState(Stage.ended, each.ended) for each in every if each.ended}
    unsettled = [each for each in every if not each.ended and not each.job_id]
    asked = [each for each in every if not each.ended and each.job_id]
    for each in unsettled:
        settled = _settled(run, each)
        states[each.name] = JobState(Stage.ended, settled.ended) if settled.ended else JobState(Stage.pending)
        asked += [settled] if settled.job_id else []
    if asked:
        answers = job_states(
            [each.key for each in asked], uid=asked[0].uid, submitted={each.key: each.submitted for each in asked}
        )
        for each in asked:
            states[each.name] = answers[each.key]
            if answers[each.key].stage is Stage.ended:
                _keep(run, replace(each, ended=answers[each.key].state or "ENDED"))
    return states


def living(run: RunDir) -> list[tuple[Allocation, JobState]]:
    """The allocations that have not ended, or of which Slurm does not say so, with their states."""
    listed = [each for each in allocations(run) if not each.ended]
    states = allocation_states(run, listed) if listed else {}
    return [(each, states[each.name]) for each in listed if states[each.name].stage is not Stage.ended]


def cancel_allocations(run: RunDir, *, queued_only: bool = False) -> list[Allocation]:
    """End the run's worker allocations, or only those that still wait in the queue; returns those that were asked to.

    Raises SubmitError with what scancel said.
    """
    alive = [each for each, state in living(run) if not queued_only or state.stage is not Stage.running]
    # A record without a job is of a submission under way, or of one whose job its token finds.
    known = {each.name: each for each in allocations(run)}
    jobs = [known[each.name] for each in alive if each.name in known and known[each.name].job_id]
    cancel_jobs([each.key for each in jobs], pending_only=queued_only)
    return jobs


def job_nodes(group: NodeGroup) -> int:
    """Nodes of each of a group's jobs."""
    return min(group.nodes_per_job, group.max_nodes)


def record_file(run: RunDir, name: str) -> Path:
    return run.allocations / f"{name}.json"


def script_file(run: RunDir, name: str) -> Path:
    return run.allocations / f"{name}.sbatch"


def _names(run: RunDir) -> list[str]:
    """By listing the folder: a name that was looked for in vain is remembered by NFS."""
    try:
        with os.scandir(run.allocations) as entries:
            return [entry.name[:-5] for entry in entries if re.fullmatch(r"[^.].*\.json", entry.name)]
    except FileNotFoundError:
        return []


def _recorded(run: RunDir, group: str, nodes: int) -> Allocation:
    """A new record with a number of its own, whoever else makes one at the same time."""
    run.allocations.mkdir(mode=0o700, exist_ok=True)
    numbers = [int(match[1]) for name in _names(run) if (match := re.fullmatch(rf"{re.escape(group)}-(\d+)", name))]
    number = max(numbers, default=0)
    while True:
        number += 1
        name = f"{group}-{number}"
        word = re.sub("[^A-Za-z0-9_.-]", "-", f"{run.path.name}-{name}")
        allocation = Allocation(
            name=name, group=group, nodes=nodes, token=f"hpcjet-{word}-{secrets.token_hex(4)}", submitted=time.time(),
            uid=os.getuid(),
        )  # fmt: skip
        with contextlib.suppress(FileExistsError):
            _write_new(record_file(run, name), json.dumps(asdict(allocation)))
            return allocation


def _write_new(path: Path, text: str) -> None:
    """Whole or not at all, and never in place of another. Raises FileExistsError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    atomic_write(part, text)
    try:
        os.link(part, path)
    finally:
        part.unlink()
    sync_folder(path.parent)


def _keep(run: RunDir, allocation: Allocation) -> Allocation:
    """Write what is known. Others than the owner, root too, know it for now: their files would not be the run's."""
    if os.getuid() == allocation.uid:
        atomic_write(record_file(run, allocation.name), json.dumps(asdict(allocation)))
    return allocation


def _settled(run: RunDir, allocation: Allocation) -> Allocation:
    """A record without a job: of a submission that goes on, or of one that was not lived through."""
    if time.time() < allocation.submitted + UNSETTLED_S:
        return allocation
    found = find(allocation.token)
    if found is None:
        return allocation
    if not found:
        return _keep(run, replace(allocation, ended="NEVER_SUBMITTED"))
    _log.warning("the job of %s is %s: whoever submitted it did not live to note that", allocation.name, found[0].job)
    return _keep(run, replace(allocation, job_id=found[0].job.number, slurm_cluster=found[0].job.cluster))


def alive_nodes(run: RunDir) -> dict[str, int]:
    """Group -> nodes that are queued or run."""
    nodes: dict[str, int] = {}
    for each, _ in living(run):
        nodes[each.group] = nodes.get(each.group, 0) + each.nodes
    return nodes


def submit_initial(plan: Plan, config: LaunchConfig) -> list[str]:
    """Submit the worker allocations with which a run begins, less those that still live; returns what went wrong."""
    faults = []
    alive = alive_nodes(plan.run) if plan.worker_groups else {}
    for group in plan.worker_groups:
        missing = group.nodes - alive.get(group.name, 0)
        while missing > 0:
            nodes = min(missing, job_nodes(group))
            try:
                submit_allocation(plan, config, group.name, nodes)
            except (ConfigError, SubmitError) as error:
                faults.append(f"{missing} nodes of group {group.name} are not asked for yet: {error}")
                break
            missing -= nodes
    return faults
