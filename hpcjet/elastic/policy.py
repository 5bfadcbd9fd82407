"""How many nodes each group should have now. Pure: no clock, no disk; simulation and keeper run the same code.

Rules, in the order in which they bind:
- A wish of a person takes the place of `max` and caps `min`. Without one there are `min` to `max` nodes.
- A group grows until its nodes, with those to come, hold all tasks that could be at work. Groups are filled in the
  order of the config, so the cheapest stands first. What waits in the queue for PATIENCE_S does not hold up the next.
- An allocation near its end does not count: its replacement is asked for ahead, as long as there is work beyond it.
- What waits in the queue is cancelled once the nodes that are there do without it. A node on which nothing is at work
  for `idle_s` is given back, unless tasks wait that it could still take.
- Failed starts in a row pause a group, for longer each time; after the pause one allocation tries.
- A group of which no backlog speaks has the nodes that it started with, or those that a person wants.
"""

import math
from collections.abc import Iterable, Sequence

from hpcjet.elastic.groupstate import PATIENCE_S, State
from hpcjet.elastic.views import Action, Allocation, Backlog, Cancel, Drain, Group, Pause, Submit

__all__ = ["PATIENCE_S", "decide", "paused_until"]

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
BURST = 20
"""Jobs of one group that are submitted at once; more come the next time."""


def decide(groups: Sequence[Group], backlog: Backlog | None, now: float) -> list[Action]:
    """What to do now for the groups, given in the order of the config; no backlog: the driver says nothing of its work.

    Each answer assumes that the one before was carried out, and that its effect is in `groups`.
    """
    states = [State(group, backlog, now) for group in groups]
    actions: list[Action] = []
    for number, state in enumerate(states):
        if not state.group.elastic:
            continue
        hopeless = [Cancel(each.name, each.hopeless, hopeless=True) for each in state.hopeless]
        # After a failed start the next one is for the next time, when it has been counted.
        grown = [] if hopeless else list(_grow(number, states, backlog, now))
        actions += [*hopeless, *grown]
        if not any(isinstance(action, Submit) for action in grown):
            actions += _shrink(number, states, backlog, now)
    return actions


def paused_until(failures: int, max_failures: int, failed_at: float) -> float | None:
    """Until when a group rests after failed starts in a row; None: it does not."""
    if failures < max_failures:
        return None
    return failed_at + min(FIRST_PAUSE_S * 2.0 ** min(failures - max_failures, 20), LONGEST_PAUSE_S)


def _grow(number: int, states: Sequence[State], backlog: Backlog | None, now: float) -> Iterable[Action]:
    state = states[number]
    group = state.group
    missing = _missing(number, states, backlog)
    if missing <= 0:
        return
    until = paused_until(group.failures, group.max_failures, group.failed_at)
    if until is not None and now < until:
        yield Pause(group.name, until, f"{group.failures} starts in a row have failed")
        return
    jobs = BURST
    if until is not None:
        jobs = 0 if state.to_come else 1
    for _ in range(jobs):
        if missing <= 0:
            return
        nodes = min(group.nodes_per_job, missing)
        missing -= nodes
        state.asked += nodes
        yield Submit(group.name, nodes)


def _missing(number: int, states: Sequence[State], backlog: Backlog | None) -> int:
    """Nodes to ask for in group `number`."""
    state = states[number]
    if backlog is not None and backlog.is_over:
        return 0
    least = state.floor(real_backlog=_really_waits(states, backlog))
    wanted = least - state.counted
    if backlog is not None and state.serves and (slots := state.slots):
        free = _demand(states, backlog) - _supply(number, states)
        wanted = max(wanted, math.ceil(free / slots))
    return min(wanted, state.ceiling - state.counted)


