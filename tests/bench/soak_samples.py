"""What the kernel says of all processes of a run, again and again, and whether any of it grows.

Judged is the calm part: the second half of the updates, or less if something was killed and came back in it.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

RAY_PROGRAMS = {"gcs_server": "Ray's head", "raylet/raylet": "raylet", "ray.util.client.server": "Ray client server"}
OURS = {
    "hpcjet.drive": "driver", "submitit.core": "node agent", "submitit.local": "launcher of the job",
    "hpcjet.cluster.raynode": "ray start",
}  # fmt: skip
MUST = ("driver", "HostActor", "LearnerActor", "IndexActor", "PoolActor", "CacheActor", "ServerActor", "BookActor")
"""Kinds of which each process that lives at the end has to be judged."""
CALM_SHARE = 0.25
"""Of all updates that the calm part has to have."""
LIVED = 0.8
"""Of the calm part that a process has to live for its growth to be judged."""
POINTS = 200
"""For a slope, at most: each two of them make one."""
FEWEST = 40
"""Samples for one."""
STEP_MIB = 16.0
"""So much more than by its slope a process may take in the calm part, in a step, as by a first call of something."""
ENDS = 0.1
"""Of the samples of the calm part, whose median stands for its begin or its end."""


@dataclass(frozen=True)
class Seen:
    """One process at one time."""

    kib: int
    """Memory of its own (RssAnon): not the pages of the object store, which is bounded elsewhere."""
    files: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """All of them."""

    updates: int
    processes: dict[str, Seen]
    """By a name that has the process's number in it."""
    bytes_of: dict[str, int]
    """Of places that hold files."""
    checkpoints: int


@dataclass(frozen=True)
class Course:
    """How a process did."""

    name: str
    at: tuple[Seen, Seen, Seen]
    """When it was seen first, at the begin of the calm part (or later, if it began later), and at the end."""
    slope: float | None
    """Bytes for each update, in the calm part; None if it was not there for long enough."""
    updates: int
    """Of the calm part that it saw."""

    @property
    def kind(self) -> str:
        return self.name.rpartition(" ")[0]


def of_tree(root: int) -> Iterator[tuple[str, Seen]]:
    """All below this process that still live."""
    for process in psutil.Process(root).children(recursive=True):
        try:
            name = f"{name_of(' '.join(process.cmdline()) or process.name())} {process.pid}"
            with process.oneshot():
                yield name, Seen(anonymous_kib(process.pid), process.num_fds(), process.num_threads())
        except (psutil.Error, OSError, StopIteration):
            continue


def name_of(words: str) -> str:
    """Ray gives its workers the name of the actor, and of what it does just now."""
    if title := re.match(r"ray::(\w+)", words):
        return title[1]
    return next((name for part, name in (RAY_PROGRAMS | OURS).items() if part in words), words[:30])


def anonymous_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def size_of(folder: Path) -> int:
    """Bytes of files; those that go meanwhile, also with their folder, do not count."""
    total = 0
    for where, _, names in os.walk(folder):  # unlike rglob it passes over a folder that is gone
        for name in names:
            with suppress(OSError):
                total += (Path(where) / name).lstat().st_blocks * 512
    return total


def calm_part(samples: Sequence[Sample], mended_at: int) -> list[Sample]:
    """Those in which growth is judged; `mended_at`: updates when the last kill had been recovered from."""
    begin = max(samples[-1].updates / 2, mended_at)
    return [each for each in samples if each.updates >= begin]


def courses(samples: Sequence[Sample], mended_at: int) -> list[Course]:
    """Of those processes that lived at the end."""
    calm = calm_part(samples, mended_at)
    whole = calm[-1].updates - calm[0].updates
    found = []
    for name in sorted(samples[-1].processes):
        first = next(each.processes[name] for each in samples if name in each.processes)
        late = [(each.updates, each.processes[name]) for each in calm if name in each.processes]
        span = late[-1][0] - late[0][0]
        judged = len(late) >= FEWEST and whole > 0 and span >= LIVED * whole
        slope = slope_of([(updates, 1024 * one.kib) for updates, one in late]) if judged else None
        found.append(Course(name, (first, _middle(late, begin=True), _middle(late, begin=False)), slope, span))
    return found


