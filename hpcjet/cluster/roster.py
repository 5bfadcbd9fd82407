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


def roster(ray_nodes: Sequence[Mapping[str, Any]], told: Mapping[str, ToldNode]) -> list[UsableNode]:
    """The nodes that both sides know, or Ray alone where the node agent tells of none; without those that are lost.

    `ray_nodes` are as ray.nodes() tells them, `told` as Inbox.nodes(). Ray notices a machine without power long after
    the node agent does, and it knows a node a moment before it is told of.
    """
    by_label = {_as_label(member): node for member, node in told.items()}
    by_host: dict[str, ToldNode] = {}
    for node in told.values():
        by_host[node.host] = node  # the last one on that host
    found = []
    for each in ray_nodes:
        label = each.get("Labels", {}).get(MEMBER_LABEL)
        known = by_label.get(_as_label(label)) if label else by_host.get(each["NodeManagerHostname"])
        if each["Alive"] and not (known and known.lost) and (known or not (label and _tells(told))):
            found.append(_usable(each, known, label))
    return found


def _usable(each: Mapping[str, Any], known: ToldNode | None, label: str | None) -> UsableNode:
    host, resources = each["NodeManagerHostname"], each["Resources"]
    known = known or ToldNode(member=label or host, host=host)
    return UsableNode(
        node_id=each["NodeID"],
        member=known.member,
        host=host,
        group=known.group or each.get("Labels", {}).get(GROUP_LABEL, ""),
        cpus=resources.get("CPU", 0),
        memory_bytes=resources.get("memory", 0),
        ends=known.ends,
        drains=known.drains,
        drains_by=known.drains_by,
    )


def _tells(told: Mapping[str, ToldNode]) -> bool:
    """Whether the node agent tells of nodes that join, and not of losses alone."""
    return any(node.group for node in told.values())


def _as_label(member: str) -> str:
    """As Ray takes it for the value of a label: letters, digits, dot, dash, underscore; none of the last at an end."""
    return re.sub(r"[^A-Za-z0-9_.-]", ".", member)[:63].strip("._-")
