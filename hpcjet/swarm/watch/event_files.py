"""Event files that TensorBoard shows."""

import contextlib
import itertools
import math
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FLUSH_S = 5.0


class EventFiles:
    """A folder of event files; each start, and each write after one that failed, begins a new file.

    tensorboardX writes them, but not through its SummaryWriter: that hands rows to a thread, which a full disk ends
    without a word, and the training then waits for it for ever.
    Raises OSError where the disk is full or gone.
    """

    _numbers = itertools.count()
    """Of all files of this process: two that begin within a millisecond have names, and an order, of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None
        self._flushed = 0.0

    def write(self, row: Mapping[str, float | str]) -> None:
        """All numbers of the row, at its version and at the time now."""
        events, summaries = _protos()
        values = [
            summaries.Summary.Value(tag=_tag(key), simple_value=value)
            for key, value in row.items()
            if isinstance(value, int | float) and math.isfinite(value) and key != "version"
        ]
        summary = summaries.Summary(value=values)
        self._add(events.Event(wall_time=time.time(), step=int(float(row["version"])), summary=summary))

    def rewind(self, version: float) -> None:
        """What was told beyond this version is not shown any more."""
        events, _ = _protos()
        start = events.SessionLog(status=events.SessionLog.START)
        self._add(events.Event(wall_time=time.time(), step=int(version) + 1, session_log=start))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _add(self, event: Any) -> None:
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.write(event.SerializeToString())
            if time.monotonic() > self._flushed + FLUSH_S:
                self._writer.flush()
                self._flushed = time.monotonic()
        except OSError:
            # Half a record may stand there: TensorBoard reads on in the next file. What is written next is flushed at
            # once, so that it is known whether there is room again.
            self._flushed = 0.0
            with contextlib.suppress(OSError):
                self.close()
            raise

    def _open(self) -> Any:
        from tensorboardX.record_writer import RecordWriter

        make: Any = RecordWriter
        self._folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard takes files in the order of their names, and by this part of a name for its own.
        name = f"events.out.tfevents.{time.time():.3f}.{socket.gethostname()}.{os.getpid()}.{next(self._numbers):06}"
        writer = make(str(self._folder / name))
        events, _ = _protos()
        writer.write(events.Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        return writer


def _protos() -> tuple[Any, Any]:
    from tensorboardX.proto import event_pb2, summary_pb2

    return event_pb2, summary_pb2


def _tag(key: str) -> str:
    """TensorBoard groups by what stands before a slash."""
    if key.startswith("metric."):
        return "worlds/" + key.removeprefix("metric.")
    policy, dot, metric = key.rpartition(".")
    return f"{policy}/{metric}" if dot else f"swarm/{key}"
