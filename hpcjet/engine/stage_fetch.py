"""A node's way to the parts of a model that another node has: fetched over a few connections, checked, written."""

import contextlib
import os
import queue
import socket
import threading
import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from hpcjet.engine.stage_parts import Parts
from hpcjet.engine.stage_wire import Wire, greet
from hpcjet.engine.words import StageParent
from hpcjet.errors import EngineError

HANG_S = 20.0
"""A parent that sends no byte for so long is given up."""
TRIES = 3
"""How often a part is fetched whose checksum is wrong."""
_CONNECT_S = 5.0
_TICK_S = 0.5
_BUFFER = 1024**2

Found = TypeVar("Found")


class Upstream:
    """The parent of a node. When it fails once it is given up, and the node reads the source for what it lacks."""

    def __init__(
        self, parent: StageParent, parts: Parts, *, key: str, say: Callable[[str], None], stopping: Callable[[], bool]
    ) -> None:
        self._parent, self._parts, self._key, self._say, self._stopping = parent, parts, key, say, stopping
        self.label = f"{parent.address}:{parent.port}"
        self._idle: queue.SimpleQueue[Wire] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._lost = False

    def fetch(self, number: int) -> int | None:
        """Write a part to the copy and return its checksum; None if the parent cannot give it.

        Raises EngineError when the copy is given up, OSError when it cannot be written.
        """
        for _ in range(TRIES):
            if self._lost:
                return None
            try:
                wire = self._connection()
                claimed, found = self._ask(wire, number)
            except _WriteError as error:
                raise error.cause from None
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._lose(f"{error}")
                return None
            self._idle.put(wire)
            if claimed == found:
                return found
        self._say(f"a part of {self._parts.all[number][0]} came torn from {self.label} {TRIES} times")
        return None

    def close(self) -> None:
        """Also those who still wait for the parent give up."""
        self._lost = True
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def _lose(self, why: str) -> None:
        with self._lock:
            first, self._lost = not self._lost, True
        if first:
            self._say(f"nothing more comes from the node at {self.label}: {why}; the rest is read from the source")

    def _connection(self) -> Wire:
        with contextlib.suppress(queue.Empty):
            return self._idle.get_nowait()
        wire = Wire(socket.create_connection((self._parent.address, self._parent.port), timeout=_CONNECT_S))
        try:
            wire.socket.settimeout(_TICK_S)
            greet(wire, self._key, self._parts.digest, hear=lambda: self._patiently(wire.hear))
        except BaseException:
            wire.close()
            raise
        return wire

    def _ask(self, wire: Wire, number: int) -> tuple[int, int]:
        """Returns the checksum that was told and the one of what came."""
        name, begin, length = self._parts.all[number]
        try:
            wire.say(part=number)
            checksum = self._hear_of(wire, number, length)
            try:
                file = (self._parts.folder / name).open("r+b", buffering=0)
            except OSError as error:
                raise _WriteError(error) from None
            with file:
                return checksum, self._receive(wire, file.fileno(), begin, length)
        except BaseException:
            wire.close()
            raise

    def _hear_of(self, wire: Wire, number: int, length: int) -> int:
        """Until the parent has the part: while it gets on itself there is no limit."""
        patience_s = HANG_S * (self._parent.hops + 1)  # the parent gives up its own parent before that
        moved, since = -1, time.monotonic()
        while "part" not in (said := self._patiently(wire.hear)):
            if "gone" in said:
                raise ConnectionError(f"it says {said['gone']}"[:200])
            if said["moved"] != moved:
                moved, since = said["moved"], time.monotonic()
            elif time.monotonic() - since > patience_s:
                raise TimeoutError(f"it has not got on for {patience_s:.0f} s")
            self._check()
        if said["part"] != number or said["length"] != length:
            raise ValueError("it sent another part")
        return int(said["checksum"])

    def _receive(self, wire: Wire, target: int, begin: int, length: int) -> int:
        buffer = memoryview(bytearray(min(length, _BUFFER)))
        found = 0
        while length > 0:
            count = self._patiently(partial(wire.read_into, buffer[: min(length, _BUFFER)]))
            self._check()
            try:
                _write(target, buffer[:count], begin)
            except OSError as error:
                raise _WriteError(error) from None
            found = zlib.crc32(buffer[:count], found)
            self._parts.came(count)
            begin, length = begin + count, length - count
        return found

    def _patiently(self, act: Callable[[], Found]) -> Found:
        """The result of what waits for bytes. Raises TimeoutError when none came for HANG_S."""
        since = time.monotonic()
        while True:
            try:
                return act()
            except TimeoutError:
                self._check()
                if time.monotonic() - since > HANG_S:
                    raise TimeoutError(f"it sent nothing for {HANG_S:.0f} s") from None

    def _check(self) -> None:
        if self._stopping():
            raise EngineError("the copy of the model was stopped")
        if self._lost:
            raise ConnectionError("given up")


class _WriteError(Exception):
    """The copy cannot be written: that is no fault of the parent's."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _write(target: int, data: memoryview, at: int) -> None:
    while data:
        count = os.pwrite(target, data, at)
        data, at = data[count:], at + count
