"""Hand a plan to submitit: to Slurm, or to this machine, under one call."""

import contextlib
import json
import os
import re
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.root import LaunchConfig
from hpcjet.errors import ConfigError
from hpcjet.plan import Plan
from hpcjet.slurm.jobid import JobId
from hpcjet.slurm.sbatch import sbatch
from hpcjet.slurm.script import finished, head_settings
from hpcjet.slurm.submission import Submission


def submit(plan: Plan, config: LaunchConfig, agent: Callable[[], int]) -> Submission:
    """Submit the node agent of a plan. Raises SubmitError or ConfigError with what Slurm said."""
    if isinstance(config.cluster, SlurmConfig):
        return _submit_slurm(plan, config.cluster, agent)
    return _submit_local(plan, agent)


def _submit_slurm(plan: Plan, cluster: SlurmConfig, agent: Callable[[], int]) -> Submission:
    token, look_first = _token(plan)
    executor = _slurm_executor(plan, cluster, token=token, look_first=look_first)
    executor.update_parameters(**head_settings(plan, cluster))
    now = time.time()
    try:
        executor.submit(agent)
    except ConfigError:
        # Nothing was taken, and nothing needs to be looked for next time.
        (plan.run.submit_folder / "token").unlink()
        raise
    job: JobId = executor.job
    return Submission("slurm", job.number, slurm_cluster=job.cluster, token=token, submitted=now, uid=os.getuid())


def _token(plan: Plan) -> tuple[str, bool]:
    """The token of this submission, and whether an earlier launch used it and did not live to hear of its job."""
    file = plan.run.submit_folder / "token"
    with contextlib.suppress(FileNotFoundError):
        last = file.read_text()
        if last and last != _submitted_token(plan):
            return last, True
    token = f"hpcjet-{re.sub('[^A-Za-z0-9_.-]', '-', plan.run.path.name)}-{secrets.token_hex(4)}"
    file.parent.mkdir(exist_ok=True)
    atomic_write(file, token)
    return token, False


def _submitted_token(plan: Plan) -> str:
    """That of the last submission that is recorded."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return str(json.loads(plan.run.submission.read_text()).get("token", ""))
    return ""


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


def _slurm_executor(plan: Plan, cluster: SlurmConfig, *, token: str, look_first: bool) -> Any:
    from submitit import SlurmExecutor

    class Executor(SlurmExecutor):
        """submitit's; it submits exactly once, and options that are left to the site are not written."""

        job: JobId

        @classmethod
        def affinity(cls) -> int:
            return 2

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            text = finished(super()._make_submission_file_text(command, uid), plan, cluster, command=command)
            plan.run.job.write_text(text)
            return text

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            """What submitit runs: the job is in the queue already, and this says its number in submitit's words."""
            self.job = sbatch(plan.run.job, token=token, look_first=look_first)
            return ["echo", self.job.number]

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            return (string if isinstance(string, str) else string.decode()).strip()

    return Executor(plan.run.submit_folder, python=shlex.quote(plan.python))


def interpreter() -> str:
    """The Python that launches, for the nodes too; not resolved, so that a virtual environment stays one."""
    return sys.executable
