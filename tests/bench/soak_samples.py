"""What the kernel says of all processes of a run, again and again, and whether any of it grows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

RAY_PROGRAMS = {"gcs_server": "Ray's head", "raylet/raylet": "raylet", "ray.util.client.server": "Ray client server"}
OURS = {
    "hpcjet.drive": "driver", "submitit.core": "node agent", "submitit.local": "launcher of the job",
    "hpcjet.cluster.raynode": "ray start",
}  # fmt: skip
PART = 0.8
"""Of the second half that a process has to live for its growth to be judged."""
WINDOWS = 8
"""Of the second half, of whose slopes the median counts: a single step, such as a first call of something, is none."""
STEPS_MIB = 16.0
"""So much more than by its slope a process may take in the second half."""


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
    """At the start, at half of the updates, and at the end."""
    slope: float
    """Bytes for each update, in the second half."""
    updates: int
    """Of the second half that it saw."""


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
    """Bytes of files; those that go meanwhile do not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except OSError:
            continue
    return total


def courses(samples: Sequence[Sample]) -> list[Course]:
    """Of those processes that lived at the end; those that began late in the second half have no slope (nan)."""
    half = samples[-1].updates / 2
    found = []
    for name in sorted(samples[-1].processes):
        seen = [(each.updates, each.processes[name]) for each in samples if name in each.processes]
        late = [(updates, one.kib) for updates, one in seen if updates >= half]
        spans = late[-1][0] - late[0][0]
        judged = len(late) >= 3 * WINDOWS and spans >= PART * half
        slope = slope_of(late) if judged else float("nan")
        middle = next(one for updates, one in seen if updates >= half)
        found.append(Course(name, (seen[0][1], middle, seen[-1][1]), slope, spans))
    return found


def slope_of(course: Sequence[tuple[int, int]]) -> float:
    """Bytes for each update, of (updates, KiB)."""
    parts = [part for part in np.array_split(np.array(course, float), WINDOWS) if np.ptp(part[:, 0]) > 0]
    return float(np.median([np.polyfit(part[:, 0], part[:, 1], 1)[0] for part in parts])) * 1024


def table(found: Sequence[Course]) -> str:
    """As Markdown."""
    lines = [
        "| process | MiB at the start | half | end | bytes per update | files | threads |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in found:
        mib = " | ".join(f"{one.kib / 1024:.1f}" for one in each.at)
        slope = "began late" if np.isnan(each.slope) else f"{each.slope:.0f}"
        files, threads = (" → ".join(str(getattr(one, what)) for one in each.at[1:]) for what in ("files", "threads"))
        lines.append(f"| {each.name.rpartition(' ')[0]} | {mib} | {slope} | {files} | {threads} |")
    return "\n".join(lines)


def complaints(samples: Sequence[Sample], bound: float, more: int, checkpoints: int) -> list[str]:
    """What grows: memory by more than `bound` bytes for each update, open files and threads by more than `more`."""
    found = []
    for each in courses(samples):
        if each.slope > bound:
            found.append(f"{each.name}: {each.slope:.0f} bytes per update, more than {bound:g}")
        mib = (each.at[2].kib - each.at[1].kib) / 1024
        if mib > bound * each.updates / 2**20 + STEPS_MIB:
            found.append(f"{each.name}: {mib:.0f} MiB more in the second half")
        for what in ("files", "threads"):
            before, after = getattr(each.at[1], what), getattr(each.at[2], what)
            if after > before + more:
                found.append(f"{each.name}: {what} rose from {before} to {after} in the second half")
    most = max(each.checkpoints for each in samples)
    if most > checkpoints:
        found.append(f"{most} checkpoints were there at a time, more than {checkpoints}")
    return found
