"""One thread per process that watches all sandboxes: their memory and processes, and output that nobody waits for."""

import contextlib
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcjet.sandbox.meter import ON_DISK, Meter
from hpcjet.sandbox.processes import Usage

log = logging.getLogger(__name__)

TICK_S = 0.5
"""Between two looks at a sandbox. A command may exceed its limit for that long."""
ALERT_TICK_S = 0.1
"""The same for a sandbox that uses more than half of its memory or processes."""
DISK_TICK_S = 2.0
"""Between two walks through what sandboxes have written."""
DISK_SHARE = 0.05
"""Part of one CPU that the walks may take; with many files they come less often.

In seconds of CPU: on a node that has none left a short walk takes long, and limits hold there too.
"""
DORMANT = math.inf
"""The next look at a sandbox in which nothing runs: a thousand of them cost nothing."""
KILL_S = 2.0
DRAIN_BYTES = 4 << 20
"""Per pipe and tick: a process in the background that writes without end must not keep this thread busy."""


@dataclass(eq=False)
class Watched:
    """What the supervisor knows of one sandbox."""

    meter: Meter
    measure: Callable[[], Usage]
    kill: Callable[[], bool]
    running: bool = False
    """Whether a command runs now."""
    exceeded: str = ""
    """The limit that ended the running command."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held for a look and the kill that may follow, which must not meet the next command."""
    next_look: float = 0.0
    written: bool = False
    """Whether something ran since the last look at the disk."""
    pipes: dict[int, int] = field(default_factory=dict)
    """Descriptors to empty, with the bytes left to read in this tick."""


class Supervisor:
    """Use `supervisor()` to get the one of this process."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._pipes: dict[int, Watched] = {}
        self._epoll = select.epoll()
        self._walking = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        threading.Thread(target=self._serve, name="hpcjet-supervisor", daemon=True).start()

    def begin(self, item: Watched) -> None:
        """A command starts."""
        with item.lock:
            item.exceeded = ""
            item.running = item.written = True
            item.meter.begin()
            if item.next_look == DORMANT:
                item.next_look = time.monotonic() + TICK_S
                self._wake()

    def finish(self, item: Watched) -> str:
        """The command has ended; the limit that it exceeded, or nothing."""
        with item.lock:
            item.running = False
            held = item.meter.held()
            limit = item.exceeded or held
        if limit in ON_DISK:
            item.meter.settle()
        return limit

    def watch(self, item: Watched) -> None:
        item.next_look = time.monotonic() + TICK_S
        with self._lock:
            self._watched.append(item)
            if len(self._watched) == 1:
                self._wake()
            if item.meter.watches_disk and not self._walking:
                self._walking = True
                threading.Thread(target=self._walk, name="hpcjet-disk", daemon=True).start()

    def forget(self, item: Watched) -> None:
        """After this, nothing of the sandbox is touched any more."""
        with item.lock, self._lock:
            with contextlib.suppress(ValueError):
                self._watched.remove(item)
            for pipe in list(item.pipes):
                self._drop(pipe)

    def empty(self, item: Watched, pipe: int) -> None:
        """Take a pipe and read it to its end, so that a process in the background neither blocks nor gets SIGPIPE."""
        with self._lock:
            item.pipes[pipe] = DRAIN_BYTES
            self._pipes[pipe] = item
            self._epoll.register(pipe, select.EPOLLIN)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _drop(self, pipe: int) -> None:
        self._epoll.unregister(pipe)
        os.close(pipe)
        del self._pipes[pipe].pipes[pipe]
        del self._pipes[pipe]

    def _serve(self) -> None:
        refill = time.monotonic() + TICK_S
        while True:
            wait_s = self._time_to_next_look()
            for pipe, _ in self._epoll.poll(wait_s):
                self._read(pipe)
            now = time.monotonic()
            if now >= refill:
                self._refill()
                refill = now + TICK_S
            for item in [item for item in list(self._watched) if item.next_look <= now]:
                with item.lock:
                    self._look(item)

    def _time_to_next_look(self) -> float | None:
        with self._lock:
            if not self._watched:
                return None
            first = min(item.next_look for item in self._watched)
        return None if first == DORMANT else max(0.001, first - time.monotonic())

    def _read(self, pipe: int) -> None:
        if pipe == self._wake_read:
            os.read(pipe, 64)
            return
        with self._lock:
            item = self._pipes.get(pipe)
            if item is None:  # forgotten since the poll
                return
            try:
                data = os.read(pipe, 1 << 16)
            except BlockingIOError:
                return
            item.pipes[pipe] -= len(data)
            if not data:
                self._drop(pipe)
            elif item.pipes[pipe] <= 0:
                self._epoll.modify(pipe, 0)

    def _refill(self) -> None:
        with self._lock:
            for pipe, item in self._pipes.items():
                if item.pipes[pipe] <= 0:
                    self._epoll.modify(pipe, select.EPOLLIN)
                item.pipes[pipe] = DRAIN_BYTES

    def _walk(self) -> None:
        """The disk thread: ends when there is nothing to watch, and is started again."""
        while True:
            begin, begin_cpu = time.monotonic(), time.thread_time()
            for item in list(self._watched):
                if item.meter.watches_disk and item.written:
                    pids = item.measure().pids
                    item.written = item.running or bool(pids)
                    item.meter.look_at_disk(pids)
            took_s, cpu_s = time.monotonic() - begin, time.thread_time() - begin_cpu
            time.sleep(max(DISK_TICK_S, cpu_s / DISK_SHARE, took_s))  # a slow disk is left alone half of the time
            with self._lock:
                if not self._watched:
                    self._walking = False
                    return

    def _look(self, item: Watched) -> None:
        usage = item.measure()
        usage.take_first_when_memory_runs_out()
        exceeded, share = item.meter.look(usage)
        item.next_look = time.monotonic() + (ALERT_TICK_S if share > 0.5 else TICK_S)
        if not (item.running or usage.pids):
            item.next_look = DORMANT
        if not exceeded:
            return
        log.warning("a sandbox is over its limit of %s; its commands are killed", exceeded)
        if item.running:
            item.exceeded = exceeded
        deadline = time.monotonic() + KILL_S
        while item.kill() and time.monotonic() < deadline:
            time.sleep(0.001)


_supervisor: Supervisor | None = None
_starting = threading.Lock()


def supervisor() -> Supervisor:
    """The supervisor of this process; a forked child gets its own."""
    global _supervisor
    with _starting:
        if _supervisor is None or _supervisor.owner_pid != os.getpid():
            _supervisor = Supervisor()
        return _supervisor
