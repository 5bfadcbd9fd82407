"""A limit on how long an environment may take."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TimeLimit(BaseException):
    """The time is up. Not an Exception, so that an environment that catches those does not swallow it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeLimit within the block once it has taken longer.

    Only in the main thread, and only between two steps of the interpreter: code in C that never returns is not
    interrupted, and other threads are not. Who runs worlds there watches `Worlds.at_work` from outside and ends the
    process. Another user's alarm goes on afterwards with what was left of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(number: int, frame: Any) -> None:
        raise TimeLimit

    begin = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - begin), 1e-3), interval)
