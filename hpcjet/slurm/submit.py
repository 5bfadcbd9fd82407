"""Hand a plan to submitit: to Slurm, or to this machine, under one call."""

import contextlib
import re
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import SubmitError
from hpcjet.plan import Plan
from hpcjet.slurm.script import finished, settings
from hpcjet.slurm.submission import Submission


def submit(plan: Plan, config: LaunchConfig, agent: Callable[[], int]) -> Submission:
    """Submit the node agent of a plan. Raises SubmitError with what Slurm said."""
    if isinstance(config.cluster, SlurmConfig):
        return _submit_slurm(plan, config.cluster, agent)
    return _submit_local(plan, agent)


def _submit_slurm(plan: Plan, cluster: SlurmConfig, agent: Callable[[], int]) -> Submission:
    executor = _slurm_executor(plan, cluster)
    executor.update_parameters(**settings(plan, cluster))
    try:
        job = executor.submit(agent)
    except _failures() as error:
        raise _refused(plan, str(error)) from None
    return Submission("slurm", job.job_id)


def _submit_local(plan: Plan, agent: Callable[[], int]) -> Submission:
    from submitit import LocalExecutor

    executor = LocalExecutor(plan.run.submit_folder, python=shlex.quote(plan.python))
    # submitit ends a local job after a few minutes unless told otherwise; a run on this machine has no time limit.
    executor.update_parameters(timeout_min=60 * 24 * 365, gpus_per_node=plan.groups[0].gpus or 0)
    with _untouched_by_the_terminal():
        job = executor.submit(agent)
    return Submission("local", job.job_id, pid=int(job.job_id))


@contextlib.contextmanager
def _untouched_by_the_terminal() -> Iterator[None]:
    """Children started meanwhile ignore Ctrl-C and a closed terminal: whether to leave or to cancel is asked first."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _slurm_executor(plan: Plan, cluster: SlurmConfig) -> Any:
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        """submitit's; sbatch's answer cannot be misread, and options that are left to the site are not written."""

        @classmethod
        def affinity(cls) -> int:
            return 2

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            text = finished(super()._make_submission_file_text(command, uid), plan)
            plan.run.job.write_text(text)
            return text

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            return ["sbatch", "--parsable", str(submission_file_path)]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            return read_job_id(string if isinstance(string, str) else string.decode(errors="replace"))

    return Executor(plan.run.submit_folder, python=shlex.quote(plan.python))


def read_job_id(answer: str) -> str:
    """The job id in the answer of `sbatch --parsable`: the last line that is an id, with or without `;cluster`.

    Sites print banners around it. Raises SubmitError if there is none.
    """
    for line in reversed(answer.splitlines()):
        if match := re.fullmatch(r"\s*(\d+)(?:;\S+)?\s*", line):
            return match[1]
    raise SubmitError(f"sbatch answered without a job id: {answer.strip()!r}; see squeue --me for whether it is queued")


def _refused(plan: Plan, text: str) -> SubmitError:
    reason = next((line for line in reversed(text.strip().splitlines()) if "error" in line.lower()), text.strip())
    return SubmitError(f"Slurm refused the job: {reason.strip()} (script: {plan.run.job}; try dry_run=true to see it)")


def _failures() -> tuple[type[Exception], ...]:
    """What submitit raises, with the text that sbatch printed: the name of the first is misleading."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    return FailedJobError, FailedSubmissionError


def interpreter() -> str:
    """The Python that launches, for the nodes too; not resolved, so that a virtual environment stays one."""
    return sys.executable
