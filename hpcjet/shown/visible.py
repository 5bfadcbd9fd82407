"""Text of agents, models and tests made fit to be shown: whatever it holds, it stays text, and it shows what it is."""

import errno
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_ODD = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str | bytes) -> str:
    """Without the control sequences of terminals; other control characters become signs that show them.

    Marks that turn the direction of writing are spelled out: they can make code look like other code. Bytes outside
    UTF-8 and halves of characters become U+FFFD.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return _ODD.sub(_sign, _LINE_ENDS.sub("\n", _TERMINAL.sub("", text)))


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return f"⟨U+{code:04X}⟩" if 0x200E <= code <= 0x2069 else "\ufffd"


@dataclass(frozen=True)
class Clip:
    """A text, or its head and tail if it is long."""

    head: str
    tail: str = ""
    dropped: int = 0
    """Characters (of a file: bytes) left out between head and tail."""

    @property
    def shown(self) -> int:
        """Characters of head and tail."""
        return len(self.head) + len(self.tail)

    @property
    def lines(self) -> int:
        """Lines of head and tail."""
        return sum(len(part.splitlines()) for part in (self.head, self.tail))


def clip(text: str, limit: int, *, head: float = 0.5) -> Clip:
    """At most `limit` characters of a text, the share `head` of them from its start, ready to be shown."""
    if len(text) <= limit:
        return Clip(visible(text))
    start = int(limit * head)
    end = len(text) - (limit - start)
    return Clip(visible(text[:start]), visible(text[end:]), end - start)


def clip_file(path: Path, limit: int, *, head: float = 0.5) -> Clip:
    """At most `limit` bytes of a file, the share `head` of them from its start; no more than these are read.

    Raises OSError if it cannot be read or is no regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        size = os.fstat(descriptor).st_size
        if size <= limit:
            return Clip(visible(file.read(limit)))
        start = int(limit * head)
        first = file.read(start)
        file.seek(size - (limit - start))
        return Clip(visible(first), visible(file.read(limit - start)), size - limit)
