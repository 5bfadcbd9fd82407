"""The events of a run as a timeline for a person: how long each step of the start took. Pure: events in, lines out."""

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.text import Text

from hpcjet.cluster.clocks import on_one_clock
from hpcjet.cluster.events import Entry, Event, Fact
from hpcjet.swe.duration import duration

Line = list[tuple[str, str]]
"""(text, style) from left to right."""

_EARLIER_SHOWN = 10
_SAME_SHOWN = 2
"""Rows of one kind that can come in thousands, such as lost nodes."""
_LABEL = 36
_QUEUED, _AT_WORK = "in the queue", "at work"


def timeline_lines(
    entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int = 0, width: int = 80
) -> list[str]:
    """Plain text, within `width` columns.

    `now` is in Unix seconds; `num_nodes` is how many the run asked for, where that is known.
    """
    lines = _lines(entries, now=now, going_on=going_on, num_nodes=num_nodes, width=width, bar="#")
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def timeline_text(
    entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int = 0, width: int = 80, bar: str = "█"
) -> Text:
    """The same for rich, in colours where the terminal has them."""
    lines = _lines(entries, now=now, going_on=going_on, num_nodes=num_nodes, width=width, bar=bar)
    return Text("\n").join(Text.assemble(*line) for line in lines)


def _lines(entries: Sequence[Entry], *, now: float, going_on: bool, num_nodes: int, width: int, bar: str) -> list[Line]:
    lives = _lives(entries, num_nodes)
    if not lives:
        return []
    *earlier, last = lives
    lines: list[Line] = []
    if len(earlier) > _EARLIER_SHOWN:
        lines.append([(f"{len(earlier) - _EARLIER_SHOWN} earlier ones", "dim")])
    lines += [[(_cut(_in_one_line(life), width), "dim")] for life in earlier[-_EARLIER_SHOWN:]]
    if earlier:
        lines.append([])
    awaited = _awaited(last) if going_on else ""
    steps = [*last.steps, _now(last, now, awaited)] if awaited else last.steps
    lines += [[(_cut(_title(last), width), "bold")], *_table(steps, width=width, bar=bar), []]
    for sentence in _sentences(last, steps, awaited=awaited, going_on=going_on):
        parts = textwrap.wrap(_clean(sentence), width, break_long_words=False)
        lines += [[(part.replace("\xa0", " "), "")] for part in parts]
    return lines


# what happened in one allocation


@dataclass(frozen=True)
class _Step:
    """What happened, at which Unix second, and what the time before it was spent on."""

    at: float
    label: str
    spent: str = ""
    """`41 s` + this: in the queue."""
    style: str = ""
    took: float = 0.0
    """Seconds since the step before."""
    at_work: bool = False
    """Whether the workload ran in that time: then it is no part of the start or of the end."""


@dataclass(frozen=True)
class _Life:
    """One allocation between two restarts."""

    allocation: str
    restart: int
    entries: list[Entry]
    """With the times on one clock."""
    clocks: dict[str, float]
    """Whose clock differs from the head's, by about how many seconds (ahead is positive)."""
    num_nodes: int
    steps: list[_Step] = field(default_factory=list)

    def first(self, event: Event) -> Entry | None:
        return next((entry for entry in self.entries if entry.event == event), None)

    def hosts(self, event: Event) -> dict[str, float]:
        """Host -> when, for the first time."""
        found: dict[str, float] = {}
        for entry in self.entries:
            if entry.event == event:
                found.setdefault(entry.host, entry.t)
        return found

    @property
    def began(self) -> float:
        return self.steps[0].at

    @property
    def origin(self) -> str:
        words = {"submitted": "submission", "requeued": "requeue"}
        return words.get(self.steps[0].label, "its first event")

    @property
    def works(self) -> bool:
        return self.first(Event.workload_start) is not None and self.first(Event.workload_end) is None

    @property
    def worked_s(self) -> float | None:
        start, end = self.first(Event.workload_start), self.first(Event.workload_end) or self.first(Event.released)
        return end.t - start.t if start and end else None

    @property
    def without_ray(self) -> list[str]:
        """Hosts whose agent is up, in the order of their names; none in a run that does without Ray."""
        up = self.hosts(Event.ray_up)
        return sorted(host for host in self.hosts(Event.agent_up) if host not in up) if up else []


def _lives(entries: Sequence[Entry], num_nodes: int) -> list[_Life]:
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.allocation, entry.restart), []).append(entry)
    lives, requeued = [], dict[str, float]()
    for (allocation, restart), group in groups.items():
        if allocation in requeued and all(entry.event != Event.submitted for entry in group):
            group = [Entry(requeued[allocation], Event.submitted.value, allocation, restart), *group]
        on_one, clocks = on_one_clock(group)
        life = _Life(allocation, restart, on_one, clocks, num_nodes)
        life.steps.extend(_steps(life))
        lives.append(life)
        if again := life.first(Event.requeued):
            requeued[allocation] = again.t
    return lives


# steps


