"""What was admitted, by what it is and not by where it lies: a fragment that is offered again counts once."""

from collections import deque

from hpcjet.swarm.pool.entry import Entry

KEPT = 16
"""Of each source and route the newest so many are known. A source has one on its way at a time."""


class Admitted:
    """Fragments by source, policy, group and first step, those of the newest attempt of each source."""

    def __init__(self) -> None:
        self._steps: dict[tuple[str, str, str], tuple[int, deque[int]]] = {}

    def __contains__(self, entry: Entry) -> bool:
        attempt, steps = self._steps.get(_route(entry), (-1, ()))
        return attempt == entry.attempt and entry.first_step in steps

    def add(self, entry: Entry) -> None:
        attempt, steps = self._steps.get(_route(entry), (-1, deque()))
        if attempt != entry.attempt:
            steps = deque(maxlen=KEPT)
            self._steps[_route(entry)] = entry.attempt, steps
        steps.append(entry.first_step)

    def forget(self, entry: Entry) -> None:
        """It is lost: should it be offered again, it is new."""
        if entry in self:
            self._steps[_route(entry)][1].remove(entry.first_step)


def _route(entry: Entry) -> tuple[str, str, str]:
    return entry.source, entry.policy, entry.group
