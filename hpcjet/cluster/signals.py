"""Signals that end a run, as an exception in the main thread, so that every `with` block closes in order."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from types import FrameType


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception: only the top of a process may catch it."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        self.at = time.time()
        super().__init__(self.name)


def at_once(number: int) -> float:
    return 0.0


@contextlib.contextmanager
def signals_raise(*numbers: int, delay_s: Callable[[int], float] = at_once) -> Iterator[None]:
    """Within the block the first of these signals raises Interrupted, `delay_s(number)` seconds after it came.

    One that is due earlier overtakes one that came earlier. Once it is raised, later ones are ignored: the end is under
    way. SIGALRM is used for the delay.
    """
    due: tuple[float, int] | None = None

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal due
        if number != signal.SIGALRM:
            wanted = (time.monotonic() + delay_s(number), number)
            due = min(due, wanted) if due else wanted
        if due is None:
            return
        left_s = due[0] - time.monotonic()
        if left_s > 0:
            signal.setitimer(signal.ITIMER_REAL, left_s)
            return
        for each in caught:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(due[1])

    caught = (*numbers, signal.SIGALRM)
    before = {number: signal.signal(number, on_signal) for number in caught}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def signals_ignored(*numbers: int) -> Iterator[None]:
    """Within the block these signals do nothing, for a few last words."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