def _steps(life: _Life) -> list[_Step]:
    """In the order of time, each with the seconds since the one before."""
    found = _around(life) + _of_nodes(life, Event.agent_up, "agent") + _of_nodes(life, Event.ray_up, "Ray")
    found.sort(key=lambda pair: (pair[1].at, pair[0]))
    steps, previous, at_work = [], None, False
    for rank, step in found:
        took = step.at - previous if previous is not None else 0.0
        steps.append(_Step(step.at, step.label, step.spent, step.style, took, at_work))
        previous = step.at
        at_work = (at_work or rank == _RANK["workload_start"]) and rank != _RANK["workload_end"]
    return steps


_RANK = {event.value: rank for rank, event in enumerate(Event)}
_Ranked = tuple[int, _Step]


def _around(life: _Life) -> list[_Ranked]:
    """All but the start of the nodes; of a kind that comes often the first ones, and the rest in one step."""
    kinds: dict[str, list[Entry]] = {}
    for entry in life.entries:
        if entry.event not in (Event.agent_up, Event.ray_up):
            kinds.setdefault(entry.event, []).append(entry)
    found: list[_Ranked] = []
    for event, entries in kinds.items():
        rank = _RANK.get(event, len(_RANK))
        entries.sort(key=lambda entry: entry.t)
        shown = entries if len(entries) == _SAME_SHOWN + 1 else entries[:_SAME_SHOWN]
        found += [(rank, _step(entry)) for entry in shown]
        if rest := entries[len(shown) :]:
            what = "nodes lost" if event == Event.node_lost else f"times {event}"
            found.append((rank, _Step(rest[-1].t, f"{len(rest)} more {what}, last {rest[-1].host}", style="red")))
    return found


def _step(entry: Entry) -> _Step:
    facts = entry.facts
    code = facts.get("exit_code")
    shown_code = "" if code is None else f", exit code {code}"
    red = "red" if code else ""
    reason = facts.get("reason", "")
    others = [str(value) for name, value in facts.items() if name != "noted"]
    known = {
        "submitted": _Step(entry.t, "requeued" if entry.restart else "submitted"),
        "allocated": _Step(entry.t, "nodes allocated", "in the queue"),
        "ready": _Step(
            entry.t, f"ready with {_number(facts.get('nodes', '?'))} of the nodes", "until enough nodes were in"
        ),
        "workload_start": _Step(entry.t, "work began", "until the work began"),
        "workload_end": _Step(entry.t, f"work ended{shown_code}", "until the work ended", red),
        "node_lost": _Step(entry.t, f"{entry.host} lost: {reason}", f"until {entry.host} was lost", "red"),
        "stop_asked": _Step(entry.t, f"asked to stop: {reason}", "until it was asked to stop", "yellow"),
        "requeued": _Step(entry.t, "given back to the queue", "until it was back in the queue", "yellow"),
        "released": _Step(entry.t, f"all nodes released{shown_code}", "until all nodes were released", red),
    }
    return known.get(entry.event) or _Step(entry.t, " ".join([entry.event, *others]), entry.event)


