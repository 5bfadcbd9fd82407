"""One thread that starts all sandboxes of this process.

bwrap --die-with-parent asks the kernel to kill it when the *thread* that started it ends, so a sandbox must not be
started by a thread that may end before it. This one lives as long as the process. Beside it stands the guard, for what
the kernel does not end with the thread (see hpcjet.sandbox.orphans).
"""

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any, cast

from hpcjet.sandbox.orphans import start_guard

_Job = tuple["Future[subprocess.Popen[bytes]]", list[str], frozenset[int] | None, dict[str, Any]]
_lock = threading.Lock()
_jobs: "queue.SimpleQueue[_Job]" = queue.SimpleQueue()
_owner_pid = 0


def spawn(argv: list[str], *, cpus: frozenset[int] | None = None, **options: Any) -> "subprocess.Popen[bytes]":
    """subprocess.Popen, called in the spawner thread, on some CPUs only. Raises what Popen raises."""
    _ensure_thread()
    future: Future[subprocess.Popen[bytes]] = Future()
    _jobs.put((future, argv, cpus, options))
    return future.result()


def _ensure_thread() -> None:
    """Raises OSError if no process can be started."""
    global _jobs, _owner_pid
    if _owner_pid == os.getpid():
        return
    with _lock:
        if _owner_pid != os.getpid():  # the first call, or the first one after a fork
            start_guard()
            _jobs = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(_jobs,), name="hpcjet-spawner", daemon=True).start()
            _owner_pid = os.getpid()


def _serve(jobs: "queue.SimpleQueue[_Job]") -> None:
    while True:
        future, argv, cpus, options = jobs.get()
        try:
            with _only_on(cpus):
                future.set_result(cast("subprocess.Popen[bytes]", subprocess.Popen(argv, **options)))
        except BaseException as error:  # whatever it is belongs to the caller, and this thread must live on
            future.set_exception(error)
        del future  # keeps no sandbox alive while waiting for the next


@contextlib.contextmanager
def _only_on(cpus: frozenset[int] | None) -> Iterator[None]:
    """What this thread starts inherits its CPUs, so there is no moment in which it runs elsewhere."""
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
