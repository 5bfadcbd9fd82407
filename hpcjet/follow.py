"""Stay with a run: the queue first, then its progress, then how it ended."""

import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console

from hpcjet.cluster.aftermath import sweep_here
from hpcjet.cluster.child import tail
from hpcjet.cluster.output import Output
from hpcjet.cluster.signals import Interrupted, signals_raise
from hpcjet.cluster.state import ASK, QUEUED, REQUEUED, RESUBMIT, Phase, RunState, read_state
from hpcjet.elastic.login import LoginKeeper
from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, ConfigError
from hpcjet.live import AT_WORK, Display
from hpcjet.rundir import RunDir
from hpcjet.slurm.counts import Counts
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.submission import Submission, submission_state
from hpcjet.start import cancel_run, read_submission, resume, stored_plan
from hpcjet.swarm import line as swarm
from hpcjet.swe import line as swe

LINES: dict[str, Callable[[dict[str, Any]], str]] = {"attempts": swe.progress_line, "swarm": swarm.progress_line}
"""By the kind of progress.json."""
REQUEUE_S = 20.0
"""For Slurm to end a job that was interrupted, or to queue it again."""
OUTPUT_S = 0.25
"""Between two looks at what the program has printed."""
SOON_S = 60.0
"""A start that is nearer is no news."""
LAST_WORD_BYTES = 64 * 1024
"""With less space left a run cannot say how it ended."""
LATE_S = 2.0
"""For the first output of a program to get here after its end."""


def follow(run: RunDir, submission: Submission, console: Console) -> int:
    """Show the run until it ends; returns its exit code. Ctrl-C asks whether to leave or to cancel it."""
    try:
        with signals_raise(signal.SIGTERM):
            state = _watch_to_the_end(run, submission, console)
    except (KeyboardInterrupt, Interrupted) as interrupt:
        ask = isinstance(interrupt, KeyboardInterrupt) and sys.stdin.isatty()
        return _leave_or_cancel(run, read_submission(run) or submission, console, ask=ask)
    if state.reason:
        console.print(
            f"{state.phase.value}: {state.reason}", style="red", highlight=False, markup=False, soft_wrap=True
        )
    if state.phase is not Phase.done:
        console.print(f"logs: {run.path / 'logs'}", highlight=False, soft_wrap=True)
    return EXIT_CLUSTER if state.exit_code is None else state.exit_code


def _watch_to_the_end(run: RunDir, submission: Submission, console: Console) -> RunState:
    """Over all the jobs that the run takes: where a node could not queue its job again, a new one is submitted."""
    for number in itertools.count(1):
        state = _watch(run, submission, console)
        if not _wants_another_job(state, submission) or number > (most := stored_plan(run).max_restarts):
            return state
        submission = resume(run)
        text = f"{state.reason}; submitted again, as Slurm job {submission.job_id} (restart {number} of at most {most})"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    raise AssertionError("unreachable: counts for ever")


def _wants_another_job(state: RunState, submission: Submission) -> bool:
    """Whether the run was stopped by Slurm, not by a person, and nobody else starts it again."""
    if state.phase is not Phase.interrupted or submission.cluster != "slurm":
        return False
    asked = state.then == ASK and submission_state(submission).state in ("PREEMPTED", "TIMEOUT")
    return asked or state.then == RESUBMIT


def _watch(run: RunDir, submission: Submission, console: Console) -> RunState:
    pause_s, lost_since = 0.2, None
    output = _output(run, submission) if _runs_a_program(run) else None
    workers = Counts(run)
    with Display(console) as display, _keeper(run) as groups:
        while True:
            if groups:
                groups.keep()
            state = read_state(run.state)
            _pass_on(output, display)
            if state and state.final and not _comes_back(run, state, submission):
                _pass_on(output, display, late_s=LATE_S if state.exit_code != EXIT_CLUSTER else 0.0)
                return state
            job = submission_state(submission)
            if job.stage is not Stage.ended:
                lost_since = None
            else:
                # The last word may still be on its way through the shared file system.
                lost_since = lost_since or time.monotonic()
                if time.monotonic() - lost_since > 5:
                    return _vanished(run, submission, job)
            text = _text(run, state, job, at_work=bool(output and output.found))
            more = "" if text == AT_WORK else workers.text()
            display.show(f"{text}; {more}" if more else text)
            _pass_on_for(pause_s, output, display)
            pause_s = min(pause_s * 1.3, 2.0 if submission.cluster == "slurm" else 0.5)


def _keeper(run: RunDir) -> "contextlib.AbstractContextManager[LoginKeeper | None]":
    """What keeps the groups at their sizes where the head has no sbatch; nothing for a folder without a plan."""
    with contextlib.suppress(ConfigError):
        return contextlib.closing(LoginKeeper(stored_plan(run)))
    return contextlib.nullcontext()


