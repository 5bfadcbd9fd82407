"""Why Slurm told a job to stop, how long it has left, and how it is queued again; asked on a node of the job."""

import time
from collections.abc import Mapping
from enum import Enum

from hpcjet.slurm.call import Answer, ask
from hpcjet.slurm.times import elapsed_s

CALL_TIMEOUT_S = 5.0
TRIES = 8
LEADER = "SLURM_JOB_ID_HET_GROUP_0"


class Cause(Enum):
    """Why a job was told to stop."""

    time_limit = "the time limit is near"
    preempted = "preempted"
    requeued = "put back into the queue"
    cancelled = "cancelled"
    unknown = "cancelled or preempted"


def cause_of_sigterm(job_id: str, *, restart: int = 0) -> Cause:
    """Ask the controller, once: SIGTERM alone may mean any of them. `restart`: how often the job had been requeued."""
    answer = _ask("scontrol", "show", "job", "--oneliner", job_id)
    return cause_in(answer.out, restart=restart) if answer.ok else Cause.unknown


def cause_in(answer: str, *, restart: int = 0) -> Cause:
    """The cause, from what `scontrol show job --oneliner` says of a job that just got SIGTERM.

    A heterogeneous job has a line for each component, of which one may be the cause for all.
    """
    causes = {_cause_in_line(line, restart) for line in answer.splitlines() if line.strip()}
    order = (Cause.preempted, Cause.time_limit, Cause.requeued, Cause.cancelled)
    return next((cause for cause in order if cause in causes), Cause.unknown)


def _cause_in_line(answer: str, restart: int) -> Cause:
    facts = dict(word.partition("=")[::2] for word in answer.split())
    state = facts.get("JobState", "")
    if state == "PREEMPTED" or facts.get("PreemptTime", "None") not in ("None", "Unknown", ""):
        return Cause.preempted
    if state in ("TIMEOUT", "DEADLINE"):
        return Cause.time_limit
    if (restarts := facts.get("Restarts", "")).isdigit() and int(restarts) > restart:
        return Cause.requeued
    ran_s, limit_s = elapsed_s(facts.get("RunTime", "")), elapsed_s(facts.get("TimeLimit", ""))
    if ran_s is not None and limit_s and ran_s >= limit_s:
        # Without a warning before: a controller that was started anew forgets it.
        return Cause.time_limit
    return Cause.cancelled if state in ("CANCELLED", "COMPLETING", "COMPLETED", "RUNNING") else Cause.unknown


def time_left_s(env: Mapping[str, str]) -> float | None:
    """Seconds until the job's limit; None if there is none or nobody knows."""
    if (end := env.get("SLURM_JOB_END_TIME", "")).isdigit():
        return int(end) - time.time()
    answer = _ask("squeue", "--noheader", "--jobs", env.get("SLURM_JOB_ID", ""), "--format", "%L")
    first = next(iter(answer.out.splitlines()), "")
    return elapsed_s(first) if answer.ok else None


def element_id(env: Mapping[str, str]) -> str:
    """The id of this job alone: within an array the plain id would mean every element.

    Of a heterogeneous job, that of its first component: it stands for all of them, on every node.
    """
    array = env.get("SLURM_ARRAY_JOB_ID")
    return f"{array}_{env['SLURM_ARRAY_TASK_ID']}" if array else env.get(LEADER) or env["SLURM_JOB_ID"]


def requeue(job_id: str) -> str:
    """Ask that the job runs again; Slurm then ends what is left of it. Returns an empty text, or why it cannot be."""
    reason = ""
    for number in range(TRIES):
        answer = _ask("scontrol", "requeue", job_id)
        if answer.code is None:
            return "scontrol is not on this node, or does not answer"
        if answer.ok:
            return ""
        reason = answer.err.strip() or answer.out.strip()
        # A job that is just ending cannot be requeued until it has ended on its other nodes.
        if "disabled" in reason or "Invalid" in reason or "denied" in reason:
            break
        time.sleep(0.25 * (number + 1))
    return reason


def _ask(*command: str) -> Answer:
    """With less patience than elsewhere: the job may be killed any moment."""
    return ask(*command, timeout_s=CALL_TIMEOUT_S)
