"""What a child of the node agent tells it: lines of JSON on a pipe of their own, since its output goes to a log."""

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections.abc import MutableMapping
from typing import Any

OUTBOX = "HPCJET_OUTBOX"
"""The variable that names the descriptor to the child."""

IDLE = "idle"
"""The driver: nothing of its work is on that draining node any more; facts: member."""
DRAIN = "drain"
"""The keeper: give that node back; facts: member, reason."""
NOTE = "note"
"""The keeper: something for the events; facts: event, facts."""

LONGEST_LINE = 64 * 1024
MOST_AT_ONCE = 1024 * 1024
"""Bytes that are read in one go: a child that never stops talking must not hold up the loop."""


class Outbox:
    """The child's side. Without a descriptor, as in a program that no node agent started, it says nothing."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    @classmethod
    def from_env(cls, env: MutableMapping[str, str]) -> "Outbox":
        """That of this process. The variable and the descriptor are kept from what it starts in its turn."""
        text = env.pop(OUTBOX, "")
        descriptor = int(text) if text.isdigit() else -1
        try:
            if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                return cls()
            os.set_inheritable(descriptor, False)
        except OSError:
            return cls()
        return cls(descriptor)

    def say(self, word: str, **facts: Any) -> None:
        """Tell the node agent; nothing happens if it is gone. Any thread may; waits if very much is unread."""
        if self._descriptor is None:
            return
        view = memoryview(json.dumps({"word": word, **facts}).encode() + b"\n")
        with self._lock, contextlib.suppress(BrokenPipeError):
            while view:
                view = view[os.write(self._descriptor, view) :]


class Hearing:
    """The parent's side of one such pipe, which never waits."""

    def __init__(self) -> None:
        self._descriptor, self.to_pass = os.pipe()
        os.set_blocking(self._descriptor, False)
        with contextlib.suppress(OSError):  # more than an unprivileged user's share; the usual 64 KiB do as well
            fcntl.fcntl(self.to_pass, fcntl.F_SETPIPE_SZ, MOST_AT_ONCE)
        self._received = bytearray()
        self._skipping = False
        self._open = True

    def passed(self) -> None:
        """The child has its end: let go of it here, or the end of the child would not be noticed."""
        os.close(self.to_pass)

    def read(self) -> list[dict[str, Any]]:
        """The words that have come, in order. What is no word is left out."""
        budget = MOST_AT_ONCE
        while self._open and budget > 0:
            try:
                data = os.read(self._descriptor, 65_536)
            except BlockingIOError:
                break
            if not data:
                self.close()
            self._received += data
            budget -= len(data)
        return self._words()

    def close(self) -> None:
        if self._open:
            self._open = False
            os.close(self._descriptor)

    def _words(self) -> list[dict[str, Any]]:
        *lines, rest = self._received.split(b"\n")
        if lines and self._skipping:
            del lines[0]
            self._skipping = False
        if len(rest) > LONGEST_LINE:
            rest, self._skipping = bytearray(), True
        self._received = bytearray() if self._skipping else bytearray(rest)
        return [word for line in lines if (word := _word(bytes(line))) is not None]


def _word(line: bytes) -> dict[str, Any] | None:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return said if isinstance(said, dict) and isinstance(said.get("word"), str) else None
