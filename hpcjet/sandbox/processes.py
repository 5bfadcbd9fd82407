"""Process trees, seen from the host through /proc."""

import contextlib
import os
import signal
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
LARGE_BYTES = 64 << 20
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_CPU_FIELDS = slice(11, 15)
"""In /proc/PID/stat behind the name: user and system time of the process, and of the children that it waited for."""


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process; empty if it is gone."""
    return _family(pid)[1]


def _family(pid: int) -> tuple[int, list[int]]:
    """The number of threads of a process, and its children."""
    found: list[int] = []
    threads: list[str] = []
    try:
        # Not Path.iterdir, here and below: this runs per process and tick of the watchdog, and is several times faster.
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        if threads and not (PROC / "self/task" / str(os.getpid()) / "children").exists():
            return len(threads), _children_by_scan(pid)
    return len(threads), found


def _children_by_scan(pid: int) -> list[int]:
    """For kernels without CONFIG_PROC_CHILDREN: ask every process for its parent."""
    return [int(path.name) for path in PROC.iterdir() if path.name.isdigit() and _stat(int(path.name), 1) == str(pid)]


def descendants(pid: int, *, spare: Collection[int] = ()) -> dict[int, int]:
    """The processes below `pid` with their numbers of threads; without the trees that `spare` are the roots of."""
    skipped = set(spare)
    found: dict[int, int] = {}
    waiting = children(pid)
    while waiting:
        next_ = waiting.pop()
        if next_ not in skipped:
            skipped.add(next_)
            found[next_], below = _family(next_)
            waiting.extend(below)
    return found


def _stat(pid: int, field: int) -> str:
    """A field of /proc/PID/stat, counted from behind the name, which may hold blanks and brackets."""
    try:
        return (PROC / str(pid) / "stat").read_text("latin-1").rpartition(")")[2].split()[field]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_below(init: int, *, spare: Collection[int] = ()) -> bool:
    """Kill what is below `init`, the process 1 of a sandbox; call it again until it answers that nothing was left.

    "Nothing found to kill" would not do: a process that forks and exits in turns slips through the search. But orphans
    pass to process 1 before their parent is gone, so without a child of it nothing lives.
    """
    left = not set(children(init)) <= set(spare)
    if left:
        for pid in descendants(init, spare=spare):
            kill(pid)
    return left


@dataclass(frozen=True)
class Usage:
    """What the processes below one take up."""

    threads: int
    pids: tuple[int, ...]

    def rss_bytes(self) -> int:
        """Resident memory, pages that several processes share counted for each. Cheap."""
        return sum(_rss_bytes(pid) for pid in self.pids)

    def take_first_when_memory_runs_out(self) -> None:
        """Ask the kernel to kill these, if large, before engines and Ray when the node or the job has no memory left.

        Not at the start of a sandbox: the server in it cannot be written to (see server_script), and a wrapper would
        cost a millisecond. The processes that matter live long enough to be seen.
        """
        for pid in self.pids:
            if _rss_bytes(pid) > LARGE_BYTES:
                with contextlib.suppress(OSError):
                    (PROC / str(pid) / "oom_score_adj").write_text("1000")

    def pss_bytes(self) -> int:
        """Resident memory, shared pages counted once. The kernel walks the page tables for it."""
        return sum(_pss_bytes(pid) for pid in self.pids)


def usage(pid: int) -> Usage:
    found = descendants(pid)
    return Usage(sum(found.values()), tuple(found))


def _rss_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * PAGE_BYTES
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _pss_bytes(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_bytes().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    except PermissionError:  # a program that may be executed but not read
        return _rss_bytes(pid)
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:"))


def cpu_seconds(root: int, pids: Collection[int]) -> float:
    """CPU time of everything that ever ran below `root`: the living `pids`, and who was waited for since."""
    ticks = 0
    for pid in (root, *pids):
        with contextlib.suppress(OSError, ValueError):
            text = (PROC / str(pid) / "stat").read_text("latin-1")
            ticks += sum(map(int, text.rpartition(")")[2].split()[_CPU_FIELDS]))
    return ticks / TICKS_PER_S
