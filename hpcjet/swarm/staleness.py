"""How old a policy may be when it acts, when its fragments are admitted and when they are learned from.

One rule for all modes, bounded by eta versions: sync is eta = 0, hybrid a number of one's own, async has no bound.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcjet.config.check import at_least, bad
from hpcjet.config.swarm.staleness import StalenessConfig


@dataclass(frozen=True)
class Freshness:
    """What may be acted with, admitted and learned from while the learner is at `newest`."""

    newest: int
    bound: int | None

    @property
    def oldest(self) -> int:
        """The oldest version that is fresh enough; one below it may neither act nor be learned from."""
        return 0 if self.bound is None else max(0, self.newest - self.bound)

    def allows(self, version: int) -> bool:
        return version >= self.oldest

    def age(self, version: int) -> int:
        return self.newest - version


class Budget:
    """How many fragments may be begun: at version i no more than (i + 1 + eta) * B in all, since the start.

    Learned from in the order in which they were begun, none is then older than eta versions. What is lost on the way
    is given back, fragment by fragment, so that others take its place.
    Source: "AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning",
    arXiv:2505.24298, section 5.1.
    """

    def __init__(self, config: StalenessConfig) -> None:
        # `resolved` makes a number of the 0 that is allowed there.
        at_least("exp.staleness.fragments", config.fragments, 1)
        self.config = config
        self.version = 0
        self.admitted = 0
        """Fragments in the pool, or learned from."""
        self.running: dict[str, int] = {}
        """Fragments begun and not yet admitted, by their source."""
        self.in_flight = 0
        """All of them."""

    @property
    def freshness(self) -> Freshness:
        return Freshness(self.version, self.config.bound)

    @property
    def room(self) -> int | None:
        """How many may be begun now; None for any number."""
        if self.config.bound is None:
            return None
        return (self.version + 1 + self.config.bound) * self.config.fragments - self.admitted - self.in_flight

    def begin(self, source: str, n: int = 1) -> bool:
        """Whether this source may begin n fragments now; if so they are counted.

        Where there is room for fewer than n and nothing is running it may: else nobody ever could.
        """
        room = self.room
        if room is not None and n > room and (room <= 0 or self.running):
            return False
        self.running[source] = self.running.get(source, 0) + n
        self.in_flight += n
        return True

    def admit(self, source: str, n: int = 1) -> int:
        """What this source had begun is in the pool. How many of them are known to have been begun."""
        self.admitted += n
        return self._end(source, n)

    def give_up(self, source: str, n: int | None = None) -> int:
        """What this source had begun will never come; all of it by default. How many that were."""
        return self._end(source, self.running.get(source, 0) if n is None else n)

    def lose(self, n: int) -> None:
        """Admitted fragments that will not be learned from: others may be begun in their place."""
        self.admitted -= n

    def advance(self, version: int) -> None:
        """The learner is at this version now. Raises ValueError if it goes back: see `recover`."""
        if version < self.version:
            raise ValueError(f"version {version} after {self.version}: a learner that went back calls recover")
        self.version = version

    def recover(self, version: int, usable: int) -> None:
        """A learner goes on at `version` with `usable` fragments in the pool; what is running still is.

        Counted anew: each version before took its batch. Counts that begin at 0 would let (version + 1 + eta) * B in
        at once, and most of them would be too old when their turn comes.
        """
        if version < 0 or usable < 0:
            raise bad("recover", f"version {version}, {usable} fragments", "0 or more", "see the checkpoint")
        self.version = version
        self.admitted = version * self.config.fragments + usable

    def state_dict(self) -> dict[str, Any]:
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, Any], *, usable: int) -> None:
        """By the limits of this configuration, not by those of the one that was saved."""
        self.recover(int(state["version"]), usable)

    def _end(self, source: str, n: int) -> int:
        n = min(n, self.running.get(source, 0))
        self.in_flight -= n
        left = self.running.pop(source, 0) - n
        if left:
            self.running[source] = left
        return n
