"""What the driver leaves in the run directory while it works, for those who look on: progress, backlog, usage."""

import contextlib
import json
import logging
import time
from pathlib import Path

from hpcjet.atomic import atomic_write
from hpcjet.rundir import RunDir
from hpcjet.swe.dispatch import Dispatcher
from hpcjet.swe.record import Record
from hpcjet.tasks.verdict import Verdict

_log = logging.getLogger(__name__)
EVERY_S = 1.0
USAGE_EVERY_S = 5.0
"""It grows with the number of nodes."""


class Progress:
    """progress.json, for those who follow the run."""

    def __init__(self, path: Path) -> None:
        self._path, self.total = path, 0
        self._counts = {verdict.value: 0 for verdict in Verdict}
        self._before = 0
        self._began = time.time()

    def count(self, record: Record) -> None:
        self._counts[record.verdict.value] += 1

    def write(self, in_flight: int) -> None:
        done = sum(self._counts.values())
        data = {"kind": "attempts", "total": self.total, "done": done, "in_flight": in_flight, "counts": self._counts}
        times = {"began": self._began, "done_before": self._before, "updated": time.time()}
        _write(self._path, json.dumps({**data, **times}))

    def begin(self) -> None:
        """What is counted so far was done by an earlier launch: the rate leaves it out."""
        self._before = sum(self._counts.values())
        self._began = time.time()


class Told:
    """Writes all that is told of a dispatcher's work, each file when the last time is a while ago."""

    def __init__(self, run: RunDir, dispatcher: Dispatcher, progress: Progress) -> None:
        self._run, self._dispatcher, self._progress = run, dispatcher, progress
        self._next, self._next_usage = 0.0, 0.0

    def write(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + EVERY_S
            self._progress.write(self._dispatcher.in_flight)
            _write(self._run.backlog, json.dumps(self._dispatcher.backlog()))
        if now >= self._next_usage:
            self._next_usage = now + USAGE_EVERY_S
            _write(self._run.usage, self._dispatcher.usage())

    def end(self) -> None:
        """Nothing waits any more, and what is under way is given up."""
        self._progress.write(self._dispatcher.in_flight)
        _write(self._run.usage, self._dispatcher.usage(ended=True))
        with contextlib.suppress(OSError):
            self._run.backlog.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """A full disk is no reason to stop here."""
    try:
        atomic_write(path, text)
    except OSError as error:
        _log.warning("%s could not be written: %s", path.name, error)
