"""What was lost, and how long it took until experience came again."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcjet.swarm.watch import Loss, note_loss

_log = logging.getLogger(__name__)


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

    def end(self) -> None:
        """Those that nothing came after are written too."""
        for each in self._open:
            self._write(each, None)
        self._open = []

    def _write(self, each: Open, seconds: float | None) -> None:
        note_loss(
            self._path,
            Loss(
                time=each.at, what=each.what, lost_fragments=each.fragments, seconds_to_first_new_sample=seconds
            ),
        )  # fmt: skip
