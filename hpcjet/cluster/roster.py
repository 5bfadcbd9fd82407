"""The nodes that the driver can use: Ray's list of nodes beside what the node agent tells of them. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcjet.cluster.inbox import ToldNode

MEMBER_LABEL = "hpcjet-member"
GROUP_LABEL = "hpcjet-group"
"""Labels that the node agent gives to Ray's node."""


@dataclass(frozen=True, kw_only=True)
class UsableNode:
    """A node that is in Ray; times are Unix seconds."""

    node_id: str
    """Ray's."""
    member: str
    """Which node agent; the host where no agent is named."""
    host: str
    group: str
    """Empty where nobody tells."""
    cpus: float
    memory_bytes: float
    ends: float | None = None
    drains: str = ""
    """Why it gets no new work; empty if it does."""
    drains_by: float | None = None


def roster(ray_nodes: Sequence[Mapping[str, Any]], told: Mapping[str, ToldNode], *, head: str = "") -> list[UsableNode]:
    """The nodes that both sides know, or Ray alone where the node agent tells of none; without those that are lost.

    `ray_nodes` are as ray.nodes() tells them, `told` as Inbox.nodes(); `head` is <allocation>-<restart> of the head's.
    Ray notices a machine without power long after the node agent does. It knows a node a moment before it is told of:
    one of the head allocation may be used at once, of another one it is not known yet when it ends.
    """
    by_label = {_as_label(member): node for member, node in told.items()}
    by_host: dict[str, ToldNode] = {}
    for node in told.values():
        by_host[node.host] = node  # the last one on that host
    found = []
    for each in ray_nodes:
        label, host = each.get("Labels", {}).get(MEMBER_LABEL), each["NodeManagerHostname"]
        known = by_label.get(label) if label else by_host.get(host)
        if label and known is None:
            known = _untold(label, host, head=head, tells=any(node.group for node in told.values()))
        elif known is None:
            known = ToldNode(member=host, host=host)
        if each["Alive"] and known is not None and not known.lost:
            found.append(_usable(each, known))
    return found


def _untold(label: str, host: str, *, head: str, tells: bool) -> ToldNode | None:
    """A node of which the node agent has told nothing; `tells`: it does tell of nodes that join."""
    place, _, rank = label.rpartition(".")
    if head and place == _as_label(head):
        return ToldNode(member=f"{head}:{rank}", host=host)
    return None if tells else ToldNode(member=label, host=host)


def _usable(each: Mapping[str, Any], known: ToldNode) -> UsableNode:
    return UsableNode(
        node_id=each["NodeID"],
        member=known.member,
        host=each["NodeManagerHostname"],
        group=known.group or each.get("Labels", {}).get(GROUP_LABEL, ""),
        cpus=each["Resources"].get("CPU", 0),
        memory_bytes=each["Resources"].get("memory", 0),
        ends=known.ends,
        drains=known.drains,
        drains_by=known.drains_by,
    )


def _as_label(member: str) -> str:
    """As Ray takes it for the value of a label: letters, digits, dot, dash, underscore; none of the last at an end."""
    return re.sub(r"[^A-Za-z0-9_.-]", ".", member)[:63].strip("._-")
