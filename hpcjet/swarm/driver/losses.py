"""What was lost, and how long it took until experience came again."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcjet.swarm.watch import Loss, note_loss

_log = logging.getLogger(__name__)
WAITING = 1000
"""Kept while the disk is full."""


@dataclass
class Open:
    """A loss after which nothing new has come yet."""

    what: str
    at: float
    """Unix seconds."""
    fragments: int
    again: Callable[[], bool]
    """Whether what was lost works again."""


class Losses:
    """Each is written when new samples have come, or at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: list[Open] = []
        self._unwritten: deque[Loss] = deque(maxlen=WAITING)
        self._fails = False
        self.fragments = 0
        """That nobody will learn from, since the start."""

    @property
    def note(self) -> str:
        """What is awaited now, in a few words."""
        return f"goes on without {self._open[-1].what}" if self._open else ""

    def lost(self, what: str, again: Callable[[], bool], *, fragments: int = 0, at: float | None = None) -> None:
        """`at`: when it was, in Unix seconds, where that is not now."""
        _log.warning("lost: %s, and with it %d fragments", what, fragments)
        self.fragments += fragments
        self._open.append(Open(what, at or time.time(), fragments, again))

    def look(self) -> None:
        for each in [each for each in self._open if each.again()]:
            self._open.remove(each)
            seconds = time.time() - each.at
            _log.info("new samples %.1f s after the loss of %s", seconds, each.what)
            self._write(each, seconds)
        if self._unwritten:
            self._write_all()

    def end(self) -> None:
        """Those that nothing came after are written too."""
        for each in self._open:
            self._write(each, None)
        self._open = []
        self._write_all()

    def _write(self, each: Open, seconds: float | None) -> None:
        self._unwritten.append(
            Loss(time=each.at, what=each.what, lost_fragments=each.fragments, seconds_to_first_new_sample=seconds)
        )  # fmt: skip

    def _write_all(self) -> None:
        """Those that a full disk does not take come later."""
        try:
            while self._unwritten:
                note_loss(self._path, self._unwritten[0])
                self._unwritten.popleft()
            self._fails = False
        except OSError as error:
            if not self._fails:
                _log.warning("%s could not be written: %s", self._path.name, error)
            self._fails = True
