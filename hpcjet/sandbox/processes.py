"""Process trees, seen from the host through /proc."""

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def children(pid: int) -> list[int]:
    """Direct children of all threads of a process; empty if it is gone."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 (called often; Path.iterdir is several times slower)
        for thread in threads:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def descendants(pid: int, *, spare: Iterable[int] = ()) -> list[int]:
    """All processes below `pid`, parents first, without the trees that `spare` are the roots of."""
    skipped = set(spare)
    found: list[int] = []
    waiting = [pid]
    while waiting:
        new = [child for child in children(waiting.pop()) if child not in skipped]
        skipped.update(new)
        found.extend(new)
        waiting.extend(new)
    return found


def state(pid: int) -> str:
    """The one-letter state of a process; empty if it is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text("latin-1").rpartition(")")[2].split(maxsplit=1)[0]
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return ""


def kill(pid: int) -> None:
    """Send SIGKILL; a process that is gone already is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_below(pid: int, *, spare: Iterable[int] = ()) -> int:
    """Kill what lives below `pid` now, and count it; call it again until it answers 0, since a dying tree may fork."""
    alive = [child for child in descendants(pid, spare=spare) if state(child) not in ("", "Z", "X")]
    for child in alive:
        kill(child)
    return len(alive)