def _demand(states: Sequence[State], backlog: Backlog) -> int:
    """Slots that the work needs, without those tasks that end where they are, on nodes that are leaving."""
    leaving = min(sum(state.leaving_tasks for state in states if state.serves), backlog.in_flight)
    rest = backlog.waiting + backlog.in_flight - leaving
    return rest if backlog.most is None else min(rest, backlog.most)


def _supply(number: int, states: Sequence[State]) -> int:
    """Slots that there are or will be, as group `number` sees it: earlier groups that wait for long do not count."""
    return sum(
        state.slots * state.counted_for(later=before < number) for before, state in enumerate(states) if state.serves
    )


def _really_waits(states: Sequence[State], backlog: Backlog | None) -> bool:
    """Whether more tasks wait than the nodes have room for, so that more nodes would have work at once."""
    if backlog is None:
        return True
    room = sum(state.slots * state.working for state in states if state.serves)
    return backlog.waiting > 0 and backlog.wanted > max(room, backlog.in_flight)


def _shrink(number: int, states: Sequence[State], backlog: Backlog | None, now: float) -> Iterable[Action]:
    state = states[number]
    yield from _over_the_ceiling(state)
    if backlog is not None and state.serves:
        yield from _not_needed(number, states, backlog, now)
        yield from _idle(state, backlog)
    elif backlog is not None and backlog.is_over:
        yield from _cancel_queued(state)


def _over_the_ceiling(state: State) -> Iterable[Action]:
    """Down to the most that there may be, in whole jobs: what costs least first."""
    if max(state.counted, state.working) <= state.ceiling:
        return
    reason = "a person wants fewer nodes" if state.group.wish is not None else "more nodes than the group's max"
    for each in sorted(state.kept, key=state.cost_of_leaving):
        nodes = state.nodes(each)
        if state.is_near_end(each) and state.working - nodes >= state.ceiling:
            yield from _end(state, each, "its replacement is there")
        elif not state.is_near_end(each) and nodes and state.counted - nodes >= state.ceiling:
            yield from _end(state, each, reason)


def _not_needed(number: int, states: Sequence[State], backlog: Backlog, now: float) -> Iterable[Action]:
    """Cancel what was asked for and is not needed any more, the newest first."""
    state = states[number]
    least = state.floor(real_backlog=_really_waits(states, backlog))
    needed = _demand(states, backlog) - sum(other.slots * other.lasting for other in states if other.serves)
    queues = [(other.slots, other.queue(later=n < number)) for n, other in enumerate(states) if other.serves]
    for each in sorted(state.kept, key=lambda allocation: (allocation.submitted, allocation.name), reverse=True):
        if each.at_work or now - each.submitted < state.group.idle_s or state.counted - each.nodes < least:
            continue
        if sum(slots * queue.before(each) for slots, queue in queues) >= needed:
            yield from _end(state, each, "the nodes that are there do without it")


def _idle(state: State, backlog: Backlog) -> Iterable[Action]:
    """Give back what has nothing to do, a whole job at a time: single nodes of a job are not free before the rest."""
    least = state.floor(real_backlog=False)
    for each in sorted(state.kept, key=state.cost_of_leaving):
        if not each.at_work or not state.is_idle(each):
            continue
        if backlog.waiting > 0 and not state.is_too_late_for(each, backlog):
            continue
        if state.is_near_end(each) or state.counted - state.nodes(each) >= least:
            yield from _end(state, each, f"idle for {state.group.idle_s:g} s")


def _cancel_queued(state: State) -> Iterable[Action]:
    for each in list(state.kept):
        if not each.at_work:
            yield from _end(state, each, "the work is done")


def _end(state: State, allocation: Allocation, reason: str) -> Iterable[Action]:
    """Drain the members at work; without any, cancel the job."""
    if allocation.at_work:
        yield from (Drain(member.name, reason) for member in allocation.at_work)
    elif not allocation.members:
        yield Cancel(allocation.name, reason)
    else:
        return  # its agents have just said hello: once they have joined they are asked to go
    state.let_go(allocation)
