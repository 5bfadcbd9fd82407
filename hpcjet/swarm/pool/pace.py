"""How long sources take for a fragment, and so how long their questions may be collected."""

from hpcjet.swarm.pool.together import COLLECT_S

SHARE = 0.02
"""Of the time of a fragment. A source is held up by less, and only where another one asked just before it."""
MOST_S = 1.0
NEW = 0.2
"""The weight of the newest fragment in the mean."""


class Pace:
    """By the inserts of all sources of a node."""

    def __init__(self) -> None:
        self.fragment_s = 0.0
        """A sliding mean."""
        self._last: dict[str, tuple[int, float]] = {}

    def inserted(self, source: str, first_step: int, now: float) -> None:
        """`now` in seconds. What begins at the same step was made at the same time, for other policies or groups."""
        step, then = self._last.get(source, (first_step, now))
        if step != first_step:
            self.fragment_s += (now - then - self.fragment_s) * (NEW if self.fragment_s else 1.0)
        if step != first_step or source not in self._last:
            self._last[source] = first_step, now

    def pause_s(self) -> float:
        return min(max(COLLECT_S, SHARE * self.fragment_s), MOST_S)
