"""The output of one command, bounded."""

from collections.abc import Callable


class Output:
    """Keeps the first and the last bytes of a stream, at most `cap` together."""

    def __init__(self, cap: int, *, also: Callable[[bytes], object] | None = None) -> None:
        self._also = also
        self._head_cap = cap // 2
        self._tail_cap = cap - self._head_cap
        self._head = bytearray()
        self._tail = bytearray()
        self._start = 0  # where the oldest byte of a full tail is
        self.total = 0

    def add(self, data: bytes) -> None:
        if self._also and data:
            self._also(data)
        self.total += len(data)
        room = self._head_cap - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._add_tail(data[-self._tail_cap :] if self._tail_cap else b"")

    def _add_tail(self, data: bytes) -> None:
        room = self._tail_cap - len(self._tail)
        self._tail += data[:room]
        data = data[room:]
        while data:
            part = data[: self._tail_cap - self._start]
            self._tail[self._start : self._start + len(part)] = part
            self._start = (self._start + len(part)) % self._tail_cap
            data = data[len(part) :]

    @property
    def dropped(self) -> int:
        return self.total - len(self._head) - len(self._tail)

    def bytes(self) -> bytes:
        return bytes(self._head + self._tail[self._start :] + self._tail[: self._start])
