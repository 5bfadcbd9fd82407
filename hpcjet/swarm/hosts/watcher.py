"""Watches worlds from a thread of its own, since a call of theirs may never return."""

import ctypes
import faulthandler
import threading
import time
from collections.abc import Callable

from hpcjet.swarm.hosts.seat import Seat
from hpcjet.swarm.hosts.spec import HostSpec
from hpcjet.swarm.worlds import Worlds
from hpcjet.swarm.worlds.deadline import TimeLimit

START_S = 300.0
"""So long worlds may take to be made; libraries of a shared file system are loaded then."""
GRACE_S = 5.0
"""So much later than its limit an environment that cannot be interrupted is given up."""


class Watcher:
    """Ends calls of environments that take longer than their limit, in three ways.

    - Python code is interrupted: TimeLimit is raised in the thread that steps, and the world alone has failed.
    - Code in C that does not come back is given up: `hang` is told, with world and step.
    - Code in C that does not even let other threads run: a timer without Python prints where every thread is, to
      standard error, and ends the process.
    """

    seat: Seat | None = None
    """To be set once there is one."""

    def __init__(
        self, spec: HostSpec, limit_s: float, hang: Callable[[str], None], *, grace_s: float = GRACE_S,
        start_s: float = START_S,
    ) -> None:  # fmt: skip
        self._spec, self._limit_s, self._hang, self._grace_s = spec, limit_s, hang, grace_s
        self._start_s = max(start_s, limit_s)
        self._began = time.monotonic()
        self._thread = threading.get_ident()
        self._stop = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="watcher", daemon=True)

    def __enter__(self) -> "Watcher":
        """To be entered by the thread that makes and steps the worlds."""
        self._thread, self._began = threading.get_ident(), time.monotonic()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._watching.join()

    def _watch(self) -> None:
        every = min(1.0, self._limit_s / 4)
        interrupted: tuple[str, str] | None = None
        while not self._stop.wait(every):
            limit_s = self._start_s if self.seat is None else self._limit_s
            faulthandler.dump_traceback_later(every + limit_s + 2 * self._grace_s, exit=True)
            who, what, seconds = self._at_work()
            if seconds > limit_s + self._grace_s:
                self._hang(f"{who}, {what}: no answer for {seconds:.0f} s")
                break
            if seconds <= limit_s:
                interrupted = None
            elif interrupted != (who, what):
                interrupted = who, what
                self._interrupt()
        faulthandler.cancel_dump_traceback_later()

    def _at_work(self) -> tuple[str, str, float]:
        """Who is at work, in which call, and for how many seconds."""
        now, first, seat = time.monotonic(), self._spec.first_world, self.seat
        all_of_them = f"worlds {first} to {first + self._spec.worlds - 1}"
        if seat is None:
            return all_of_them, "start", now - self._began
        if isinstance(seat.vector, Worlds):
            number, call, seconds = seat.vector.at_work or (0, "", 0.0)
            return f"world {number}", call, seconds
        call, since = seat.since or ("", now)
        return all_of_them, call, now - since

    def _interrupt(self) -> None:
        """Only within a call of an environment: elsewhere nobody expects it."""
        if self.seat is not None and isinstance(self.seat.vector, Worlds) and self.seat.vector.at_work:
            thread = ctypes.c_ulong(self._thread)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TimeLimit))
