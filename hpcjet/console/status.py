"""hpcjet status: how far a run is, and how long each step of its start took."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from hpcjet.cluster.events import Event, read_events
from hpcjet.cluster.state import RunState, read_state
from hpcjet.console.allocations import Listed, lines, listed
from hpcjet.console.allocations import as_json as as_json_allocations
from hpcjet.console.replicas import print_replicas, read_replicas
from hpcjet.console.use import use_facts, use_lines
from hpcjet.elastic.told import elastic_lines
from hpcjet.errors import ConfigError
from hpcjet.follow import read_progress, state_text
from hpcjet.plan import Plan
from hpcjet.rundir import RunDir
from hpcjet.slurm.nodelist import expand
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.submission import Submission, submission_state
from hpcjet.start import read_submission, stored_plan
from hpcjet.timeline import timeline_lines, timeline_text


@dataclass(frozen=True)
class Status:
    """All that is known of a run now; Slurm was asked once."""

    run: RunDir
    plan: Plan
    submission: Submission
    state: RunState | None
    job: JobState | None
    """None if the run's last word is its last: then Slurm was not asked."""
    workers: list[Listed]
    """Its worker allocations."""


def read_status(run: RunDir) -> Status:
    """Read a run, and ask Slurm about its job unless it is over. Raises ConfigError if it was never submitted."""
    submission, state = read_submission(run), read_state(run.state)
    if submission is None:
        raise ConfigError(f"{run} was never submitted; hpcjet resume {run}")
    events = read_events(run.events)
    again = bool(state and state.then) or bool(events and events[-1].event == Event.requeued)
    over = state is not None and state.final and not again
    job = None if over else submission_state(submission)
    return Status(run, stored_plan(run), submission, state, job, listed(run))


def as_json(status: Status) -> str:
    """For scripts."""
    state, job = status.state, status.job
    facts: dict[str, Any] = {
        "run": str(status.run.path),
        "job": status.submission.job_id if status.submission.cluster == "slurm" else None,
        "phase": state.phase.value if state else None,
        "exit_code": state.exit_code if state else None,
        "reason": state.reason if state else "",
        "slurm": {**asdict(job), "stage": job.stage.value} if job and status.submission.cluster == "slurm" else None,
        "nodes": _nodes(job) or None,
        "time_left_s": _left_s(status, time.time()),
        "allocations": as_json_allocations(status.workers),
        "progress": read_progress(status.run),
        "engine": read_replicas(status.run),
        "ledger": use_facts(status.run, now=time.time() if job and job.stage is Stage.running else None),
    }
    return json.dumps(facts, indent=2, default=str)


def print_status(status: Status, console: Console) -> None:
    """One line of state, one of the job, and the timeline of the start."""
    print(state_text(status.run, status.submission, status.state, status.job))
    if facts := _job_line(status):
        print(facts)
    for line in [*lines(status.workers), *(elastic_lines(status.plan, now=time.time()) if status.job else [])]:
        print(line)
    print_replicas(status.run, console)
    _print_timeline(status, console)


def _job_line(status: Status) -> str:
    if status.submission.cluster != "slurm":
        return ""
    words = [f"Slurm job {status.submission.job_id}"]
    if names := _nodes(status.job):
        words.append(f"on {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else ""))
    if status.job and status.job.stage is Stage.pending and status.job.expected_start:
        words.append(f"expected to start {time.strftime('%a %H:%M', time.localtime(status.job.expected_start))}")
    left_s = _left_s(status, time.time())
    if left_s is not None:
        words.append(f"{left_s / 60:.0f} min left")
    return ", ".join(words)


def _nodes(job: JobState | None) -> list[str]:
    if job is None or job.stage is not Stage.running or not job.nodes:
        return []
    with contextlib.suppress(ConfigError):
        return expand(job.nodes)
    return []


def _left_s(status: Status, now: float) -> float | None:
    """Seconds until the time limit of a job that runs."""
    started = next(
        (e.t for e in reversed(read_events(status.run.events)) if e.event == Event.allocated), None
    )  # fmt: skip
    if not (status.job and status.job.stage is Stage.running and started and status.plan.time_min):
        return None
    return max(0.0, started + status.plan.time_min * 60 - now)


def _print_timeline(status: Status, console: Console) -> None:
    events = read_events(status.run.events)
    if not events:
        return
    # A job that waits again while its last events are of work lost its nodes without a word.
    waits = events[-1].event in (Event.requeued, Event.submitted)
    stage = status.job.stage if status.job else Stage.ended
    going_on = stage is not Stage.ended and (stage is not Stage.pending or waits)
    now, num_nodes = time.time(), status.plan.head_nodes
    if used := use_lines(status.run, now=now if going_on else None, several=True):
        print("", *used, sep="\n")
    print()
    if console.is_terminal and not console.options.ascii_only:
        console.print(timeline_text(events, now=now, going_on=going_on, num_nodes=num_nodes), soft_wrap=True)
    else:
        print(*timeline_lines(events, now=now, going_on=going_on, num_nodes=num_nodes), sep="\n")
