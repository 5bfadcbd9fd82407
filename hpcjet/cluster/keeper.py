"""The process on the head that keeps the groups of a run at the size that its work needs."""

import contextlib
import time
from typing import Any

from hpcjet.cluster.child import Child
from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.sidecar import Kept
from hpcjet.cluster.site import Site

MODULE = "hpcjet.elastic.keeper"
STOP_S = 3.0
"""It has nothing to save; a submission under way is found again by its record."""


class Keeper(Kept):
    """Started with the plan, and again when it ends. What it says are words for the head."""

    def __init__(self, site: Site) -> None:
        self._site = site
        super().__init__()

    def begin(self) -> Child:
        plan = self._site.plan
        words = [plan.python, "-u", "-m", MODULE, str(plan.run.plan)]
        return Child("keeper", words, env=self._site.env, log=self._site.log("keeper"), outbox=True)

    def stop(self, timeout_s: float = STOP_S) -> None:
        super().stop(timeout_s)


def note_said(events: Events, said: dict[str, Any]) -> None:
    """Put what it wants noted into the events; an event that this version does not know is left out."""
    facts = said.get("facts")
    plain = {
        name: value
        for name, value in (facts if isinstance(facts, dict) else {}).items()
        if isinstance(value, str | int | float)
    }
    with contextlib.suppress(ValueError):
        events.note_each(Event(said.get("event")), [(time.time(), plain)])
