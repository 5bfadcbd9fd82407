"""How an allocation's part of a run ended, and what follows: done, failed, or stopped and queued again."""

import os
import signal
import time
from dataclasses import dataclass, replace

from hpcjet.cluster import hours
from hpcjet.cluster.events import Event, Events
from hpcjet.cluster.place import Place
from hpcjet.cluster.state import ASK, QUEUED, REQUEUED, RESUBMIT, Phase, RunState, read_state, write_state
from hpcjet.errors import EXIT_INTERRUPTED, EXIT_OK
from hpcjet.plan import Plan
from hpcjet.slurm.requeue import Cause, cause_of_sigterm, element_id, requeue, time_left_s


@dataclass(frozen=True)
class End:
    """What became of one node's part."""

    code: int
    reason: str = ""
    signal: str = ""
    """The signal that asked for it."""
    asked: float = 0.0
    """When, in Unix seconds."""


def until_stop_s(plan: Plan, number: int, stop: float | None = None) -> float:
    """Seconds that work may still go on after a signal; not beyond `stop`, in Unix seconds.

    Slurm warns up to a minute early; in a short job that is most of its time.
    """
    if number != signal.SIGUSR2 or plan.signal_delay_s is None:
        return 0.0
    if stop is not None and time.time() >= stop:
        return 0.0
    left_s = time_left_s(os.environ)
    return max(0.0, left_s - plan.signal_delay_s) if left_s is not None else 0.0


def final_state(plan: Plan, place: Place, end: End, events: Events, *, started: float) -> RunState:
    """The last word of an allocation, and whether its job shall be queued again (`then`)."""
    state = RunState(_phase(end), allocation=place.allocation, exit_code=end.code, started=started)
    if not end.signal:
        return replace(state, reason=end.reason or _drivers_reason(plan, end))
    cause = _cause(plan, place, end)
    events.note(Event.stop_asked, at=end.asked, reason=cause.value)
    if cause is Cause.requeued:
        events.note(Event.requeued)
    reason, then = _what_follows(plan, place, cause, used_up=_is_used_up(plan, place, started=started))
    return replace(state, reason=f"it got {end.signal} ({cause.value}){reason}", then=then)


def queue_again(plan: Plan, state: RunState, events: Events) -> None:
    """Ask Slurm to run the job again. The very last thing: Slurm then kills what is left of it, us included."""
    events.note(Event.requeued)
    if refused := requeue(element_id(os.environ)):
        reason = f"{state.reason}; but it could not be: {refused}"
        write_state(plan.run.state, replace(state, reason=reason, then=RESUBMIT))


def stop_at(plan: Plan, place: Place, *, started: float) -> float | None:
    """When this start of the head has to stop for run.max_hours, in Unix seconds; None without a bound."""
    left_s = hours.left_s(plan, place)
    return None if left_s is None else started + max(0.0, left_s - hours.warning_s(plan))


def _is_used_up(plan: Plan, place: Place, *, started: float) -> bool:
    """Whether run.max_hours leaves nothing for another start."""
    left_s = hours.left_s(plan, place)
    return left_s is not None and left_s - (time.time() - started) <= hours.warning_s(plan) + hours.LEAST_S


def _what_follows(plan: Plan, place: Place, cause: Cause, *, used_up: bool) -> tuple[str, str]:
    """(what is said about it, what follows)"""
    if used_up and cause not in (Cause.cancelled, Cause.requeued):
        return f"; run.max_hours={plan.max_hours:g} are used up: raise it to go on with hpcjet resume", ""
    if cause is Cause.requeued:
        return "", QUEUED
    if not plan.requeue or cause is Cause.cancelled:
        return "", ""
    if place.restart >= plan.max_restarts:
        return f"; not queued again after {place.restart} restarts (cluster.max_restarts={plan.max_restarts})", ""
    if cause is Cause.unknown:
        return "; the node could not find out which", ASK
    return f"; to be queued again, restart {place.restart + 1} of at most {plan.max_restarts}", REQUEUED


def _cause(plan: Plan, place: Place, end: End) -> Cause:
    if end.signal == "SIGUSR2":
        return Cause.time_limit
    if plan.cluster == "local":
        return Cause.cancelled
    cause = cause_of_sigterm(os.environ["SLURM_JOB_ID"], restart=place.restart)
    left_s = time_left_s(os.environ) if cause is Cause.unknown else None
    return Cause.time_limit if left_s is not None and left_s <= 0 else cause


def _phase(end: End) -> Phase:
    return {EXIT_OK: Phase.done, EXIT_INTERRUPTED: Phase.interrupted}.get(end.code, Phase.failed)


def _drivers_reason(plan: Plan, end: End) -> str:
    """What the driver noted before it failed."""
    state = read_state(plan.run.state)
    return state.reason if state and end.code else ""
