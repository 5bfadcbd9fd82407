"""What a host has seen since it began, bounded in memory."""

import time
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

from hpcjet.errors import WorldError
from hpcjet.swarm.vector import Episode, Turn

EPISODES, FAULTS = 1000, 100
"""So many of the newest are kept for who asks next."""
LONG_LIFE = 10_000
"""Steps. A world that failed after so many has come to something, also where its episodes never end."""
Item = TypeVar("Item")


class Tally:
    """Written by the thread that steps, read by another one."""

    def __init__(self) -> None:
        self.steps = 0
        """Of the vector, since the host began."""
        self.agent_steps = self.fragments = self.refused = self.episodes_ended = self.faults_seen = 0
        self.seconds = dict.fromkeys(("wait", "weights", "act", "step", "record", "insert"), 0.0)
        self._episodes: deque[Episode] = deque(maxlen=EPISODES)
        self._faults: deque[str] = deque(maxlen=FAULTS)
        self._asked = 0, time.monotonic()
        self._in_a_row: dict[int, int] = {}
        """World -> how often it failed since an episode of it ended; of those that have begun, or tried to."""

    @property
    def in_vain(self) -> int:
        """How often each world failed in a row, at least."""
        return min(list(self._in_a_row.values()), default=0)

    def begun(self, worlds: Iterable[int]) -> None:
        """These have been reset."""
        for world in worlds:
            self._in_a_row.setdefault(world, 0)

    def note(self, turn: Turn, act: float = 0.0, step: float = 0.0, record: float = 0.0) -> None:
        """A turn, and the seconds that went into it; a reset took none."""
        self.steps += step > 0
        for name, spent in (("act", act), ("step", step), ("record", record)):
            self.seconds[name] += spent
        self.episodes_ended += len(turn.episodes)
        self._in_a_row.update((episode.world, 0) for episode in turn.episodes)
        self._episodes.extend(turn.episodes)

    def fault(self, fault: WorldError) -> None:
        """As soon as it is seen: the turn that it belongs to may take long, or never come."""
        self.faults_seen += 1
        self._faults.append(str(fault))
        in_a_row = self._in_a_row.get(fault.world, 0)
        self._in_a_row[fault.world] = 0 if (fault.step or 0) >= LONG_LIFE else in_a_row + 1

    def take_episodes(self) -> list[Episode]:
        return list(_drain(self._episodes))

    def take_faults(self) -> list[str]:
        return list(_drain(self._faults))

    def rate(self) -> float:
        """Agent-steps a second since the last call."""
        steps, at = self._asked
        self._asked = now = self.agent_steps, time.monotonic()
        return (now[0] - steps) / max(now[1] - at, 1e-9)


def _drain(queue: deque[Item]) -> Iterable[Item]:
    while queue:
        yield queue.popleft()
