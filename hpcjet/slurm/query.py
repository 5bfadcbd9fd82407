"""What Slurm says of a job."""

import subprocess
from dataclasses import dataclass
from enum import Enum

from hpcjet.errors import SubmitError

QUERY_TIMEOUT_S = 30.0


class Stage(Enum):
    """A job's state, as far as a follower cares. `unknown` is never `ended`."""

    pending = "pending"
    running = "running"
    ended = "ended"
    unknown = "unknown"


STAGES = {
    **dict.fromkeys(
        ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "CONFIGURING",
         "EXPEDITING"),
        Stage.pending,
    ),
    **dict.fromkeys(
        ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING", "POWER_UP_NODE"),
        Stage.running,
    ),
    **dict.fromkeys(
        ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE",
         "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"),
        Stage.ended,
    ),
}  # fmt: skip
"""Every state that Slurm names, by squeue(1) and sacct(1)."""


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it now; `state` is Slurm's word, such as CANCELLED."""

    stage: Stage
    state: str = ""
    reason: str = ""


def job_state(job_id: str) -> JobState:
    """The state of a job: from the queue, else from accounting, else from the controller's memory."""
    if (answer := _ask("squeue", "-h", "-j", job_id, "-o", "%T|%r")) and (line := answer.strip()):
        state, _, reason = line.splitlines()[0].partition("|")
        return JobState(_stage(state), state, reason)
    if (answer := _ask("sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State")) and (line := answer.strip()):
        return _from_word(line.splitlines()[-1])
    if answer := _ask("scontrol", "show", "job", "--oneliner", job_id):
        for word in answer.split():
            if word.startswith("JobState="):
                return _from_word(word.partition("=")[2])
    return JobState(Stage.unknown)


def cancel_job(job_id: str) -> None:
    """Cancel a job by its id. Raises SubmitError with what scancel said."""
    done = _run("scancel", job_id)
    if done is None or done.returncode:
        said = done.stderr.strip() if done else "no answer"
        raise SubmitError(f"scancel {job_id} failed: {said}; see squeue --me")


def partitions() -> list[str] | None:
    """The partitions of the cluster; None if Slurm does not answer."""
    answer = _ask("sinfo", "-h", "-o", "%R")
    return None if answer is None else sorted(set(answer.split()))


def _from_word(text: str) -> JobState:
    """`CANCELLED by 1000` is CANCELLED."""
    state = text.split()[0].rstrip("+") if text.split() else ""
    return JobState(_stage(state), state)


def _stage(state: str) -> Stage:
    return STAGES.get(state, Stage.unknown)


def _ask(*command: str) -> str | None:
    """What a query printed; None if it failed, which says nothing about the job."""
    done = _run(*command)
    return done.stdout if done and done.returncode == 0 else None


def _run(*command: str) -> "subprocess.CompletedProcess[str] | None":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
