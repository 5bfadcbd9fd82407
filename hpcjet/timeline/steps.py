"""The steps of an allocation: a row for each thing that happened, and few for what happens to thousands of nodes."""

from collections.abc import Sequence

from hpcjet.cluster.clocks import on_one_clock
from hpcjet.cluster.events import Entry, Event
from hpcjet.timeline.life import Life, Step
from hpcjet.timeline.words import number

SAME_SHOWN = 2
"""Rows of one kind that can come in thousands, such as lost nodes."""


def lives_of(entries: Sequence[Entry], num_nodes: int) -> list[Life]:
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if not entry.apart:
            groups.setdefault((entry.allocation, entry.restart), []).append(entry)
    lives, requeued = [], dict[str, float]()
    for (allocation, restart), group in groups.items():
        if allocation in requeued and all(entry.event != Event.submitted for entry in group):
            group = [Entry(requeued[allocation], Event.submitted.value, allocation, restart), *group]
        on_one, clocks = on_one_clock(group)
        life = Life(allocation, restart, on_one, clocks, num_nodes)
        life.steps.extend(steps_of(life))
        lives.append(life)
        if again := life.first(Event.requeued):
            requeued[allocation] = again.t
    return lives


def steps_of(life: Life) -> list[Step]:
    """In the order of time, each with the seconds since the one before."""
    found = [
        *_around(life),
        *_of_nodes(life, Event.agent_up, "agent"),
        *_of_nodes(life, Event.ray_up, "Ray"),
        *_joined_later(life),
    ]
    found.sort(key=lambda pair: (pair[1].at, pair[0]))
    steps, previous, at_work = [], None, False
    for rank, step in found:
        took = step.at - previous if previous is not None else 0.0
        steps.append(Step(step.at, step.label, step.spent, step.style, took, at_work))
        previous = step.at
        at_work = (at_work or rank == _RANK["workload_start"]) and rank != _RANK["workload_end"]
    return steps


_RANK = {event.value: rank for rank, event in enumerate(Event)}
Ranked = tuple[int, Step]


def _around(life: Life) -> list[Ranked]:
    """All but the start of the nodes; of a kind that comes often the first ones, and the rest in one step."""
    kinds: dict[str, list[Entry]] = {}
    for entry in _to_show(life.entries):
        kinds.setdefault(entry.event, []).append(entry)
    found: list[Ranked] = []
    for event, entries in kinds.items():
        entries.sort(key=lambda entry: entry.t)
        found += _first_and_rest(event, [(each, _step(each)) for each in entries], _MANY.get(event, f"times {event}"))
    return found


def _to_show(entries: Sequence[Entry]) -> list[Entry]:
    """A node that is lost or given back has one row, whatever was said of it before."""
    gone = {entry.member for entry in entries if entry.event in (Event.node_lost, Event.left)}
    starts, foretold = (Event.agent_up, Event.ray_up), (Event.leaving, Event.drain)
    return [
        entry
        for entry in entries
        if entry.event not in starts and not (entry.event in foretold and entry.member in gone)
    ]


def _joined_later(life: Life) -> list[Ranked]:
    """The nodes of other allocations, by group."""
    groups: dict[str, list[Entry]] = {}
    for entry in life.joins:
        groups.setdefault(str(entry.facts.get("group", "")), []).append(entry)
    found: list[Ranked] = []
    for group, entries in groups.items():
        entries.sort(key=lambda entry: entry.t)
        of = f" of {group}" if group else ""
        steps = [(each, Step(each.t, f"{each.host}{of} joined", f"until {each.host} joined")) for each in entries]
        found += _first_and_rest(Event.ray_up.value, steps, f"nodes{of} joined")
    return found


def _first_and_rest(event: str, steps: list[tuple[Entry, Step]], what: str) -> list[Ranked]:
    rank = _RANK.get(event, len(_RANK))
    shown = steps if len(steps) == SAME_SHOWN + 1 else steps[:SAME_SHOWN]
    found = [(rank, step) for _, step in shown]
    if rest := steps[len(shown) :]:
        last, step = rest[-1]
        named = f", last {last.host}" if "host" in last.facts else ""
        found.append((rank, Step(last.t, f"{number(len(rest))} more {what}{named}", step.spent, style=step.style)))
    return found


_MANY = {
    "node_lost": "nodes lost",
    "left": "nodes given back",
    "drain": "nodes drain",
    "leaving": "nodes to be taken away",
    "refused": "refused",
    "allocation_submitted": "times nodes asked for",
    "allocation_failed": "allocations failed",
}


def _step(entry: Entry) -> Step:
    facts, host = entry.facts, entry.host
    code = facts.get("exit_code")
    shown_code = "" if code is None else f", exit code {code}"
    red = "red" if code else ""
    reason, group, nodes = facts.get("reason", ""), facts.get("group", "?"), number(facts.get("nodes", "?"))
    why = f": {reason}" if reason else ""
    others = [str(value) for name, value in facts.items() if name != "noted"]
    known = {
        "submitted": ("requeued" if entry.restart else "submitted", "", ""),
        "allocated": ("nodes allocated", "in the queue", ""),
        "ready": (f"ready with {nodes} of the nodes", "until enough nodes were in", ""),
        "workload_start": ("work began", "until the work began", ""),
        "workload_end": (f"work ended{shown_code}", "until the work ended", red),
        "node_lost": (f"{host} lost{why}", f"until {host} was lost", "red"),
        "left": (f"{host} given back{why}", f"until {host} was given back", ""),
        "drain": (f"{host} drains{why}", f"until {host} drained", ""),
        "leaving": (f"{host} to be taken away{why}", f"until {host} was to be taken away", "yellow"),
        "refused": (f"{facts.get('peer', '?')} refused{why}", "until one was refused", "yellow"),
        "allocation_submitted": (f"asked for {nodes} of {group}", "until nodes were asked for", ""),
        "allocation_failed": (f"no nodes of {group}{why}", "until an allocation failed", "red"),
        "paused": (f"{group} paused{why}", "until no more nodes were asked for", "yellow"),
        "scaled": (f"a person wants {nodes} of {group}", "until a person wanted others", ""),
        "stop_asked": (f"asked to stop{why}", "until it was asked to stop", "yellow"),
        "requeued": ("given back to the queue", "until it was back in the queue", "yellow"),
        "released": (f"all nodes released{shown_code}", "until all nodes were released", red),
    }
    label, spent, style = known.get(entry.event) or (" ".join([entry.event, *others]), entry.event, "")
    return Step(entry.t, label, spent, style)


def _of_nodes(life: Life, event: Event, what: str) -> list[Ranked]:
    """The first, the middle and the last."""
    order = sorted((t, host) for host, t in life.hosts(event).items())
    total = max(life.num_nodes, len(life.hosts(Event.agent_up)), len(order))
    found: list[Ranked] = []
    for index in sorted({0, (len(order) - 1) // 2, len(order) - 1} if order else ()):
        t, host = order[index]
        named = index in (0, len(order) - 1) or len(order) <= 3
        label = f"{what} on {number(index + 1)} of {number(total)}" if total > 1 else f"{what} on"
        spent = f"for {'Ray' if event == Event.ray_up else 'the agent'} on {host if named else 'half of the nodes'}"
        separator = ":" if total > 1 else ""
        found.append((_RANK[event.value], Step(t, f"{label}{separator} {host}" if named else label, spent)))
    return found
