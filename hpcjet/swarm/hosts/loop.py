"""A seat's way through the data plane: begin, weights, steps, insert, and again."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from hpcjet.swarm.fragment import Fragment
from hpcjet.swarm.hosts.seat import Seat
from hpcjet.swarm.hosts.snapshots import Snapshots
from hpcjet.swarm.hosts.spec import HostSpec, HostState, attempt_over
from hpcjet.swarm.policy.interface import Policy
from hpcjet.swarm.pool.entry import Entry, entry_of
from hpcjet.swarm.pool.verdict import Verdict


class Insert(Protocol):
    """Fragments on their way into the pool."""

    def verdicts(self, wait_s: float) -> list[Verdict] | None:
        """None: not within this time. Raises HostError if the pool is away for too long."""


class Plane(Protocol):
    """The data plane as a seat sees it. Each answer comes within about a second; None says: ask again.

    Raises HostError if a part of it is away for too long.
    """

    def begin(self, n: int, ticket: int) -> tuple[int, int] | None:
        """Leave to begin n fragments: the learner's version, and the oldest one to act with."""

    def weights(self, policies: Mapping[str, Policy], version: int, at_least: int) -> int | None:
        """Load what is to be acted with, having `version`; which version it is."""

    def insert(self, items: Sequence[tuple[Entry, Fragment]]) -> Insert:
        """Arrays are copied before it returns."""


class Stopped(Exception):
    """It was told to stop."""


class Loop:
    """Runs in a thread of its own; other threads may look at it, and stop it.

    While a fragment is inserted the next one may be made; never are two on their way.
    """

    def __init__(self, spec: HostSpec, attempt: int, plane: Plane, state: HostState | None = None) -> None:
        self.spec, self.attempt, self.plane = spec, attempt, plane
        self.version = -1
        self.doing = "start"
        self.snapshots = Snapshots()
        self.seat = Seat(spec, attempt, state)
        self._stop = threading.Event()
        self._first_step = None if state is None else state.first_step
        self._made = 0
        self._pending: Insert | None = None

    def stop(self) -> None:
        """`run` returns within about a second; a fragment that was begun is not made."""
        self._stop.set()

    def run(self) -> None:
        """Until it is stopped. Raises WorldError if no world is left, HostError, ConfigError."""
        try:
            self.seat.begin()
            while True:
                self.once()
        except Stopped:
            return
        finally:
            self.doing = "end"
            self.seat.close()

    def once(self) -> None:
        """One fragment for each route."""
        newest = self._leave()
        # One that joins late takes its place beside the others.
        first_step = newest * self.spec.steps if self._first_step is None else self._first_step
        if self.spec.keep_snapshots and self.snapshots.lacks(self.version):
            self.snapshots.keep(self.seat.state(self.version, first_step))
        self.doing = "step"
        made = self.seat.fragments(self.version, self._stop.is_set)
        if not made:
            raise Stopped
        items = [(self._entry(fragment, route.policy, route.group, first_step), fragment) for route, fragment in made]
        self._first_step, self._made = first_step + self.spec.steps, self._made + 1
        self.seat.tally.agent_steps += sum(entry.agent_steps for entry, _ in items)
        with self._spends("insert"):
            while not self._inserted(1.0):
                self._check()
            self._pending = self.plane.insert(items)

    def _leave(self) -> int:
        """Wait for leave and for the weights to act with; the learner's version."""
        while True:
            with self._spends("wait"):
                while (leave := self.plane.begin(len(self.seat.routes), self._made)) is None:
                    self._check()
                    self._inserted(0.0)
            with self._spends("weights"):
                version = self.plane.weights(self.seat.policies, self.version, leave[1])
            if version is not None:
                self.version = version
                return leave[0]
            # Asked again: a learner that went back to a checkpoint may never publish what the first answer wanted.
            self._check()

    def _inserted(self, wait_s: float) -> bool:
        """Whether nothing is on its way (any more)."""
        if self._pending is None:
            return True
        verdicts = self._pending.verdicts(wait_s)
        if verdicts is None:
            return False
        self._pending = None
        admitted = verdicts.count(Verdict.admitted) + verdicts.count(Verdict.counted)
        self.seat.tally.fragments += admitted
        self.seat.tally.refused += len(verdicts) - admitted
        if Verdict.late in verdicts:
            raise attempt_over(self.spec, self.attempt)
        return True

    def _entry(self, fragment: Fragment, policy: str, group: str, first_step: int) -> Entry:
        return entry_of(
            fragment, source=self.spec.seat, attempt=self.attempt, node=self.spec.node, policy=policy, group=group,
            first_world=self.spec.first_world, first_step=first_step,
        )  # fmt: skip

    def _check(self) -> None:
        if self._stop.is_set():
            raise Stopped

    @contextmanager
    def _spends(self, what: str) -> Iterator[None]:
        self.doing, began = what, time.perf_counter()
        try:
            yield
        finally:
            self.seat.tally.seconds[what] += time.perf_counter() - began
