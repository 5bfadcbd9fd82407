"""Where the points of a sweep stand: from the last words of their runs, and from Slurm for those without one."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from hpcjet.cluster.state import QUEUED, REQUEUED, Phase, RunState
from hpcjet.errors import EXIT_CLUSTER, ConfigError
from hpcjet.rundir import RunDir
from hpcjet.slurm.jobid import split_key
from hpcjet.slurm.query import JobState, Stage, job_states
from hpcjet.slurm.requeue import Cause
from hpcjet.slurm.states import PURGED
from hpcjet.slurm.submission import CONTROLLERS, Submission
from hpcjet.sweep.folder import About, Array, SweepDir
from hpcjet.sweep.verify import is_anothers, tokens


class Where(str, Enum):
    """The state of a point. Only the first four are not over."""

    missing = "missing"
    """Not submitted, or its allocation ended before its turn came."""
    queued = "queued"
    running = "running"
    unknown = "unknown"
    """Slurm does not answer."""
    done = "done"
    failed = "failed"
    cancelled = "cancelled"
    timeout = "timeout"
    """Its time limit came."""
    memory = "out of memory"
    lost = "lost"
    """The job ended without a word of the point: a node failed, or the agent was killed."""


OUT_OF_MEMORY = "out of memory"
"""How the reason of a point begins whose program was ended for it."""
LOCAL = "local"
"""Instead of a job's number, on this machine."""
ORDER = tuple(Where)
GOING_ON = frozenset({Where.queued, Where.running, Where.unknown})
SLURM_WORDS = {
    "CANCELLED": Where.cancelled,
    "REVOKED": Where.cancelled,
    "TIMEOUT": Where.timeout,
    "DEADLINE": Where.timeout,
    "OUT_OF_MEMORY": Where.memory,
}
"""Ends by Slurm, whatever the run itself managed to say."""


@dataclass(frozen=True)
class Standing:
    """One point."""

    where: Where
    run: RunDir
    job: str = ""
    """Slurm's element, such as 12_3."""
    exit_code: int | None = None
    reason: str = ""
    seconds: float | None = None
    """From its start to its last word; of one that runs, to now."""


Mark = tuple[int, int]
"""Array and element."""


@dataclass(frozen=True)
class Place:
    """The element that has a point."""

    array: Array
    element: int
    alone: str = ""
    """The job of a point that was resumed by itself."""

    @property
    def key(self) -> str:
        """For Slurm's queries; empty while the array has no job."""
        if self.alone:
            return self.alone
        if self.array.job == LOCAL:
            return f"{LOCAL}-{self.array.number}"
        number, cluster = split_key(self.array.job)
        return f"{number}_{self.element}" + (f";{cluster}" if cluster else "") if number else ""

    @property
    def name(self) -> str:
        return split_key(self.key)[0]

    @property
    def is_alone(self) -> bool:
        """Whether the point begins with its allocation."""
        return self.array.pack == 1 and self.array.job != LOCAL

    @property
    def mark(self) -> Mark:
        """Unlike Slurm's numbers it is never used twice."""
        return self.array.number, self.element

    def has(self, word: RunState) -> bool:
        """Whether a run's word is of this submission: one of an earlier try says nothing about it."""
        if word.phase is Phase.submitted:
            return word.updated >= self.array.submitted - 1
        if self.array.job == LOCAL:
            return word.started >= self.array.submitted - 1
        return word.allocation == self.name or not self.name

    def is_done(self, word: RunState | None) -> bool:
        """Whether the results are there; with sweep.rerun those of earlier tries do not count."""
        return word is not None and word.phase is Phase.done and (not self.array.rerun or self.has(word))


def standings(sweep: SweepDir, about: About, count: int, *, now: float) -> list[Standing]:
    """The states of all points, in order. Slurm is asked at most once for each sweep that has some of them."""
    places = places_of(sweep.arrays())
    words = {index: read_word(sweep.run(index).state) for index in sweep.started()}
    places |= _resumed(sweep, places, words)
    jobs = _ask(places, words, uid=sweep.about.stat().st_uid)
    elsewhere = _elsewhere({int(index): name for index, name in about.found.items()}, places, now=now)
    found = []
    for index in range(count):
        place = places.get(index)
        job = jobs.get(place.mark) if place else None
        known = elsewhere.get(index)
        found.append(known or standing(sweep.run(index), place, words.get(index), job, now=now))
    return found


def _resumed(sweep: SweepDir, places: Mapping[int, Place], words: Mapping[int, RunState | None]) -> dict[int, Place]:
    """Points that `hpcjet resume` submitted by themselves after their array."""
    found = {}
    for index, place in places.items():
        if index not in words or place.is_done(words[index]):
            continue
        with contextlib.suppress(OSError, ValueError, TypeError):
            own = Submission(**json.loads(sweep.run(index).submission.read_bytes()))
            if own.token != place.array.token and (own.submitted or 0) > place.array.submitted:
                array = Array(
                    number=-1 - index, token=own.token, points=[index], job=own.key, pid=own.pid,
                    submitted=own.submitted or 0,
                )  # fmt: skip
                found[index] = Place(array, 0, alone=own.key)
    return found


def _elsewhere(found: Mapping[int, str], places: Mapping[int, Place], *, now: float) -> dict[int, Standing]:
    """Points that earlier sweeps have, and this one has not taken over, as they stand there."""
    by_sweep: dict[Path, dict[int, int]] = {}
    for mine, name in found.items():
        if mine not in places:
            run = Path(name)
            by_sweep.setdefault(run.parent.parent, {})[mine] = int(run.name)
    standing_there: dict[int, Standing] = {}
    for path, indices in by_sweep.items():
        other = SweepDir(path)
        with contextlib.suppress(ConfigError, OSError):
            there = standings(other, other.read_about(), max(indices.values()) + 1, now=now)
            standing_there.update({mine: there[theirs] for mine, theirs in indices.items()})
    return standing_there


