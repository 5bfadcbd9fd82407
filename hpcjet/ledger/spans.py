"""From the events of a run to where each of its nodes stood when. Pure.

A head that was killed leaves no end, clocks differ, and a node of a worker allocation outlives the head that it joined.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hpcjet.cluster.clocks import on_one_clock
from hpcjet.cluster.events import Entry, Event
from hpcjet.ledger.span import Span, Word, overlap_s, stands
from hpcjet.plan import Plan


@dataclass
class _Node:
    group: str
    is_head: bool = False
    words: list[tuple[float, Word]] = field(default_factory=list)


@dataclass(frozen=True)
class _Life:
    """One start of the head."""

    entries: list[Entry]
    begin: float
    """When its nodes were had."""
    over: float
    goes_on: bool
    """Whether another start follows."""
    window: tuple[float, float]
    """When the workload ran."""


def spans(entries: Sequence[Entry], plan: Plan, *, now: float) -> list[Span]:
    """All nodes of all allocations; `now`, in Unix seconds, is when what did not end is looked at."""
    lives = _lives(entries, now)
    nodes: dict[str, _Node] = {}
    for number, life in enumerate(lives):
        _head_nodes(life, plan, nodes, prefix=f"{number}/")
        _other_nodes(life, nodes)
    _waited_in_vain(entries, nodes)
    windows = [life.window for life in lives]
    found = []
    for member, node in nodes.items():
        for stand, begin, end in stands(node.words):
            worked_s = overlap_s(begin, end, windows)
            found.append(
                Span(
                    member=member.partition("/")[2] or member, group=node.group, is_head=node.is_head, stand=stand,
                    begin=begin, end=end, worked_s=worked_s,
                )
            )  # fmt: skip
    return found


def _lives(entries: Sequence[Entry], now: float) -> list[_Life]:
    groups: dict[tuple[str, int], list[Entry]] = {}
    for entry in entries:
        if not entry.apart:
            groups.setdefault((entry.allocation, entry.restart), []).append(entry)
    moved = [sorted(on_one_clock(group)[0], key=lambda entry: entry.t) for group in groups.values()]
    moved = [each for each in moved if any(entry.event in (Event.allocated, Event.agent_up) for entry in each)]
    lives: list[_Life] = []
    for number, each in enumerate(moved):
        first = {entry.event: entry.t for entry in reversed(each) if not entry.joined_later}
        last = number == len(moved) - 1
        # Of one that was killed the last sign of life is all that is known.
        end = first.get("released", first.get("requeued"))
        over = end if end is not None else max(now, each[-1].t) if last else each[-1].t
        begin = first.get("allocated", first.get("agent_up", each[0].t))
        window = first.get("workload_start", over), first.get("workload_end", over)
        lives.append(_Life(each, begin, over, not last, window))
    return lives


def _head_nodes(life: _Life, plan: Plan, nodes: dict[str, _Node], *, prefix: str) -> None:
    """Those of the head allocation are had from its beginning to its end, whatever becomes of them."""
    said: dict[str, list[Entry]] = {}
    for entry in life.entries:
        if "host" in entry.facts and not entry.joined_later:
            said.setdefault(entry.host, []).append(entry)
    ranks = {host: rank for host, each in said.items() if (rank := _rank(each)) is not None}
    for rank in set(range(plan.head_nodes)) - set(ranks.values()):
        ranks[f"rank {rank}"] = rank  # it was had, though nothing was heard of it
    joins = Event.ray_up if plan.ray else Event.agent_up
    words = {joins.value: Word.joined, Event.node_lost.value: Word.lost_here}
    for host, rank in ranks.items():
        entries = said.get(host, [])
        node = _Node(plan.group_of(rank).name, rank == 0)
        node.words = [
            (life.begin, Word.up),
            *((entry.t, words[entry.event]) for entry in entries if entry.event in words),
            (life.over, Word.gone),
        ]
        # Named as in usage.json where the events name its member.
        nodes[f"{prefix}{next((entry.member for entry in entries), host)}"] = node


def _rank(entries: Sequence[Entry]) -> int | None:
    """Of the node in the head allocation, which its agent told."""
    ranks = (entry.facts["rank"] for entry in entries if entry.event == Event.agent_up and "rank" in entry.facts)
    return next((rank for rank in ranks if isinstance(rank, int)), None)


_WORDS = {
    Event.agent_up.value: Word.up,
    Event.drain.value: Word.drain,
    Event.node_lost.value: Word.gone,
    Event.left.value: Word.gone,
}


def _other_nodes(life: _Life, nodes: dict[str, _Node]) -> None:
    """Those of worker allocations: what they say in one life of the head, and its end."""
    has_ray = any(entry.event == Event.ray_up for entry in life.entries)
    here: set[str] = set()
    for entry in life.entries:
        if not entry.joined_later:
            continue
        words = [_WORDS[entry.event]] if entry.event in _WORDS else []
        if entry.event == (Event.ray_up if has_ray else Event.agent_up):
            words.append(Word.joined)
        node = nodes.setdefault(entry.member, _Node(str(entry.facts.get("group", ""))))
        node.words += [(entry.t, word) for word in words]
        here.add(entry.member)
    for member in here:
        nodes[member].words.append((life.over, Word.headless if life.goes_on else Word.gone))


def _waited_in_vain(entries: Sequence[Entry], nodes: dict[str, _Node]) -> None:
    """A node that found no other head was had until it gave up; where that is not known, until the end of its head."""
    gave_up = {entry.allocation: entry.t for entry in entries if entry.apart and entry.event == Event.gave_up}
    for member, node in nodes.items():
        if node.words[-1][1] is Word.headless:
            at = node.words[-1][0]
            node.words.append((max(at, gave_up.get(member.rpartition(":")[0].rpartition("-")[0], at)), Word.gone))
