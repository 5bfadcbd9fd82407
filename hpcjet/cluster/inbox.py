"""What the node agent tells the driver on the head, as lines of JSON on the driver's standard input."""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import IO, Any

from hpcjet.errors import NodeLostError

WHERE = "where"
"""Addresses and ports; Ray's head is up, if there is one."""
UP = "up"
"""Ray on this node takes connections."""
READY = "ready"
"""At least min_nodes nodes are in."""
NODE = "node"
"""A node is in; facts: member, host, group, address, and ends (Unix seconds) where its end is known."""
NODE_DRAINS = "node_drains"
"""A node gets no new work; facts: member, host, reason, and by (Unix seconds), when it is taken away."""
NODE_LOST = "node_lost"
"""A node is gone; facts: host, and where they are known member and reason."""

POLL_S = 0.05


def message(word: str, **facts: Any) -> str:
    """One line to write to the driver."""
    return json.dumps({"word": word, **facts})


@dataclass(frozen=True, kw_only=True)
class ToldNode:
    """A node as the node agent tells of it; times are Unix seconds."""

    member: str
    """Which node agent: <allocation>-<restart>:<rank>."""
    host: str
    group: str = ""
    address: str = ""
    ends: float | None = None
    """When its allocation ends; None: not known."""
    drains: str = ""
    """Why it gets no new work; empty if it does."""
    drains_by: float | None = None
    lost: bool = False


class Inbox:
    """The driver's side. In this order: where, up (with Ray only), ready; and words of nodes at any time."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdin
        self._lost: list[str] = []
        self._nodes: dict[str, ToldNode] = {}
        self._up, self._ready = threading.Event(), threading.Event()
        self._closed = threading.Event()

    def await_where(self) -> dict[str, Any]:
        """The message that says where all is; from then on the others are noted beside the work.

        Raises NodeLostError if the node agent, which sees to the deadline, closes the stream instead.
        """
        for line in self._stream:
            said: dict[str, Any] = json.loads(line)
            if said["word"] == WHERE:
                threading.Thread(target=self._note_all, name="inbox", daemon=True).start()
                return said
            self._note(said)
        raise _ended()

    def await_up(self) -> None:
        """Until a program on this node can connect to Ray; what it raises is the same."""
        self._await(self._up)

    def await_ready(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Until at least min_nodes nodes are in; or until `enough` says so, which is asked over and over."""
        self._await(self._ready, enough)

    def lost(self) -> list[str]:
        """The hosts that were lost, in the order in which they were."""
        return list(self._lost)

    def nodes(self) -> dict[str, ToldNode]:
        """Member -> its node, also of those that are lost; empty where the node agent tells of none."""
        return dict(self._nodes)

    def _await(self, word: threading.Event, enough: Callable[[], bool] = lambda: False) -> None:
        while not word.wait(POLL_S):
            if self._closed.is_set():
                raise _ended()
            if enough():
                return

    def _note_all(self) -> None:
        for line in self._stream:
            self._note(json.loads(line))
        self._closed.set()

    def _note(self, said: dict[str, Any]) -> None:
        if said["word"] == UP:
            self._up.set()
        elif said["word"] == READY:
            self._ready.set()
        elif said["word"] == NODE:
            known = {name: said[name] for name in ("member", "host", "group", "address", "ends") if name in said}
            self._nodes[said["member"]] = ToldNode(**known)
        elif said["word"] == NODE_DRAINS:
            self._change(said, drains=said.get("reason") or "it is given back", drains_by=said.get("by"))
        elif said["word"] == NODE_LOST:
            self._lost.append(said["host"])
            self._change(said, lost=True)

    def _change(self, said: dict[str, Any], **change: Any) -> None:
        """A node that was not told of before is known by what is said now; without a member, by its host."""
        member = said.get("member")
        meant = [
            told
            for told in self._nodes.values()
            if (told.member == member if member else told.host == said["host"] and not told.lost)
        ]
        for told in meant or [ToldNode(member=member or said["host"], host=said["host"])]:
            self._nodes[told.member] = replace(told, **change)


def _ended() -> NodeLostError:
    return NodeLostError("the node agent ended before the cluster was up")
