"""Writes records durably: those that come while the disk is busy share its next sync (group commit)."""

import asyncio
import errno
import logging
import os
import re
import secrets
import threading
import time
from pathlib import Path
from typing import Any

from hpcjet.atomic import sync_folder
from hpcjet.engine.gateway.calls import SUFFIX, Call, Encoder
from hpcjet.errors import StoreError

_LARGEST_SEGMENT = 256 * 1024**2
_LARGEST_BATCH = 512

_log = logging.getLogger(__name__)


class Recorder:
    """Appends calls to segments of its own in `folder`. A segment has one writer, so it works on NFS and Lustre."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:60] or "gateway"
        self._waiting: list[tuple[Call, asyncio.Future[None]]] = []
        self._wake = threading.Condition()
        self._closed = False
        self._descriptor, self._size = -1, 0
        self._segment = folder
        self._encoder = Encoder()
        self.bytes, self.syncs, self.sync_s = 0, 0, 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name="hpcjet-recorder", daemon=True)
        self._thread.start()

    async def add(self, call: Call) -> None:
        """Record a call: when this returns it is on disk, whatever is killed. Raises StoreError if it is not."""
        future = self._loop.create_future()
        with self._wake:
            if self._closed:
                raise StoreError(f"the call of {call.attempt} came after the end of the records in {self._folder}")
            self._waiting.append((call, future))
            self._wake.notify()
        await future

    def close(self) -> None:
        """Write what waits, and end."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _write(self) -> None:
        while True:
            with self._wake:
                while not self._waiting and not self._closed:
                    self._wake.wait()
                batch, self._waiting = self._waiting[:_LARGEST_BATCH], self._waiting[_LARGEST_BATCH:]
                if not batch:
                    break
            self._commit(batch)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _commit(self, batch: list[tuple[Call, "asyncio.Future[None]"]]) -> None:
        error: Exception | None = None
        try:
            if self._descriptor < 0 or self._size > _LARGEST_SEGMENT:
                self._begin_segment()
            data = b"".join(self._encoder.line(call) for call, _ in batch)
            self._append(data)
        except Exception as problem:
            # Whatever it is, those who wait must hear of it.
            error = self._failed(problem)
        self._loop.call_soon_threadsafe(_settle, [future for _, future in batch], error)

    def _append(self, data: bytes) -> None:
        view, at = memoryview(data), self._size
        while view:
            written = os.pwrite(self._descriptor, view, at)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view, at = view[written:], at + written
        began = time.perf_counter()
        os.fdatasync(self._descriptor)
        self.sync_s += time.perf_counter() - began
        self.syncs += 1
        self.bytes += len(data)
        self._size = at

    def _begin_segment(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._segment = self._folder / f"{time.time_ns()}-{self._name}-{secrets.token_hex(4)}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor, self._size = os.open(self._segment, flags, 0o600), 0
        self._encoder = Encoder()
        sync_folder(self._folder)

    def _failed(self, problem: Exception) -> StoreError:
        """Leave the segment, cut back to what is known to be whole: after a failed sync its end is not."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.ftruncate(descriptor, self._size)
            except OSError as error:
                _log.warning("%s could not be cut back to %d bytes: %s", self._segment, self._size, error.strerror)
            finally:
                os.close(descriptor)
        why = problem.strerror if isinstance(problem, OSError) else f"{type(problem).__name__}: {problem}"
        _log.error("records could not be written to %s: %s", self._folder, why)
        return StoreError(
            f"the record of this call could not be written to {self._folder}: {why}; free space there, or set "
            "engine.record=off"
        )


def _settle(futures: list[Any], error: Exception | None) -> None:
    for future in futures:
        if future.done():
            continue  # who waited has gone
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
