"""How many worker allocations run and how many wait, for someone who watches a run."""

import time
from collections import Counter
from collections.abc import Iterable

from hpcjet.rundir import RunDir
from hpcjet.slurm.allocations import allocation_states, allocations
from hpcjet.slurm.query import JobState, Stage

WORDS = {Stage.running: "running", Stage.pending: "queued", Stage.unknown: "not known to be over"}
ASK_S = 15.0
"""Between two questions to Slurm by someone who only watches."""


def counted(states: Iterable[JobState]) -> str:
    """`3 running, 2 queued`; empty if none lives."""
    counts = Counter(state.stage for state in states)
    return ", ".join(f"{counts[stage]} {word}" for stage, word in WORDS.items() if counts[stage])


class Counts:
    """The count of a run's worker allocations; Slurm is asked now and then."""

    def __init__(self, run: RunDir) -> None:
        self._run, self._text, self._asked = run, "", -ASK_S

    def text(self) -> str:
        """Such as `worker allocations: 3 running, 2 queued`; empty where none lives."""
        if time.monotonic() >= self._asked + ASK_S:
            alive = [each for each in allocations(self._run) if not each.ended]
            count = counted(allocation_states(self._run, alive).values()) if alive else ""
            self._text = f"worker allocations: {count}" if count else ""
            self._asked = time.monotonic()
        return self._text
