"""The seats of a training, and the world hosts that run them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcjet.errors import ConfigError, HpcjetError, WorkloadError, WorldError
from hpcjet.swarm.actors import Ending
from hpcjet.swarm.driver.answers import no_answer
from hpcjet.swarm.driver.layout import Layout
from hpcjet.swarm.driver.losses import Losses
from hpcjet.swarm.driver.plane import Plane
from hpcjet.swarm.driver.seat import Seat
from hpcjet.swarm.hosts import HostSpec, HostState, HostStatus, PlaneError
from hpcjet.swarm.hosts.actor import end_host, host_name, start_host
from hpcjet.swarm.vector import Episode
from hpcjet.swarm.watch import SeatFacts

STATUS_S = 1.0
MAX_FAILURES = 3
"""Attempts of a seat that may end one after the other without a fragment, on nodes that are still there."""
BACK_OFF_S = (0.0, 1.0, 5.0, 20.0)
"""By failures. After the last one there is time for Ray to see that the node is gone."""
STOP_S = 10.0
"""So long hosts may take to stop, at the end or on a node that drains."""
LAST_WORDS_S = 2.0
"""So long a host whose worlds ended it may take to tell of its last episodes and faults."""


@dataclass
class Told:
    """What hosts told since the last time it was taken."""

    episodes: list[Episode] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


class Seats:
    """Starts hosts where they are told to, and again where they died."""

    def __init__(self, spec: Callable[[Seat], HostSpec], plane: Plane, losses: Losses, layout: Path) -> None:
        """`spec` makes what a host is told, for the node that its seat has; `layout` is the file of the seats."""
        self._spec, self._plane, self._losses, self._layout = spec, plane, losses, Layout(layout)
        self.all: dict[str, Seat] = {}
        self.told = Told()
        self._asked_at = 0.0

    @property
    def standing(self) -> dict[str, str]:
        """Seat -> node, of those that have a host."""
        return {seat.name: seat.node_id for seat in self.all.values() if seat.node_id}

    @property
    def waiting(self) -> list[Seat]:
        """Those that need a host now."""
        now = time.monotonic()
        return [seat for seat in self.all.values() if not seat.node_id and seat.not_before <= now]

    @property
    def fragments(self) -> int:
        return sum(seat.fragments for seat in self.all.values())

    def add(self, dealt: Sequence[tuple[int, int]], *, attempt: int = 0) -> list[str]:
        """New seats with these worlds (first, number); their names."""
        names = []
        for first_world, worlds in dealt:
            name = f"seat-{len(self.all):04}"
            self.all[name] = Seat(name, first_world, worlds, attempt=attempt)
            names.append(name)
        return names

    def load(self, states: Mapping[str, HostState]) -> None:
        """The seats of an earlier start, each with the next attempt; `states` are where they go on from."""
        for seat in self._layout.read():
            seat.state = states.get(seat.name)
            self.all[seat.name] = seat

    def start(self, placed: Mapping[str, str]) -> None:
        """Hosts for these seats on these nodes (Ray's ids).

        One whose host before has not ended, since its node is gone and Ray has not seen it, waits on. Raises
        WorkloadError for a seat whose hosts die again and again, BootstrapError for one whose host never ends.
        """
        begun = False
        for name, node_id in placed.items():
            seat = self.all[name]
            if seat.failures >= MAX_FAILURES:
                raise _given_up(seat)
            seat.ending = seat.ending or Ending(host_name(name))
            if not seat.ending.over():
                continue
            seat.ending = None
            seat.node_id, seat.status, seat.asked = node_id, None, None
            seat.actor = start_host(node_id, self._spec(seat), seat.attempt, state=seat.state)
            seat.run = seat.actor.run.remote()
            begun = True
        if begun:
            self._layout.write(self.all.values())

    def look(self) -> None:
        """See which hosts ended, and ask the others how they do.

        Raises WorkloadError for worlds that fail again and again, or that cannot be made as they are configured.
        """
        import ray

        runs = {seat.run: seat for seat in self.all.values() if seat.node_id}
        done, _ = ray.wait(list(runs), num_returns=len(runs), timeout=0) if runs else ([], [])
        ends = [(runs[run], *_end_of(run)) for run in done]
        self._last_words([seat for seat, _, is_there in ends if is_there])
        for seat, why, _ in ends:
            self._ended(seat, why)
        self._take()
        if time.monotonic() > self._asked_at + STATUS_S:
            self._ask()
            if not self._layout.kept:
                self._layout.write(self.all.values())

    def ask(self, wait_s: float) -> None:
        """How all do now, as far as they answer in time."""
        import ray

        self._ask()
        calls = [seat.asked for seat in self.all.values() if seat.asked is not None]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=wait_s)
        self._take()

    def on(self, node_id: str) -> list[Seat]:
        return [seat for seat in self.all.values() if seat.node_id == node_id]

    def take_off(self, seats: Iterable[Seat], *, tell: bool = True) -> int:
        """These have no host any more, and wait for another with the next attempt; how many fragments were begun."""
        lost = 0
        for seat in seats:
            if tell:
                lost += self._plane.source_lost(seat.name, seat.attempt)
            seat.take_off()
        return lost

    def node_lost(self, node_id: str) -> list[Seat]:
        """What stood there has no host any more, and what failed there did not fail by itself."""
        for seat in self.all.values():
            if seat.failed_on == node_id:
                seat.failures, seat.vain_before, seat.not_before = 0, 0, 0.0
        seats = self.on(node_id)
        self.take_off(seats, tell=False)
        return seats

    def stop(self, seats: Iterable[Seat]) -> None:
        """End their hosts, which get a little time to do so by themselves."""
        import ray

        these = [seat for seat in seats if seat.node_id]
        for seat in these:
            seat.actor.stop.remote()
        runs = [seat.run for seat in these]
        if runs:
            ray.wait(runs, num_returns=len(runs), timeout=STOP_S)
        for seat in these:
            end_host(seat.name)

    def again(self, seats: Sequence[Seat]) -> Callable[[], bool]:
        """The sign that one of these has given a fragment that it had not then."""
        before = {seat.name: seat.fragments for seat in seats}
        return lambda: any(self.all[name].fragments > number for name, number in before.items())

    def facts(self, name_of: Callable[[str], str]) -> list[SeatFacts]:
        return [seat.facts(name_of) for seat in self.all.values()]

    def take_episodes(self) -> list[Episode]:
        """Told since the last time."""
        episodes, self.told.episodes = self.told.episodes, []
        return episodes

    def take_faults(self) -> list[str]:
        faults, self.told.faults = self.told.faults, []
        return faults

    def _ask(self) -> None:
        self._asked_at = time.monotonic()
        for seat in self.all.values():
            if seat.node_id and seat.asked is None:
                seat.asked = seat.actor.status.remote()

    def _take(self) -> None:
        import ray

        asked = {seat.asked: seat for seat in self.all.values() if seat.asked is not None}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=0) if asked else ([], [])
        for call in done:
            seat = asked[call]
            seat.asked = None
            try:
                status: HostStatus = ray.get(call)
            except no_answer():
                continue
            seat.hear(status)
            self.told.episodes += status.episodes
            self.told.faults += status.faults

    def _last_words(self, seats: Sequence[Seat]) -> None:
        """Of hosts that have ended and whose processes are still there; all together get the time that one gets."""
        import ray

        for _ in range(2 if seats else 0):  # what they were asked before may have been answered before their end
            for seat in seats:
                if seat.asked is None:
                    seat.asked = seat.actor.status.remote()
            ray.wait([seat.asked for seat in seats], num_returns=len(seats), timeout=LAST_WORDS_S)
            self._take()

    def _ended(self, seat: Seat, why: BaseException) -> None:
        if isinstance(why, ConfigError):
            raise WorkloadError(f"{seat.name}: {why}")
        text = f"{type(why).__name__}: {str(why).strip().partition(chr(10))[0]}"
        seat.failed_on = seat.node_id
        if not (seat.status and seat.status.fragments):
            seat.failures, seat.failure = seat.failures + 1, text
        if not isinstance(why, PlaneError):
            who = "" if isinstance(why, HpcjetError) else f"the host of {seat.name} ({seat.numbers}): "
            seat.vain_before, seat.fault = seat.vain_before + 1, who + text
        if seat.failures >= MAX_FAILURES and not isinstance(why, no_answer()):
            raise _given_up(seat) from (why if isinstance(why, WorldError) else None)
        seat.not_before = time.monotonic() + BACK_OFF_S[min(seat.failures, len(BACK_OFF_S) - 1)]
        lost = self.take_off([seat])
        self._losses.lost(f"the host of {seat.name} ({text})", self.again([seat]), fragments=lost)


def _end_of(run: Any) -> tuple[BaseException, bool]:
    """Why the call of a host came to its end, and whether the host's process is still there to tell of it."""
    import ray

    try:
        ray.get(run)
    except ray.exceptions.RayTaskError as error:
        return (error.cause if isinstance(error.cause, BaseException) else error), True
    except no_answer() as error:
        return error, False
    return WorkloadError("it stopped without being told to"), False


def _given_up(seat: Seat) -> WorkloadError:
    return WorkloadError(
        f"{seat.name} ({seat.numbers}) ended {seat.failures} times without a fragment, "
        f"the last time with {seat.failure}"
    )