def _of_nodes(life: _Life, event: Event, what: str) -> list[_Ranked]:
    """The first, the middle and the last."""
    order = sorted((t, host) for host, t in life.hosts(event).items())
    total = max(life.num_nodes, len(life.hosts(Event.agent_up)), len(order))
    found: list[_Ranked] = []
    for index in sorted({0, (len(order) - 1) // 2, len(order) - 1} if order else ()):
        t, host = order[index]
        named = index in (0, len(order) - 1) or len(order) <= 3
        label = f"{what} on {_number(index + 1)} of {_number(total)}" if total > 1 else f"{what} on"
        spent = f"for {'Ray' if event == Event.ray_up else 'the agent'} on {host if named else 'half of the nodes'}"
        separator = ":" if total > 1 else ""
        found.append((_RANK[event.value], _Step(t, f"{label}{separator} {host}" if named else label, spent)))
    return found


def _number(number: Fact) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


def _seconds(seconds: float) -> str:
    """For a sentence: no line ends between a number and its unit."""
    return duration(seconds).replace(" ", "\xa0")


# what is awaited


def _now(life: _Life, now: float, awaited: str) -> _Step:
    # The clock here may be behind the head's.
    took = max(now - life.steps[-1].at, 0.0)
    spent = awaited if awaited in (_QUEUED, _AT_WORK) else f"for {awaited}"
    return _Step(life.steps[-1].at + took, f"now: {awaited}", spent, "bold", took, life.works)


def _awaited(life: _Life) -> str:
    """What comes next, if the run still goes on."""
    seen = {entry.event for entry in life.entries}
    answers = [
        (Event.requeued, _QUEUED),
        (Event.released, ""),
        (Event.workload_end, "the release of the nodes"),
        (Event.workload_start, "the end of the work" if Event.stop_asked in seen else _AT_WORK),
        (Event.stop_asked, "the release of the nodes"),
        (Event.ready, "the work to begin"),
        (Event.agent_up, _awaited_nodes(life)),
        (Event.allocated, "the node agents"),
        (Event.submitted, _QUEUED),
    ]
    return next((answer for event, answer in answers if event in seen), "")


def _awaited_nodes(life: _Life) -> str:
    there, parts = len(life.hosts(Event.agent_up)), []
    if life.num_nodes > there:
        parts.append(f"{_number(life.num_nodes - there)} agents")
    if waiting := life.without_ray:
        parts.append(f"Ray on {_some(waiting)}")
    return " and ".join(parts) or "the nodes to join"


def _some(hosts: Sequence[str], most: int = 2) -> str:
    """`n1`, `n1 and n2`, `n1, n2 and 7 more`"""
    names = list(hosts[:most])
    if len(hosts) > most:
        return f"{', '.join(names)} and {_number(len(hosts) - most)} more"
    return " and ".join(names)


# how it looks


def _title(life: _Life) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(life.began))
    return f"{_which(life)}, from {life.origin} at {when}"


def _which(life: _Life) -> str:
    return f"allocation {life.allocation}" + (f", restart {life.restart}" if life.restart else "")


def _table(steps: Sequence[_Step], *, width: int, bar: str) -> list[Line]:
    room = max(width - _LABEL - 27, 4)
    longest = max((step.took for step in steps if not step.at_work), default=0.0)
    lines = []
    for index, step in enumerate(steps):
        took = duration(step.took) if index else ""
        size = round(room * step.took / longest) if longest and not step.at_work else 0
        style = "yellow" if longest and step.took == longest and not step.at_work else "cyan"
        offset = duration(step.at - steps[0].at)
        label = f"{_cut(_clean(step.label), _LABEL):<{_LABEL}}"
        lines.append(
            [(f"{offset:>11}", "dim"), (f"  {took:>11}  ", ""), (label, step.style), (f" {bar * size}", style)]
        )
    return lines


def _clean(text: str) -> str:
    """On one line, without what a terminal would obey."""
    return "".join(letter if letter.isprintable() or letter == "\xa0" else " " for letter in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 2] + ".."


def _in_one_line(life: _Life) -> str:
    parts = []
    if start := life.first(Event.workload_start):
        parts.append(f"started in {duration(start.t - life.began)}")
    else:
        parts.append(f"did not start in {duration(life.steps[-1].at - life.began)}")
    if (worked_s := life.worked_s) is not None:
        parts.append(f"worked {duration(worked_s)}")
    stopped, ended = life.first(Event.stop_asked), life.first(Event.released) or life.first(Event.workload_end)
    if stopped:
        parts.append(str(stopped.facts.get("reason", "asked to stop")))
    if life.first(Event.requeued):
        parts.append("requeued")
    elif ended and "exit_code" in ended.facts:
        parts.append(f"exit code {ended.facts['exit_code']}")
    elif not ended:
        parts.append("ended without a word")
    return _clean(f"{_which(life)}: {', '.join(parts)}")


def _sentences(life: _Life, steps: Sequence[_Step], *, awaited: str, going_on: bool) -> list[str]:
    about = [_slowest(life), _clocks(life), _open(life, awaited) if going_on else _missing(life)]
    return [each for each in (*about, _longest(life, steps, going_on=going_on)) if each]


def _slowest(life: _Life) -> str:
    agents, rays = life.hosts(Event.agent_up), life.hosts(Event.ray_up)
    order = sorted(((t - agents[host], host) for host, t in rays.items() if host in agents), reverse=True)
    if len(order) < 3:
        return ""
    named = " and ".join(f"{host} ({_seconds(took)})" for took, host in order[:2])
    return f"slowest from agent to Ray: {named}; the median node {_seconds(order[len(order) // 2][0])}"


def _clocks(life: _Life) -> str:
    order = sorted(life.clocks.items(), key=lambda pair: -abs(pair[1]))
    if not order:
        return ""
    named = [f"{who} about {_seconds(abs(by))} {'ahead' if by > 0 else 'behind'}" for who, by in order[:2]]
    more = f" and {_number(len(order) - 2)} more" if len(order) > 2 else ""
    return f"clocks differ from the head's, and these times were moved: {', '.join(named)}{more}"


def _open(life: _Life, awaited: str) -> str:
    return f"waiting for {awaited}" if awaited and awaited not in (_QUEUED, _AT_WORK) else ""


def _missing(life: _Life) -> str:
    if not (life.first(Event.released) or life.first(Event.requeued)):
        return f"it ended without a word after: {life.steps[-1].label}"
    never = "" if life.first(Event.workload_start) or not life.without_ray else _some(life.without_ray)
    return f"never in Ray: {never}" if never else ""


def _longest(life: _Life, steps: Sequence[_Step], *, going_on: bool) -> str:
    """The last sentence: about the start, since the work itself is what a run is for."""
    start = life.first(Event.workload_start)
    of_start = [step for step in steps[1:] if not step.at_work and (start is None or step.at <= start.t)]
    if not of_start:
        return ""
    longest = max(of_start, key=lambda step: step.took)
    what = f"the longest step: {_seconds(longest.took)} {longest.spent}"
    if start:
        return f"{_seconds(start.t - life.began)} from {life.origin} to work; {what}"
    so_far = _seconds(steps[-1].at - life.began)
    return f"no work yet after {so_far}; {what}" if going_on else f"no work began in {so_far}; {what}"
