"""What was submitted for a run: whether it still lives, and how to end it."""

from dataclasses import dataclass

import psutil

from hpcjet.errors import SubmitError
from hpcjet.slurm.query import JobState, Stage, cancel_job, job_state


@dataclass(frozen=True)
class Submission:
    """What was handed over: a Slurm job, or a process of this machine."""

    cluster: str
    job_id: str
    pid: int = 0
    """Of the local controller; 0 for Slurm."""


def submission_state(submission: Submission) -> JobState:
    """Its state, from Slurm or from this machine."""
    if submission.cluster == "slurm":
        return job_state(submission.job_id)
    return JobState(Stage.running if _controller_alive(submission) else Stage.ended, "ended")


def cancel(submission: Submission) -> None:
    """End it. Raises SubmitError."""
    if submission.cluster == "slurm":
        cancel_job(submission.job_id)
        return
    if not _controller_alive(submission):
        raise SubmitError(f"process {submission.pid} of the run is gone already; nothing to cancel")
    psutil.Process(submission.pid).terminate()


def _controller_alive(submission: Submission) -> bool:
    """Whether the local controller still runs, and is not another process that got its id."""
    try:
        process = psutil.Process(submission.pid)
        return process.status() != psutil.STATUS_ZOMBIE and "submitit.local._local" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
