"""Watch many jobs until they have ended: one batched question at a time, less and less often."""

import time
from collections.abc import Iterable, Mapping

from hpcjet.slurm.query import JobState, job_states
from hpcjet.slurm.states import Stage

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
GROWTH = 1.5


class Watch:
    """The last known states of a set of jobs.

    A controller that is away changes nothing: its jobs keep the state from before, and it is asked again without limit
    of tries. What has ended stays so and is not asked about again; `again` takes it back after a requeue that was seen.
    """

    def __init__(self, ids: Iterable[str], *, submitted: Mapping[str, float] | None = None) -> None:
        self.states: dict[str, JobState] = {key: JobState(Stage.unknown) for key in ids}
        self.pause_s = FIRST_PAUSE_S
        """How long to wait before the next poll: short while things change, longer while they do not."""
        self.silent_since: float | None = None
        """time.monotonic() of the first question that Slurm did not answer; None while it answers."""
        self._submitted = dict(submitted or {})

    @property
    def open(self) -> list[str]:
        """The ids that have not ended."""
        return [key for key, state in self.states.items() if state.stage is not Stage.ended]

    def poll(self) -> dict[str, JobState]:
        """Ask once about all that are open; returns what has changed."""
        asked = self.open
        if not asked:
            return {}
        answers = job_states(asked, submitted=self._submitted)
        known = {key: state for key, state in answers.items() if state.stage is not Stage.unknown}
        changed = {key: state for key, state in known.items() if state != self.states[key]}
        self.states.update(changed)
        self._pace(answered=bool(known), changed=bool(changed))
        return changed

    def again(self, key: str) -> None:
        """The job was queued again."""
        self.states[key] = JobState(Stage.unknown)
        self.pause_s = FIRST_PAUSE_S

    def _pace(self, *, answered: bool, changed: bool) -> None:
        self.silent_since = None if answered else self.silent_since or time.monotonic()
        self.pause_s = FIRST_PAUSE_S if changed else min(self.pause_s * GROWTH, LONGEST_PAUSE_S)
