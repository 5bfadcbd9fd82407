"""The end of an engine with all that it started, and with what it keeps in shared memory."""

import contextlib
import time

import psutil

from hpcjet.cluster.child import Child, kill_session, session_members

_TRACKER = "multiprocessing.resource_tracker"
_TIDY_S = 5.0


def end_engine(child: Child, *, grace_s: float) -> None:
    """End its session: SIGTERM to the engine if there is some grace, then SIGKILL for all that is left.

    Python's resource tracker is let live a moment longer: once nobody is left that it serves, it removes the segments
    of shared memory and the semaphores that a killed engine leaves in /dev/shm (with vLLM 0.32 some 400 MB each time),
    and ends.
    """
    if grace_s:
        child.interrupt()
        child.wait(grace_s)
    trackers = [pid for pid in session_members(child.pid) if _is_tracker(pid)]
    kill_session(child.pid, spare=trackers)
    deadline = time.monotonic() + _TIDY_S
    while trackers and session_members(child.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.stop(0)


def session_cpu_s(leader: int) -> float:
    """CPU time of the processes of a session: what hangs has used little, and so has what others kept from running."""
    total = 0.0
    for pid in session_members(leader):
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            total += times.user + times.system
    return total


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(_TRACKER in word for word in psutil.Process(pid).cmdline())
    return False
