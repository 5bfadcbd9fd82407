"""What is said below the table: the slowest node, wrong clocks, what is missing, the longest step of the start."""

from collections import Counter
from collections.abc import Sequence

from hpcjet.cluster.events import Entry, Event
from hpcjet.timeline.awaited import AT_WORK, QUEUED
from hpcjet.timeline.life import Life, Step
from hpcjet.timeline.words import number, seconds, some


def sentences(life: Life, steps: Sequence[Step], *, awaited: str, going_on: bool) -> list[str]:
    about = [_others(life), _slowest(life), _clocks(life), _open(life, awaited) if going_on else _missing(life)]
    return [each for each in (*about, _longest(life, steps, going_on=going_on)) if each]


def _slowest(life: Life) -> str:
    agents, rays = life.hosts(Event.agent_up), life.hosts(Event.ray_up)
    order = sorted(((t - agents[host], host) for host, t in rays.items() if host in agents), reverse=True)
    if len(order) < 3:
        return ""
    named = " and ".join(f"{host} ({seconds(took)})" for took, host in order[:2])
    return f"slowest from agent to Ray: {named}; the median node {seconds(order[len(order) // 2][0])}"


def _clocks(life: Life) -> str:
    order = sorted(life.clocks.items(), key=lambda pair: -abs(pair[1]))
    if not order:
        return ""
    named = [f"{who} about {seconds(abs(by))} {'ahead' if by > 0 else 'behind'}" for who, by in order[:2]]
    more = f" and {number(len(order) - 2)} more" if len(order) > 2 else ""
    return f"clocks differ from the head's, and these times were moved: {', '.join(named)}{more}"


def _open(life: Life, awaited: str) -> str:
    return f"waiting for {awaited}" if awaited and awaited not in (QUEUED, AT_WORK) else ""


def _missing(life: Life) -> str:
    if not (life.first(Event.released) or life.first(Event.requeued)):
        return f"it ended without a word after: {life.steps[-1].label}"
    never = "" if life.first(Event.workload_start) or not life.without_ray else some(life.without_ray)
    return f"never in Ray: {never}" if never else ""


def _longest(life: Life, steps: Sequence[Step], *, going_on: bool) -> str:
    """The last sentence: about the start, since the work itself is what a run is for."""
    start = life.first(Event.workload_start)
    of_start = [step for step in steps[1:] if not step.at_work and (start is None or step.at <= start.t)]
    if not of_start:
        return ""
    longest = max(of_start, key=lambda step: step.took)
    what = f"the longest step: {seconds(longest.took)} {longest.spent}"
    if start:
        return f"{seconds(start.t - life.began)} from {life.origin} to work; {what}"
    so_far = seconds(steps[-1].at - life.began)
    return f"no work yet after {so_far}; {what}" if going_on else f"no work began in {so_far}; {what}"


def _others(life: Life) -> str:
    """The nodes of other allocations."""
    joined = {entry.member for entry in life.joins}
    ends = {Event.node_lost.value: "lost", Event.left.value: "given back"}
    last = {entry.member: entry.event for entry in life.entries if entry.member in joined and entry.event in _STANDS}
    counts = Counter(ends.get(event, "there") for event in last.values())
    parts = [f"{number(counts[word])} {word}" for word in ("there", "given back", "lost") if counts[word]]
    return f"nodes of other allocations: {number(len(joined))} joined, {', '.join(parts)}" if joined else ""


_STANDS = {Event.ray_up.value, Event.agent_up.value, Event.node_lost.value, Event.left.value}


def without_head(entries: Sequence[Entry]) -> list[str]:
    """Of the allocations that found no head."""
    gave_up = {entry.allocation for entry in entries if entry.apart and entry.event == Event.gave_up}
    if not gave_up:
        return []
    allocations = "allocations" if len(gave_up) > 1 else "allocation"
    return [f"{number(len(gave_up))} worker {allocations} found no head and gave the nodes back"]
