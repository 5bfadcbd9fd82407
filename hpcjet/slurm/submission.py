"""What was submitted for a run: whether it still lives, and how to end it."""

from dataclasses import dataclass

import psutil

from hpcjet.errors import SubmitError
from hpcjet.slurm.jobid import JobId
from hpcjet.slurm.query import JobState, Stage, cancel_job, job_states

CONTROLLERS = {"submitit.local._local", "hpcjet.sweep.element"}
"""Modules that look after runs on this machine."""


@dataclass(frozen=True)
class Submission:
    """What was handed over: a Slurm job, or a process of this machine."""

    cluster: str
    job_id: str
    pid: int = 0
    """Of the local controller; 0 for Slurm."""
    slurm_cluster: str | None = None
    """Where sbatch named one: the job's number means nothing to other clusters."""
    token: str = ""
    """What the job carries for all to see; see hpcjet.slurm.sbatch."""
    submitted: float | None = None
    """Seconds since the epoch. A job of this number that is older is another one."""
    uid: int | None = None
    """Whose job it is."""

    @property
    def key(self) -> str:
        """The job for hpcjet's queries."""
        return JobId(self.job_id, self.slurm_cluster).key


def submission_state(submission: Submission) -> JobState:
    """Its state, from Slurm or from this machine."""
    if submission.cluster == "slurm":
        since = {} if submission.submitted is None else {submission.key: submission.submitted}
        return job_states([submission.key], uid=submission.uid, submitted=since)[submission.key]
    return JobState(Stage.running if _controller_alive(submission) else Stage.ended, "ended")


def cancel(submission: Submission) -> None:
    """End it. Raises SubmitError."""
    if submission.cluster == "slurm":
        cancel_job(submission.key)
        return
    if not _controller_alive(submission):
        raise SubmitError(f"process {submission.pid} of the run is gone already; nothing to cancel")
    psutil.Process(submission.pid).terminate()


def _controller_alive(submission: Submission) -> bool:
    """Whether the local controller still runs, and is not another process that got its id."""
    try:
        process = psutil.Process(submission.pid)
        return process.status() != psutil.STATUS_ZOMBIE and not CONTROLLERS.isdisjoint(process.cmdline())
    except psutil.NoSuchProcess:
        return False
