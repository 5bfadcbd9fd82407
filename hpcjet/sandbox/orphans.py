"""Ending what is left of sandboxes whose owner was killed while they were set up.

Process 1 of a bubblewrap sandbox first sleeps on an eventfd, until the outer process, which stays outside, has given up
its rights. If that one is killed before, as the kernel does when the owner dies, nobody writes to the eventfd any more;
process 1 holds it open itself, and asks to die with its parent only later. So it would sleep for ever.

Therefore whatever opens a sandbox carries a mark in its environment. It names the owner and this one start, and is gone
with the environment once the command server runs: commands never have it. A guard, which outlives the owner, ends all
with the owner's mark; the owner does so for a start that failed; and the next process that opens sandboxes on the node
does it for owners whose guard was killed too.

The guard runs this file on a bare interpreter, so it imports nothing of this project. Argument: the owner.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

VARIABLE = "HPCJET_SANDBOX_START"
END_S = 10.0
PAUSE_S = 0.02
_GUARD = 'read -r _; exec "$@"'
"""A shell waits, since an interpreter would take ten times its memory, for as long as the owner lives."""
_count = itertools.count()
_alive = -1
"""The guard waits until this is closed, with this process at the latest."""


def new_mark() -> dict[str, str]:
    """Variables for a program that opens a sandbox: a mark that is given once."""
    return {VARIABLE: f"{_owner(os.getpid())}:{next(_count)}"}


@functools.cache
def _owner(pid: int) -> str:
    """A living process, unlike all others that have or had its id: process namespace, id, and when it began."""
    return f"{_namespace()}:{pid}:{_began(pid)}"


def start_guard() -> None:
    """Start the process that ends what this one leaves. Raises OSError.

    In a session of its own, so that it is not ended with this one's; it goes by itself.
    """
    global _alive
    waits, alive = os.pipe2(os.O_CLOEXEC)
    # The interpreter's libraries may come from an environment module.
    env = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    program = [sys.executable, "-I", "-S", "-B", __file__, _owner(os.getpid())]
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "hpcjet-guard", *program], stdin=waits, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd="/", env=env, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(alive)
        raise
    finally:
        os.close(waits)
    guard.returncode = 0  # it outlives this process, and Python is not to warn of that
    _alive = alive


def _let_go() -> None:
    """In a forked process: the guard waits for the end of its parent, not for that of this one."""
    global _alive
    if _alive >= 0:
        os.close(_alive)
        _alive = -1
    _owner.cache_clear()


os.register_at_fork(after_in_child=_let_go)


def soon(end: Callable[..., None], *arguments: object) -> None:
    """Call one of these in a thread that nobody waits for: who looks at a process that hangs in a file system hangs
    with it. What is not done when this process ends is left to its guard, or to the next probe.
    """
    with contextlib.suppress(RuntimeError):  # no room for a thread
        threading.Thread(target=end, args=arguments, name="hpcjet-orphans", daemon=True).start()


def end_start(mark: dict[str, str]) -> None:
    """End what one start of ours left."""
    _end(lambda found: found == mark[VARIABLE])


def end_starts_of(owner: str) -> None:
    """End what an owner that is gone left, its open sandboxes included."""
    _end(lambda found: found.rpartition(":")[0] == owner)


def end_abandoned() -> None:
    """The same for all owners on this node that are gone."""
    _end(_abandoned_here())


def abandoned() -> list[int]:
    """The processes that end_abandoned would end."""
    return _found(_abandoned_here())


def _abandoned_here() -> Callable[[str], bool]:
    namespace = str(_namespace())
    return lambda mark: _is_abandoned(mark, namespace)


def _is_abandoned(mark: str, namespace: str) -> bool:
    """Whether the owner is gone for certain: ids of another process namespace say nothing here."""
    try:
        where, pid, began, _ = mark.split(":")
        owner = int(pid)
        if where != namespace or owner <= 0:
            return False
        os.kill(owner, 0)
        return _began(owner) not in ("", began)  # empty: hidden from us, or gone just now
    except ProcessLookupError:
        return True
    except (ValueError, OverflowError, PermissionError):
        return False


def _end(chosen: Callable[[str], bool]) -> None:
    """SIGKILL all with a mark that is chosen, until none is found: one of them may just have forked another."""
    deadline = time.monotonic() + END_S
    while _kill(chosen) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)


def _found(chosen: Callable[[str], bool]) -> list[int]:
    # One directory with a line per process, by the quickest call.
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and chosen(_mark(name))]  # noqa: PTH208


def _kill(chosen: Callable[[str], bool]) -> int:
    found = _found(chosen)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _kill_one(pid, chosen)
    return len(found)


def _kill_one(pid: int, chosen: Callable[[str], bool]) -> None:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    except OSError:  # before Linux 5.3; who sleeps for ever does not pass on its id
        os.kill(pid, signal.SIGKILL)
        return
    try:
        if chosen(_mark(str(pid))):  # else a stranger has the id by now
            signal.pidfd_send_signal(watched, signal.SIGKILL)
    finally:
        os.close(watched)


def _mark(pid: str) -> str:
    """The mark of a process; empty if it has none, is gone, or is not ours to look into."""
    prefix = f"{VARIABLE}=".encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            data = file.read()
    except OSError:
        return ""
    marks = [part for part in data.split(b"\0") if part.startswith(prefix)] if prefix in data else []
    return os.fsdecode(marks[0].removeprefix(prefix)) if marks else ""


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116


def _began(pid: int) -> str:
    """When a process began, in clock ticks since the machine did; empty if that cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


if __name__ == "__main__":
    end_starts_of(sys.argv[1])
