"""What Slurm says of jobs: the queue first, then accounting; one batched question each, whatever the number of jobs."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from hpcjet.errors import ConfigError, SubmitError
from hpcjet.slurm.call import Answer, ask
from hpcjet.slurm.jobid import elements, job_of, split_key
from hpcjet.slurm.states import FINAL_ALONE, PURGED, STAGES, Stage, stage_of, word_of
from hpcjet.slurm.times import moment

__all__ = ["STAGES", "JobState", "Stage", "cancel_job", "cancel_jobs", "job_state", "job_states", "partitions"]

CONFIRM_S = 0.5
"""Before the queue is asked again about an end that nothing else confirms."""
CLOCKS_S = 600.0
"""How far the clock of this machine and that of the controller may be apart."""
JOBS_PER_CALL = 5000
"""A command line holds 128 kB in one word."""


@dataclass(frozen=True)
class JobState:
    """A job as Slurm sees it now; `state` is Slurm's word, such as CANCELLED. Times are seconds since the epoch."""

    stage: Stage
    state: str = ""
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    """What killed the job; None if nothing did."""
    expected_start: float | None = None
    """Of a job that waits, where the scheduler has planned it."""
    started: float | None = None
    submitted: float | None = None
    """For a job that was queued again, the last time."""
    ended: float | None = None
    restarts: int | None = None
    nodes: str = ""


def job_state(job_id: str) -> JobState:
    """The state of one job or array element."""
    return job_states([job_id])[job_id]


def job_states(
    ids: Iterable[str], *, uid: int | None = None, submitted: Mapping[str, float] | None = None
) -> dict[str, JobState]:
    """The states of jobs and array elements (`12`, `12_3`, `12_3;alpha`) of one user, by default of this one.

    Per cluster at most three calls for every 5,000 jobs, an array counting as one. What nobody can tell is unknown,
    never ended; an end is told by two sources, or twice. `submitted` says since when an id means this job: what is
    older was another's.
    """
    keys = list(dict.fromkeys(ids))
    since = {split_key(key)[0]: when for key, when in (submitted or {}).items()}
    found: dict[str, JobState] = {}
    for cluster, numbers in _batches(keys):
        asked = _Question(cluster, os.getuid() if uid is None else uid, since)
        for number, state in asked.states(numbers).items():
            found[f"{number};{cluster}" if cluster else number] = state
    return {key: found[key] for key in keys}


def _batches(keys: list[str]) -> Iterator[tuple[str | None, list[str]]]:
    """(cluster, ids there): elements of as many jobs as a command line holds."""
    jobs: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        number, cluster = split_key(key)
        jobs.setdefault((cluster or "", job_of(number)), []).append(number)
    for name, group in groupby(sorted(jobs), key=lambda job: job[0]):
        listed = list(group)
        for begin in range(0, len(listed), JOBS_PER_CALL):
            yield name or None, [number for job in listed[begin : begin + JOBS_PER_CALL] for number in jobs[job]]


@dataclass(frozen=True)
class _Question:
    cluster: str | None
    uid: int
    since: Mapping[str, float]

    def states(self, ids: list[str]) -> dict[str, JobState]:
        queue = self._queue(f"--user={self.uid}")
        known = {key: state for key in ids if (state := (queue or {}).get(key))}
        open_ids = [key for key in ids if key not in known or known[key].stage is Stage.ended]
        records = self._accounting(open_ids) if open_ids else {}
        if queue is None:
            return {key: _without_the_controller(records.get(key)) for key in ids}
        sure, doubtful = _sorted_out(open_ids, known, records)
        known.update(sure)
        if doubtful:
            known.update(self._confirmed(doubtful, known, records))
        return {key: known[key] for key in ids}

    def _confirmed(
        self, ids: list[str], known: Mapping[str, JobState], records: Mapping[str, JobState]
    ) -> dict[str, JobState]:
        """The states of jobs that seem to have ended, or that the queue did not have; asked by id this time."""
        time.sleep(CONFIRM_S)
        again = self._queue("--jobs=" + ",".join(sorted({job_of(key) for key in ids})))
        if again is None:
            return {key: _without_the_controller(records.get(key)) for key in ids}
        return {key: again.get(key) or self._gone(known.get(key), records.get(key)) for key in ids}

    def _gone(self, before: JobState | None, record: JobState | None) -> JobState:
        """Of a job that the controller does not know."""
        for state in (record, before):
            if state and state.stage is Stage.ended:
                return state
        if self.uid != os.getuid() and os.getuid() != 0:
            return JobState(Stage.unknown, reason="another user's job, which may be hidden")
        # The controller answers, and what it does not know does not wait and does not run.
        return replace(record or JobState(Stage.ended), stage=Stage.ended, state=PURGED, reason="Slurm forgot the job")

    def _queue(self, which: str) -> dict[str, JobState] | None:
        """All that the controller has in its memory, ended jobs too; None if it does not answer."""
        answer = ask(
            "squeue", *self._clusters(), which, "--noheader", "--array", "--states=all", "--format=" + QUEUE_FORMAT
        )
        if not answer.ok and "Invalid job id specified" not in answer.err:
            return None
        rows: dict[str, JobState] = {}
        for name, state in _rows(answer.out, _queue_row):
            if self._ours(name, state):
                rows[name] = state
                leader, plus, number = name.partition("+")
                if plus and number != "0" and leader in rows and state.nodes:
                    rows[leader] = replace(rows[leader], nodes=f"{rows[leader].nodes},{state.nodes}".lstrip(","))
        return rows

    def _accounting(self, ids: list[str]) -> dict[str, JobState]:
        """The newest record of each job; nothing where accounting is off or does not answer."""
        jobs = ",".join(sorted({job_of(key) for key in ids}))
        answer = ask(
            "sacct", *self._clusters(), "--allocations", "--duplicates", "--noheader", "--parsable2",
            "--jobs=" + jobs, "--format=" + ACCOUNTING_FORMAT,
        )  # fmt: skip
        records: dict[str, JobState] = {}
        for name, state in _rows(answer.out if answer.ok else "", _accounting_row):
            if not self._ours(name, state):
                continue
            older = records.get(name)
            if older is None:
                records[name] = replace(state, restarts=0)
            elif (state.submitted or 0) >= (older.submitted or 0):
                records[name] = replace(state, restarts=(older.restarts or 0) + 1)
        return records

    def _ours(self, name: str, state: JobState) -> bool:
        """Not of an older job that had the same number."""
        since = self.since.get(name, self.since.get(job_of(name)))
        return since is None or state.submitted is None or state.submitted > since - CLOCKS_S

    def _clusters(self) -> list[str]:
        return [f"--clusters={self.cluster}"] if self.cluster else []