def _middle(late: Sequence[tuple[int, Seen]], *, begin: bool) -> Seen:
    """Of the first or last samples, so that a single one that is out of the way does not matter."""
    number = max(1, round(ENDS * len(late)))
    these = [one for _, one in (late[:number] if begin else late[-number:])]
    return Seen(*(round(median(getattr(one, what) for one in these)) for what in ("kib", "files", "threads")))


def slope_of(course: Sequence[tuple[int, float]]) -> float:
    """The lesser of those of both halves: what goes on growing does so in both, a single step is in one of them."""
    middle = len(course) // 2
    return min(theil_sen(course[:middle]), theil_sen(course[middle:]))


def theil_sen(course: Sequence[tuple[int, float]]) -> float:
    """The median of the slopes between any two points."""
    points = np.array(course, float)[:: -(-len(course) // POINTS)]
    first, second = np.triu_indices(len(points), 1)
    run, rise = (points[second] - points[first]).T
    return float(np.median(rise[run > 0] / run[run > 0])) if (run > 0).any() else 0.0


def table(found: Sequence[Course]) -> str:
    """As Markdown."""
    lines = [
        "| process | MiB at first | begin of the calm part | end | bytes for each update | files | threads |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        mib = " | ".join(f"{one.kib / 1024:.1f}" for one in each.at)
        slope = "began late" if each.slope is None else f"{each.slope:.0f}"
        files, threads = (" → ".join(str(getattr(one, what)) for one in each.at[1:]) for what in ("files", "threads"))
        lines.append(f"| {each.kind} | {mib} | {slope} | {files} | {threads} |")
    return "\n".join(lines)


def places(samples: Sequence[Sample]) -> str:
    """What lies on disk, as Markdown."""
    first, last = samples[0], samples[-1]
    half = next(each for each in samples if each.updates >= last.updates / 2)
    lines = ["| on disk | MiB at first | half of the updates | end |", "|---|---|---|---|"]
    for place in first.bytes_of:
        mib = " | ".join(f"{each.bytes_of[place] / 2**20:.1f}" for each in (first, half, last))
        lines.append(f"| {place} | {mib} |")
    return "\n".join(lines)


def complaints(samples: Sequence[Sample], mended_at: int, bound: float, more: int, checkpoints: int) -> list[str]:
    """What grows: memory by more than `bound` bytes for each update, open files and threads by more than `more`.

    And what could not be judged.
    """
    calm, all_updates = calm_part(samples, mended_at), samples[-1].updates
    found = []
    if len(calm) < FEWEST or calm[-1].updates - calm[0].updates < CALM_SHARE * all_updates:
        found.append(
            f"only {calm[-1].updates - calm[0].updates if calm else 0} of {all_updates} updates, in "
            f"{len(calm)} samples, were made after the last kill was recovered from: too few to judge growth"
        )
    else:
        found += [what for each in courses(samples, mended_at) for what in _growth(each, bound, more)]
    most = max(each.checkpoints for each in samples)
    if most > checkpoints:
        found.append(f"{most} checkpoints were there at a time, more than {checkpoints}")
    return found


def _growth(course: Course, bound: float, more: int) -> Iterator[str]:
    name, (_, before, after) = course.name, course.at
    if course.slope is None:
        if course.kind in MUST:
            yield f"{name}: it began late, so its growth was not judged"
        return
    if course.slope > bound:
        yield f"{name}: {course.slope:.0f} bytes for each update, more than {bound:g}"
    mib = (after.kib - before.kib) / 1024
    if mib > bound * course.updates / 2**20 + STEP_MIB:
        yield f"{name}: {mib:.0f} MiB more at the end of the calm part"
    for what in ("files", "threads"):
        if getattr(after, what) > getattr(before, what) + more:
            yield f"{name}: {what} rose from {getattr(before, what)} to {getattr(after, what)} in the calm part"
