"""What is told of each update, in files: metrics.csv and TensorBoard's."""

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hpcjet.swarm.row import Row
from hpcjet.swarm.watch.csv_log import CsvLog
from hpcjet.swarm.watch.event_files import EventFiles
from hpcjet.swarm.watch.files import SwarmFiles

_log = logging.getLogger(__name__)
WAITING_ROWS = 10_000
"""Kept while the disk is full."""


class MetricsLog:
    """Writes into `folder` (RUN/swarm). Nothing that happens to the disk ends the training: it is told once, rows wait
    in memory, and come later if there is room again.

    A row whose version is not beyond that of the last one takes the place of all rows from there on: training went
    back to a checkpoint. `rewind` drops them at once.
    """

    def __init__(self, folder: Path) -> None:
        files = SwarmFiles(folder)
        self._csv, self._events = CsvLog(files.metrics), EventFiles(files.tensorboard)
        self._waiting: deque[Row] = deque(maxlen=WAITING_ROWS)
        self._told: set[str] = set()
        self._last: float | None = None
        if self._try("metrics.csv", self._csv.open):
            self._last = self._csv.version

    def write(self, row: Row) -> None:
        """Add the row of an update; it needs `version`."""
        if self._last is not None and float(row["version"]) <= self._last:
            self.rewind(float(row["version"]) - 1)
        self._last = float(row["version"])
        self._waiting.append(dict(row))
        if self._try("metrics.csv", self._write_waiting):
            self._waiting.clear()
        self._try("TensorBoard's files", lambda: self._events.write(row))

    def rewind(self, version: float) -> int:
        """Training goes on from here: rows beyond this version are dropped. The version of the last one then, or -1."""
        self._last = version
        self._waiting = deque((row for row in self._waiting if float(row["version"]) <= version), WAITING_ROWS)
        self._try("metrics.csv", lambda: self._csv.rewind(version))
        self._try("TensorBoard's files", lambda: self._events.rewind(version))
        return -1 if self._csv.version is None else int(self._csv.version)

    def close(self) -> None:
        self._try("TensorBoard's files", self._events.close)

    def _write_waiting(self) -> None:
        while self._waiting:
            self._csv.write(self._waiting[0])
            self._waiting.popleft()

    def _try(self, what: str, act: Callable[[], None]) -> bool:
        """Whether it worked; the first failure of a kind is told, and its end."""
        try:
            act()
        except (OSError, ImportError) as error:
            if what not in self._told:
                self._told.add(what)
                _log.warning("%s cannot be written: %s; training goes on", what, error)
            return False
        if what in self._told:
            self._told.discard(what)
            _log.info("%s can be written again", what)
        return True
