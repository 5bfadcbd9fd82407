"""run.max_hours: how long the head allocations of a run ran together, by its events, and what is left."""

from collections.abc import Iterable

from hpcjet.cluster.events import Entry, Event, read_events
from hpcjet.cluster.place import Place
from hpcjet.plan import Plan

LEAST_S = 30.0
"""With less than this another start would not come to any work."""


def left_s(plan: Plan, place: Place) -> float | None:
    """Seconds that this start of the head, and those after it, may run; None without a bound, at least 0."""
    if plan.max_hours is None:
        return None
    return max(0.0, plan.max_hours * 3600 - used_s(read_events(plan.run.events), but=place))


def warning_s(plan: Plan) -> float:
    """How long before the bound the run stops: as before a time limit, at most a third of it."""
    return min(float(plan.signal_delay_s or plan.end_timeout_s), (plan.max_hours or 0.0) * 3600 / 3)


def used_s(entries: Iterable[Entry], *, but: Place | None = None) -> float:
    """Seconds that the starts of the head took together, without that of `but`.

    One that was killed has no end among the events: then its last event counts as that.
    """
    begun: dict[tuple[str, int], float] = {}
    ended: dict[tuple[str, int], float] = {}
    for entry in entries:
        start = (entry.allocation, entry.restart)
        if entry.apart or (but and start == (but.allocation, but.restart)):
            continue
        if entry.event == Event.allocated.value:
            begun[start] = entry.t
        noted = entry.facts.get("noted")
        ended[start] = max(ended.get(start, 0.0), float(noted) if isinstance(noted, int | float) else entry.t)
    return sum(max(0.0, ended[start] - begin) for start, begin in begun.items())
