"""The use of the nodes as the report shows it: a bar for each group, and its nodes over time. Pure."""

from dataclasses import dataclass

from hpcjet.ledger.account import KINDS, GroupUse, Ledger
from hpcjet.ledger.picture import GroupPicture, pictures
from hpcjet.shown.duration import duration
from hpcjet.shown.visible import visible


@dataclass(frozen=True)
class Piece:
    """Of a bar; `start` and `width` in percent."""

    kind: str
    label: str
    start: float
    width: float


@dataclass(frozen=True)
class GroupView:
    """One group of nodes."""

    name: str
    amount: str
    """Such as `12 nodes, 3.4 node-hours, 13.6 GPU-hours`."""
    pieces: list[Piece]
    picture: GroupPicture | None


@dataclass(frozen=True)
class NodesView:
    groups: list[GroupView]
    shares: list[tuple[str, str]]
    """(kind, percent of all node-seconds)"""
    lost: int
    span: str
    """How long the pictures are."""


def nodes_view(ledger: Ledger) -> NodesView | None:
    """None where no time has passed."""
    if not ledger.total_s:
        return None
    drawn = pictures(ledger.spans, [group.name for group in ledger.groups])
    by_name = {each.name: each for each in drawn if sum(one.most for one in drawn) > 1}
    begin, end = min(span.begin for span in ledger.spans), max(span.end for span in ledger.spans)
    return NodesView(
        groups=[_group(group, by_name.get(group.name)) for group in ledger.groups if group.total_s],
        shares=[(kind, f"{100 * ledger.share(kind):.0f}%") for kind in KINDS],
        lost=sum(group.lost for group in ledger.groups),
        span=duration(end - begin),
    )


def _group(group: GroupUse, picture: GroupPicture | None) -> GroupView:
    pieces, start = [], 0.0
    for kind in KINDS:
        width = 100 * group.seconds[kind] / group.total_s
        if width:
            pieces.append(Piece(kind, f"{duration(group.seconds[kind])} of one node ({width:.1f}%)", start, width))
        start += width
    nodes = f"{group.members:,} node{'' if group.members == 1 else 's'}"
    if group.most < group.members:
        nodes += f", {group.most:,} at once"
    gpus = f", {_hours(group.total_s * group.size.gpus)} GPU-hours" if group.size.gpus else ""
    return GroupView(visible(group.name), f"{nodes}: {_hours(group.total_s)} node-hours{gpus}", pieces, picture)


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:,.0f}" if hours >= 99.95 else f"{hours:.2g}" if hours < 1 else f"{hours:.1f}"
