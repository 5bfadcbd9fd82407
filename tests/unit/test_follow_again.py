"""The follower submits a run again that Slurm stopped and the node could not queue again; no other, nor for ever."""

import io
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpcjet import follow
from hpcjet.cluster.state import ASK, REQUEUED, RESUBMIT, Phase, RunState, write_state
from hpcjet.config.compose import compose
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.submission import Submission

FIRST = Submission("slurm", "12")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "runs" / "noop" / "20260102-030405-abcdef")
    run.submit_folder.mkdir(parents=True)
    config = compose(["+exp=noop", "cluster=slurm", "cluster.max_restarts=2"])
    run.plan.write_text(make_plan(config, run_dir=run, python=sys.executable).to_json())
    return run


def stopped(run: RunDir, then: str, phase: Phase = Phase.interrupted) -> None:
    write_state(run.state, RunState(phase, exit_code=130, reason="it got SIGTERM", then=then))


def followed(run: RunDir, monkeypatch: pytest.MonkeyPatch, *, last: str, ends: list[str]) -> tuple[int, str, int]:
    """(code, what was said, jobs submitted again): each new job ends as `ends` says, with `done` or a `then`."""
    submitted: list[RunDir] = []

    def resume(run: RunDir) -> Submission:
        submitted.append(run)
        then = ends.pop(0)
        if then == "done":
            write_state(run.state, RunState(Phase.done, exit_code=0))
        else:
            stopped(run, then)
        return Submission("slurm", str(12 + len(submitted)))

    monkeypatch.setattr(follow, "resume", resume)
    monkeypatch.setattr(follow, "submission_state", lambda submission: JobState(Stage.ended, last))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    text = io.StringIO()
    code = follow.follow(run, FIRST, Console(file=text, width=200))
    return code, text.getvalue(), len(submitted)


@pytest.mark.parametrize(
    ("then", "last"),
    [(RESUBMIT, "FAILED"), (ASK, "PREEMPTED"), (ASK, "TIMEOUT")],
    ids=["no scontrol", "preempted after all", "time limit after all"],
)
def test_it_is_submitted_again(run: RunDir, monkeypatch: pytest.MonkeyPatch, then: str, last: str) -> None:
    stopped(run, then)
    code, text, jobs = followed(run, monkeypatch, last=last, ends=["done"])
    assert (code, jobs) == (0, 1)
    assert "it got SIGTERM; submitted again, as Slurm job 13 (restart 1 of at most 2)\n" in text


@pytest.mark.parametrize(
    ("then", "last"),
    [(ASK, "CANCELLED"), (ASK, "FAILED"), ("", "PREEMPTED"), (REQUEUED, "CANCELLED")],
    ids=["cancelled after all", "nobody knows", "must not", "cancelled in the queue"],
)
def test_it_is_not(run: RunDir, monkeypatch: pytest.MonkeyPatch, then: str, last: str) -> None:
    stopped(run, then)
    code, _, jobs = followed(run, monkeypatch, last=last, ends=[])
    assert (code, jobs) == (130, 0)


def test_not_for_ever(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(run, RESUBMIT)
    code, text, jobs = followed(run, monkeypatch, last="FAILED", ends=[RESUBMIT, RESUBMIT, RESUBMIT])
    assert (code, jobs) == (130, 2)
    assert "(restart 2 of at most 2)" in text


def test_a_job_that_was_cancelled_in_the_queue(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    code, text, _ = followed(run, monkeypatch, last="CANCELLED", ends=[])
    assert code == 130 and "interrupted: Slurm job 12 was cancelled before the run began" in text


def test_a_run_directory_without_space(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 100_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    monkeypatch.setattr(follow, "LAST_WORD_BYTES", 1 << 62)
    code, text, _ = followed(run, monkeypatch, last="FAILED", ends=[])
    assert code == 3 and f"ended (FAILED) without a word (no space is left in {run})" in text


def test_sigterm_leaves_the_run(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def terminate(submission: Submission) -> JobState:
        os.kill(os.getpid(), signal.SIGTERM)
        return JobState(Stage.running)

    monkeypatch.setattr(follow, "submission_state", terminate)
    text = io.StringIO()
    assert follow.follow(run, FIRST, Console(file=text, width=200)) == 130
    assert "The run goes on" in text.getvalue()
