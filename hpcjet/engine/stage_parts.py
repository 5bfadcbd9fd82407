"""The copy of a model on a node while it is being made: which parts are there, and what they sum up to."""

import hashlib
import json
import os
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

Part = tuple[Path, int, int]
"""(file, first byte, number of bytes)"""
_CHUNK = 4 * 1024**2
_LOCKS = 16


class Parts:
    """Written by those who copy, read by those who pass on to other nodes."""

    def __init__(self, model: Path, folder: Path, parts: Sequence[Part]) -> None:
        self.folder, self.all = folder, list(parts)
        self.digest = _digest(model, self.all)
        """Two nodes that have the same one mean the same files."""
        self.moved = 0
        """Bytes that have come, also of parts that are not whole yet: it grows while the copy gets on."""
        self.read = 0
        """Bytes of whole parts that this node itself read from the source."""
        self._there: set[int] = set()
        self._sums: dict[int, int] = {}
        self._summing = [threading.Lock() for _ in range(_LOCKS)]
        self._news = threading.Condition()
        self._closed = ""

    @property
    def closed(self) -> str:
        """Why nothing is passed on any more; empty while it is."""
        return self._closed

    def came(self, count: int) -> None:
        """So many bytes more are written."""
        with self._news:
            self.moved += count

    def add(self, number: int, *, checksum: int | None = None) -> None:
        """A part is whole. Without the checksum with which it came, this node has read it from the source."""
        with self._news:
            self._there.add(number)
            if checksum is None:
                self.read += self.all[number][2]
            else:
                self._sums[number] = checksum
            self._news.notify_all()

    def wait(self, number: int, timeout_s: float) -> bool:
        """Whether a part is there, after so long at most; it is not in a copy that is closed."""
        with self._news:
            self._news.wait_for(lambda: number in self._there or self._closed, timeout=timeout_s)
            return number in self._there and not self._closed

    def close(self, reason: str) -> None:
        """Pass on no more."""
        with self._news:
            self._closed = self._closed or reason
            self._news.notify_all()

    def checksum(self, number: int) -> int:
        """Of a part that is there; worked out when it is first asked for. Raises OSError if the file is gone."""
        with self._summing[number % _LOCKS]:
            if number not in self._sums:
                self._sums[number] = _sum_of(self.folder, self.all[number])
            return self._sums[number]


def _sum_of(folder: Path, part: Part) -> int:
    name, begin, length = part
    found = 0
    with (folder / name).open("rb", buffering=0) as file:
        while length > 0:
            data = os.pread(file.fileno(), min(length, _CHUNK), begin)
            if not data:
                raise OSError(f"{folder / name} became shorter")
            found, begin, length = zlib.crc32(data, found), begin + len(data), length - len(data)
    return found


def _digest(model: Path, parts: Sequence[Part]) -> str:
    listing = [str(model), *[[str(name), begin, length] for name, begin, length in parts]]
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
