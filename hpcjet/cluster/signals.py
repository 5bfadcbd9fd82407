"""Signals that end a run, as an exception in the main thread, so that every `with` block closes in order."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


class Interrupted(BaseException):
    """A signal asked us to end. Not an Exception: only the top of a process may catch it."""

    def __init__(self, number: int) -> None:
        self.name = signal.Signals(number).name
        super().__init__(self.name)


@contextlib.contextmanager
def signals_raise(*numbers: int) -> Iterator[None]:
    """Within the block the first of these signals raises Interrupted; later ones are ignored, the end is under way."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    before = {number: signal.signal(number, on_signal) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