def _runs_a_program(run: RunDir) -> bool:
    """Whether there will be an output, unlike for most workloads of hpcjet's own."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        plan = json.loads(run.plan.read_text())
        return plan["exp"] == "serve" or "command" in plan["config"]["exp"]
    return False


def _output(run: RunDir, submission: Submission) -> Output:
    """That of this submission alone: a resumed run has older ones."""
    if submission.cluster == "slurm":
        return Output(run, allocations=f"{submission.job_id}-*")
    return Output(run, since=run.submission.stat().st_mtime if run.submission.exists() else 0.0)


def _pass_on(output: Output | None, display: Display, *, late_s: float = 0.0) -> None:
    if output:
        for piece in output.read(patience_s=late_s):
            display.write(piece)


def _pass_on_for(seconds: float, output: Output | None, display: Display) -> None:
    """Instead of a sleep: what the program prints is shown at once, how far the run is only now and then."""
    while seconds > 0:
        time.sleep(min(seconds, OUTPUT_S))
        seconds -= OUTPUT_S
        _pass_on(output, display)


def _comes_back(run: RunDir, state: RunState, submission: Submission) -> bool:
    """Whether Slurm requeues the job, as it does after a preemption; it takes a moment to say so."""
    if state.phase is not Phase.interrupted or submission.cluster != "slurm":
        return False
    if state.then in (REQUEUED, QUEUED):
        return submission_state(submission).stage is not Stage.ended
    deadline = time.monotonic() + REQUEUE_S
    while (stage := submission_state(submission).stage) not in (Stage.pending, Stage.ended):
        if read_state(run.state) != state:
            return True  # it has begun again already
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return stage is Stage.pending


def status_text(run: RunDir, submission: Submission) -> str:
    """How far a run is, in one line."""
    state = read_state(run.state)
    return state_text(run, submission, state, None if state and state.final else submission_state(submission))


def state_text(run: RunDir, submission: Submission, state: RunState | None, job: JobState | None) -> str:
    """The same, from what was read and asked before; `job` None: its last word stands."""
    if state and state.final:
        code = "" if state.exit_code is None else f" (exit code {state.exit_code})"
        return f"{state.phase.value}{code}{': ' + state.reason if state.reason else ''}"
    assert job is not None, "a run that goes on has a job"
    if job.stage is Stage.ended:
        return f"lost: the job ended ({job.state}) without a word; see hpcjet logs {run}"
    return _text(run, state, job, at_work=_runs_a_program(run) and _output(run, submission).found)


def _vanished(run: RunDir, submission: Submission, job: JobState) -> RunState:
    """The job is over and left no word."""
    if job.state == "CANCELLED":
        reason = f"Slurm job {submission.job_id} was cancelled before the run began"
        return RunState(Phase.interrupted, exit_code=EXIT_INTERRUPTED, reason=reason)
    logs = sorted(run.submit_folder.glob(f"{submission.job_id}_*_log.*"), key=os.path.getmtime)
    shown = f"; {logs[-1]} ends with:\n{tail(logs[-1])}" if logs else ""
    what = f"Slurm job {submission.job_id}" if submission.cluster == "slurm" else "the local job"
    if submission.cluster != "slurm":
        sweep_here()  # on a node the batch script does it
    full = f" (no space is left in {run})" if _is_full(run) else ""
    reason = f"{what} ended ({job.state}) without a word{full}{shown}"
    return RunState(Phase.failed, exit_code=EXIT_CLUSTER, reason=reason)


def _is_full(run: RunDir) -> bool:
    """Whether the nodes could not have written their last word."""
    disk = os.statvfs(run.path)
    return disk.f_bavail * disk.f_frsize < LAST_WORD_BYTES


def _text(run: RunDir, state: RunState | None, job: JobState, *, at_work: bool) -> str:
    if job.stage is Stage.pending:
        return f"queued ({job.reason}){_expected(job)}"
    if progress := read_progress(run):
        return progress_text(progress)
    if job.stage is Stage.unknown:
        return "Slurm does not answer; still waiting"
    if at_work:
        return AT_WORK
    return "starting the cluster" if state and state.phase is Phase.running else "starting"


def _expected(job: JobState) -> str:
    """When Slurm has planned to start it."""
    if job.expected_start is None or job.expected_start < time.time() + SOON_S:
        return ""
    return time.strftime(", expected to start on %Y-%m-%d at %H:%M", time.localtime(job.expected_start))


def read_progress(run: RunDir) -> dict[str, Any] | None:
    """What the workload says of how far it is; None if it says nothing."""
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(run.progress.read_text())
        assert isinstance(data, dict)
        return data
    return None


def progress_text(data: dict[str, Any]) -> str:
    """One line, as the workload that wrote it has it shown."""
    line = LINES.get(str(data.get("kind")))
    return line(data) if line else AT_WORK


def _leave_or_cancel(run: RunDir, submission: Submission, console: Console, *, ask: bool) -> int:
    console.print()
    if ask:
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            answer = console.input("Leave the run going, or cancel it? \\[L/c] ")
            if answer.strip().lower().startswith("c"):
                cancel_run(run, submission)
                console.print("cancelled; what is recorded stays, hpcjet resume goes on from there")
                return EXIT_INTERRUPTED
    console.print("The run goes on. Come back with:", highlight=False)
    for command in ("status", "logs", "cancel"):
        console.print(f"  hpcjet {command} {run}", highlight=False, soft_wrap=True)
    return EXIT_INTERRUPTED