def _sorted_out(
    ids: list[str], known: Mapping[str, JobState], records: Mapping[str, JobState]
) -> tuple[dict[str, JobState], list[str]]:
    """(what is certain, what must be asked again), of jobs that the queue does not have or says have ended."""
    sure: dict[str, JobState] = {}
    doubtful = []
    for key in ids:
        queued, record = known.get(key), records.get(key)
        if record and record.stage is Stage.ended and (queued is None or queued.state == record.state):
            sure[key] = record
        else:
            doubtful.append(key)
    return sure, doubtful


def _without_the_controller(record: JobState | None) -> JobState:
    """What accounting alone can tell."""
    if record and record.state in FINAL_ALONE:
        return record
    return JobState(Stage.unknown, reason="the Slurm controller does not answer")


QUEUE_FORMAT = "%i|%T|%V|%S|%e|%N|%r"
ACCOUNTING_FORMAT = "JobID,State,ExitCode,Submit,Start,End,NodeList"
# All fields are there in Slurm 20.11. The reason stands last: it is the one with free text.


def _rows(out: str, parse: Callable[[list[str]], JobState]) -> Iterator[tuple[str, JobState]]:
    """(single id, state); lines that are no rows, such as banners, are passed over."""
    for line in out.splitlines():
        name, *fields = line.strip().split("|", 7)
        if not name[:1].isdigit():
            continue
        try:
            state = parse(fields)
            for each in elements(name):
                yield each, state
                if each.endswith("+0"):
                    # The first component stands for a heterogeneous job, whose number it has.
                    yield job_of(each), state
        except (ConfigError, ValueError):
            continue


def _queue_row(fields: list[str]) -> JobState:
    state, submitted, start, end, nodes = fields[:5]
    word = word_of(state)
    stage = stage_of(word)
    return JobState(
        stage,
        word,
        "|".join(fields[5:]).strip(),
        expected_start=moment(start) if stage is Stage.pending else None,
        started=moment(start) if stage is not Stage.pending else None,
        submitted=moment(submitted),
        ended=moment(end) if stage is Stage.ended else None,
        nodes=_nodes(nodes),
    )


def _accounting_row(fields: list[str]) -> JobState:
    state, code, submitted, start, end, nodes = fields[:6]
    word = word_of(state)
    exit_code, signal = _exit(code)
    return JobState(
        stage_of(word),
        word,
        exit_code=exit_code,
        signal=signal,
        started=moment(start),
        submitted=moment(submitted),
        ended=moment(end),
        nodes=_nodes(nodes),
    )


def _exit(text: str) -> tuple[int | None, int | None]:
    """`1:9` -> (1, 9); no signal is None."""
    code, _, signal = text.partition(":")
    return (int(code) if code.isdigit() else None), (int(signal) or None if signal.isdigit() else None)


def _nodes(text: str) -> str:
    return "" if text.startswith(("None", "(null)", "N/A")) else text


def cancel_job(job_id: str) -> None:
    """Cancel a job by its id, which may end with `;cluster`. Raises SubmitError with what scancel said."""
    number, cluster = split_key(job_id)
    done = ask("scancel", *([f"--clusters={cluster}"] if cluster else []), number)
    if not done.ok:
        raise SubmitError(f"scancel {number} failed: {_words(done)}; see squeue --me")


def cancel_jobs(job_ids: Iterable[str], *, pending_only: bool = False) -> None:
    """Cancel jobs with one call per cluster, with `pending_only` those that have not started. Raises SubmitError."""
    by_cluster: dict[str | None, list[str]] = {}
    for key in job_ids:
        number, cluster = split_key(key)
        by_cluster.setdefault(cluster, []).append(number)
    for cluster, numbers in by_cluster.items():
        where = [f"--clusters={cluster}"] if cluster else []
        done = ask("scancel", *where, *(["--state=PENDING"] if pending_only else []), *numbers)
        if not done.ok:
            raise SubmitError(f"scancel {' '.join(numbers)} failed: {_words(done)}; see squeue --me")


def partitions() -> list[str] | None:
    """The partitions of the cluster; None if Slurm does not answer."""
    answer = ask("sinfo", "--noheader", "--format=%R")
    return sorted(set(answer.out.split())) if answer.ok else None


def _words(answer: Answer) -> str:
    return answer.err.strip() or "no answer"
