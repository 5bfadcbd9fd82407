"""The file of the seats of a training, by which a later start has the same ones."""

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.swarm.driver.seat import Seat

_log = logging.getLogger(__name__)


class Layout:
    """Names, worlds and attempts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.kept = True
        """False: the disk did not take the last one."""

    def read(self) -> list[Seat]:
        """Each with the next attempt."""
        return [
            Seat(each["name"], each["first_world"], each["worlds"], attempt=each["attempt"] + 1)
            for each in json.loads(self._path.read_text())
        ]

    def write(self, seats: Iterable[Seat]) -> None:
        """A full disk is no error: the seats go on, and it is to be tried again."""
        data = [
            {"name": seat.name, "first_world": seat.first_world, "worlds": seat.worlds, "attempt": seat.attempt}
            for seat in seats
        ]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(self._path, json.dumps(data))
            self.kept = True
        except OSError as error:
            if self.kept:
                _log.warning("%s cannot be written: %s", self._path, error)
            self.kept = False