def places_of(arrays: Iterable[Array]) -> dict[int, Place]:
    """The last element that each point was given to."""
    found = {}
    for array in arrays:
        if array.refused:
            continue
        for number, index in enumerate(array.points):
            found[index] = Place(array, number // array.pack)
    return found


def standing(run: RunDir, place: Place | None, word: RunState | None, job: JobState | None, *, now: float) -> Standing:
    """One point, from its last word and its job. Pure."""
    name = place.name if place else ""
    if place is None:
        return _spoken(run, word, "") if word and word.final else Standing(Where.missing, run)
    if word and place.is_done(word):
        return _spoken(run, word, name)
    if not place.array.submitted:
        return Standing(Where.unknown, run, name, reason="whether it was submitted is not known")
    if job is None or job.stage is Stage.unknown:
        return _spoken(run, word, name) if word and _is_last(word) else Standing(Where.unknown, run, name)
    mine = word if word and place.has(word) else None
    if job.stage is Stage.pending:
        # A packed allocation that waits again goes on with what is left; the others have their last word.
        over = mine and mine.final and place.array.pack > 1 and mine.phase is Phase.failed
        return _spoken(run, mine, name) if over and mine else Standing(Where.queued, run, name, reason=job.reason)
    if job.stage is Stage.running:
        if mine and mine.final and mine.then not in (REQUEUED, QUEUED):
            return _spoken(run, mine, name)
        begun = mine is not None and mine.phase is Phase.running
        return Standing(
            Where.running if begun or place.is_alone else Where.queued,
            run, name, seconds=now - mine.started if begun and mine and mine.started else None,
        )  # fmt: skip
    return _ended(run, place, mine, job)


def _ended(run: RunDir, place: Place, word: RunState | None, job: JobState) -> Standing:
    """Of a job that is over; `word` is of this job."""
    name = place.name
    begun = word is not None and word.phase is not Phase.submitted
    if not begun and not place.is_alone and SLURM_WORDS.get(job.state) is not Where.cancelled:
        return Standing(Where.missing, run, name, reason=f"its allocation ended before its turn ({job.state})")
    if by_slurm := SLURM_WORDS.get(job.state):
        spoken = _spoken(run, word, name) if word and word.final else None
        # A job that was cancelled at its very end, or of which other points are at fault, leaves the last word.
        if (
            spoken
            and spoken.where is Where.failed
            and spoken.exit_code != EXIT_CLUSTER
            and by_slurm is not Where.memory
        ):
            return spoken
        reason = spoken.reason if spoken else f"Slurm: {job.state}"
        seconds = spoken.seconds if spoken else None
        return Standing(by_slurm, run, name, spoken.exit_code if spoken else job.exit_code, reason, seconds)
    if word and word.final:
        return _spoken(run, word, name)
    return Standing(Where.lost, run, name, job.exit_code, f"the job ended ({job.state}) without a word of the point")


def _spoken(run: RunDir, word: RunState, name: str) -> Standing:
    """By the run's own last word."""
    where = Where.done if word.phase is Phase.done else Where.failed
    if word.reason.startswith(OUT_OF_MEMORY):
        where = Where.memory
    if word.phase is Phase.interrupted:
        where = Where.timeout if Cause.time_limit.value in word.reason else Where.cancelled
    seconds = word.updated - word.started if word.started else None
    return Standing(where, run, word.allocation or name, word.exit_code, word.reason, seconds)


def _is_last(word: RunState) -> bool:
    return word.final and not word.then


def _ask(places: Mapping[int, Place], words: Mapping[int, RunState | None], *, uid: int) -> dict[Mark, JobState]:
    """The jobs of points that are not done."""
    todo = {
        place.mark: place
        for index, place in places.items()
        if place.array.submitted and not place.is_done(words.get(index))
    }
    on_slurm = {mark: place for mark, place in todo.items() if not place.array.pid}
    here = {place.array.number: place.array.pid for place in todo.values() if place.array.pid}
    alive = {number: is_alive(pid) for number, pid in here.items()}
    found = {
        mark: JobState(Stage.running if alive[mark[0]] else Stage.ended, "ended")
        for mark, place in todo.items()
        if place.array.pid
    }
    if not on_slurm:
        return found
    asked = {place.key: place.array.submitted for place in on_slurm.values()}
    jobs, held = job_states(asked, uid=uid, submitted=asked), tokens(uid=uid)
    lost = JobState(Stage.ended, PURGED)
    return found | {
        mark: lost if is_anothers(place.array, held) else jobs[place.key] for mark, place in on_slurm.items()
    }


def is_alive(pid: int) -> bool:
    """Whether the process that runs a sweep on this machine lives, and is not another one of its number."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and not CONTROLLERS.isdisjoint(process.cmdline())
    except psutil.Error:
        return False


def read_word(file: Path) -> RunState | None:
    """state.json; None if there is none that can be read."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        data: dict[str, Any] = json.loads(file.read_bytes())
        return RunState(**{**data, "phase": Phase(data["phase"])})
    return None


def counts(found: Iterable[Standing]) -> dict[Where, int]:
    """How many points are where, in a fixed order."""
    tally = Counter(each.where for each in found)
    return {where: tally[where] for where in ORDER if tally[where]}


def counts_text(tally: Mapping[Where, int]) -> str:
    return ", ".join(f"{number} {where.value}" for where, number in tally.items()) or "no points"
