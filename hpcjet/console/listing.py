"""hpcjet runs: the newest runs with their states. Fast with many of them: only what is shown is read."""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from hpcjet.cluster.state import Phase, read_state
from hpcjet.rundir import RunDir, runs
from hpcjet.slurm.allocations import Allocation, allocations
from hpcjet.slurm.query import Stage, job_states
from hpcjet.slurm.submission import submission_state
from hpcjet.start import read_submission

STATES = ("prepared", *(phase.value for phase in Phase), "queued", "lost")
"""What `--state` takes. `lost`: its job is over and left no word."""
COLOURS = {"done": "green", "failed": "red", "lost": "red", "interrupted": "yellow", "running": "cyan"}


@dataclass(frozen=True)
class Row:
    """One run. Times in Unix seconds."""

    run: str
    exp: str
    state: str
    job: str
    exit_code: int | None
    reason: str
    launched: float
    workers: int = 0
    """Worker allocations that are queued or run."""
    progress: str = ""
    """How far it is, while it runs."""

    @property
    def news(self) -> str:
        return self.reason or self.progress


def rows(root: Path, *, exps: Sequence[str], states: Sequence[str], most: int | None) -> list[Row]:
    """The newest runs of these experiments in these states (empty: all), oldest first."""
    found = []
    for batch in _batches([run for run in reversed(runs(root)) if not exps or run.path.parent.name in exps]):
        found += [row for row in _read(batch) if not states or row.state in states]
        if most is not None and len(found) >= most:
            break
    return found[:most][::-1]


def as_json(listed: Sequence[Row]) -> str:
    return json.dumps([asdict(row) for row in listed], indent=2)


def print_rows(listed: Sequence[Row], console: Console, *, now: float) -> None:
    """A table; without a terminal the same columns, whole, separated by tabs."""
    if not console.is_terminal:
        for row in listed:
            print(
                f"{row.exp}/{row.run}\t{row.state}\t{_jobs(row)}\t{_age(now - row.launched)}\t{_first_line(row.news)}"
            )
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("run", "state", "job", "age"):
        table.add_column(name, no_wrap=True)
    table.add_column("news", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in listed:
        colour = COLOURS.get(row.state, "")
        state = f"[{colour}]{row.state}[/]" if colour else row.state
        table.add_row(f"{row.exp}/{row.run}", state, _jobs(row), _age(now - row.launched), _first_line(row.news))
    console.print(table)


def _batches(found: Sequence[RunDir], size: int = 100) -> Iterator[Sequence[RunDir]]:
    yield from (found[start : start + size] for start in range(0, len(found), size))


def _read(batch: Sequence[RunDir]) -> list[Row]:
    """Slurm is asked once, about all whose last word is not their last."""
    recorded = [(run, read_state(run.state), read_submission(run)) for run in batch]
    asked = [
        submission
        for _, state, submission in recorded
        if submission and submission.cluster == "slurm" and not (state and state.final)
    ]
    since = {each.key: each.submitted for each in asked if each.submitted is not None}
    workers = {run: _may_live(run) for run, _, _ in recorded}
    since |= {each.key: each.submitted for listed in workers.values() for each in listed}
    keys = [*(each.key for each in asked), *(each.key for listed in workers.values() for each in listed)]
    jobs = job_states(keys, submitted=since) if keys else {}
    found = []
    for run, state, submission in recorded:
        word, reason = (state.phase.value, state.reason) if state else ("prepared", "")
        if submission and not (state and state.final):
            job = jobs.get(submission.key) if submission.cluster == "slurm" else submission_state(submission)
            if job and job.stage is Stage.pending:
                word, reason = "queued", job.reason
            elif job and job.stage is Stage.ended:
                word, reason = "lost", f"its job ended ({job.state}) without a word"
        job_id = submission.job_id if submission and submission.cluster == "slurm" else ""
        code = state.exit_code if state else None
        alive = sum(jobs[each.key].stage is not Stage.ended for each in workers[run])
        exp, far = run.path.parent.name, _progress(run) if word == Phase.running.value else ""
        found.append(Row(run.path.name, exp, word, job_id, code, reason, _launched(run), alive, far))
    return found


def _progress(run: RunDir) -> str:
    from hpcjet.follow import progress_text, read_progress

    data = read_progress(run)
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return progress_text(data) if data else ""
    return ""


def _may_live(run: RunDir) -> list[Allocation]:
    """The worker allocations of a run that are not known to have ended."""
    return [each for each in allocations(run) if each.job_id and not each.ended]


def _jobs(row: Row) -> str:
    return f"{row.job} +{row.workers}" if row.workers else row.job


def _launched(run: RunDir) -> float:
    return time.mktime(time.strptime(run.path.name[:15], "%Y%m%d-%H%M%S"))


def _age(seconds: float) -> str:
    for name, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {name}"
    return f"{max(0, seconds):.0f} s"


def _first_line(text: str) -> str:
    return text.partition("\n")[0].expandtabs(1)
