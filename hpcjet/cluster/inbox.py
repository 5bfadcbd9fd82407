"""What the node agent tells the driver on the head, as lines of JSON on the driver's standard input."""

import json
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

from hpcjet.errors import NodeLostError

WHERE = "where"
"""Addresses and ports; Ray's head is up, if there is one."""
UP = "up"
"""Ray on this node takes connections."""
READY = "ready"
"""At least min_nodes nodes are in."""
NODE_LOST = "node_lost"

POLL_S = 0.05


def message(word: str, **facts: Any) -> str:
    """One line to write to the driver."""
    return json.dumps({"word": word, **facts})


class Inbox:
    """The driver's side. The words come in this order: where, up (with Ray only), ready; and node_lost at any time."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdin
        self._lost: list[str] = []
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
        """The nodes that were lost, in the order in which they were."""
        return list(self._lost)

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
        elif said["word"] == NODE_LOST:
            self._lost.append(said["host"])


def _ended() -> NodeLostError:
    return NodeLostError("the node agent ended before the cluster was up")
