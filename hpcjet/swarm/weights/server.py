"""What a parameter server knows and may do, without Ray."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from hpcjet.config.check import at_least
from hpcjet.errors import HpcjetError
from hpcjet.swarm.weights.lease import Lease


class NotPrimary(HpcjetError):
    """This server has no lease, or another one has a newer one: ask the other."""


@dataclass(frozen=True)
class Published:
    """Weights of one version."""

    version: int
    epoch: int
    """Of the lease under which they were published."""
    digest: str
    weights: Any
    """The weights, or a list with a reference to them: no server or cache looks into it."""

    def same_as(self, other: "Published") -> bool:
        """Not by number alone: a learner that went back makes other weights of the same number."""
        return (self.version, self.digest) == (other.version, other.digest)


class ServerState:
    """The newest versions, and the lease. Every server begins as a standby.

    A primary answers while its lease holds; without one it refuses, whoever asks. Who has seen a higher epoch refuses
    what comes from a lower one.
    """

    def __init__(self, name: str, *, keep: int = 2) -> None:
        at_least("weights.keep", keep, 1)
        self.name, self.keep = name, keep
        self.history: OrderedDict[int, Published] = OrderedDict()
        self.epoch = 0
        self.lease: Lease | None = None

    @property
    def newest(self) -> Published | None:
        return next(reversed(self.history.values()), None)

    @property
    def version(self) -> int:
        """-1 before the first one."""
        return -1 if self.newest is None else self.newest.version

    def granted(self, epoch: int | None, *, asked_at: float, seconds: float) -> None:
        """What the lease book answered to a question of `asked_at`. A lease that was not renewed goes on to its end."""
        if epoch is None or epoch < self.epoch:
            return
        until = asked_at + seconds
        if self.lease is not None and self.lease.epoch == epoch:
            until = max(until, self.lease.until)  # answers may come in another order
        self.epoch, self.lease = epoch, Lease(self.name, epoch, until)

    def is_primary(self, now: float) -> bool:
        return self.lease is not None and self.lease.holds(now) and self.lease.epoch == self.epoch

    def publish(self, version: int, digest: str, weights: Any, *, now: float) -> Published:
        """Take a version; one that is older than the newest is what a learner made again from a checkpoint.

        Those that are newer are then forgotten: they belong to a line that is no more. Raises NotPrimary.
        """
        self._check(now)
        for later in [number for number in self.history if number >= version]:
            del self.history[later]
        return self._keep(Published(version, self.epoch, digest, weights))

    def newer_than(self, have: Published | None, epoch: int, *, now: float) -> Published | None:
        """The newest version unless it is what the caller has. Raises NotPrimary.

        `epoch` is the highest that the caller has seen: one above this server's says that it is primary no more.
        """
        self.epoch = max(self.epoch, epoch)
        self._check(now)
        newest = self.newest
        return None if newest is None or (have is not None and have.same_as(newest)) else newest

    def follow(self, published: Published) -> None:
        """A standby takes what the primary has. What comes of a lower epoch than is known is ignored."""
        if published.epoch < self.epoch:
            return
        self.epoch = published.epoch
        for later in [number for number in self.history if number >= published.version]:
            del self.history[later]
        self._keep(published)

    def _keep(self, published: Published) -> Published:
        self.history[published.version] = published
        while len(self.history) > self.keep:
            self.history.popitem(last=False)
        return published

    def _check(self, now: float) -> None:
        if not self.is_primary(now):
            held = "it has no lease" if self.lease is None else f"its lease of epoch {self.lease.epoch} is over"
            raise NotPrimary(f"parameter server {self.name} (epoch {self.epoch}) is not primary: {held}; ask the other")
