"""The fragments of one node, without Ray."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from hpcjet.config.check import bad
from hpcjet.config.swarm.pool import WhenFull
from hpcjet.errors import HpcjetError


class PoolFull(HpcjetError):
    """No room came in time."""


class NodePool:
    """Payloads by number, bounded in bytes. It does not look into them."""

    def __init__(self, name: str, limit_bytes: int, when_full: WhenFull) -> None:
        self.name, self.limit_bytes, self.when_full = name, limit_bytes, when_full
        self.nbytes = 0
        self.evicted = 0
        self._next = 0
        self._held: OrderedDict[int, tuple[int, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def items(self) -> list[tuple[int, Any]]:
        """Numbers and payloads, oldest first."""
        return [(number, payload) for number, (_, payload) in self._held.items()]

    @property
    def fill(self) -> float:
        """The share of the bytes that is used."""
        return self.nbytes / self.limit_bytes

    def has_room(self, nbytes: int) -> bool:
        """Raises ConfigError for a payload that never fits."""
        if nbytes > self.limit_bytes:
            allowed = f"a fragment of {nbytes} bytes does not fit into pool {self.name}"
            raise bad("pool.node_bytes", self.limit_bytes, allowed, "raise it, or lower steps or worlds")
        return self.when_full is WhenFull.evict or self.nbytes + nbytes <= self.limit_bytes

    def put(self, payload: Any, nbytes: int) -> tuple[int, list[int]]:
        """Its number, and those of fragments that made room. Raises PoolFull: ask `has_room` before."""
        if not self.has_room(nbytes):
            raise PoolFull(
                f"pool {self.name}: {self.nbytes} of {self.limit_bytes} bytes are used, {nbytes} more do not fit; "
                "raise pool.node_bytes, or see whether the learner still learns"
            )
        gone = []
        while self.nbytes + nbytes > self.limit_bytes:
            oldest = next(iter(self._held))
            gone.append(oldest)
            self.remove([oldest])
        self.evicted += len(gone)
        number = self._next
        self._next += 1
        self._held[number] = (nbytes, payload)
        self.nbytes += nbytes
        return number, gone

    def __contains__(self, number: object) -> bool:
        return number in self._held

    def get(self, numbers: Iterable[int]) -> list[Any]:
        """Payloads in this order; None for what is no longer there."""
        return [self._held[number][1] if number in self._held else None for number in numbers]

    def remove(self, numbers: Iterable[int]) -> None:
        """Those that are there; others are no error, since they may have been evicted."""
        for number in numbers:
            nbytes, _ = self._held.pop(number, (0, None))
            self.nbytes -= nbytes
