"""Who is primary: one at a time, whoever dies, hangs or is cut off.

Source: "Leases: An Efficient Fault-Tolerant Mechanism for Distributed File Cache Consistency", SOSP 1989; the epoch is
what is elsewhere called a fencing token.
"""

from dataclasses import dataclass

from hpcjet.config.check import bad

DRIFT = 1.05
"""The book waits longer than a lease lasts: clocks of two nodes do not run alike."""


@dataclass(frozen=True)
class Lease:
    """The right to be primary from when it was asked for."""

    holder: str
    epoch: int
    until: float
    """On the holder's clock, in seconds."""

    def holds(self, now: float) -> bool:
        return now < self.until


class LeaseBook:
    """Gives the lease to one server at a time. Clocks are monotonic, in seconds, and need not agree.

    The holder counts from when it asked, the book from when it answered, which is later. So the holder stops before
    the book lets another begin, also if the answer was slow or never came. A book that was made anew (its process was
    restarted) grants nothing until the leases of the one before it have run out. Its first epoch must be above those of
    the one before: the seconds of the wall clock are, since a lease lasts for longer than one.
    """

    def __init__(self, seconds: float, *, now: float, epoch: int = 0, anew: bool = False) -> None:
        if not seconds > 0:
            raise bad("lease_seconds", seconds, "it must be above 0", "set it to 5")
        self.seconds = seconds
        self.epoch = epoch
        self.holder: str | None = None
        self._free_at = now + seconds * DRIFT if anew else now
        self._seen: dict[str, tuple[tuple[int, int], float]] = {}

    def ask(self, server: str, *, epoch: int, version: int, now: float) -> int | None:
        """Grant or renew: the epoch of the lease, or None.

        `epoch` and `version` are the highest that this server knows. One that has less than another that asked within
        the time of a lease does not become primary. A server that was started again asks by another name: it has
        nothing of what the one before it held.
        """
        self.epoch = max(self.epoch, epoch)
        self._seen = {name: seen for name, seen in self._seen.items() if now < seen[1] + self.seconds * DRIFT}
        self._seen[server] = ((epoch, version), now)
        if server != self.holder:
            if now < self._free_at or any((epoch, version) < other for other, _ in self._seen.values()):
                return None
            self.holder, self.epoch = server, self.epoch + 1
        self._free_at = now + self.seconds * DRIFT
        return self.epoch

    def died(self, prefix: str, but: str, *, now: float) -> None:
        """Of the processes whose names begin so only this one lives: a lease that another one held is over at once.

        To be called only where that is certain: the kernel tells Ray of a process that ends, and Ray starts the next
        one of an actor that is bound to a node only there. A node that does not answer is no such sign.
        """
        ended = {name for name in (*self._seen, self.holder or "") if name.startswith(prefix) and name != but}
        self._seen = {name: seen for name, seen in self._seen.items() if name not in ended}
        if self.holder in ended:
            self.holder, self._free_at = None, now
