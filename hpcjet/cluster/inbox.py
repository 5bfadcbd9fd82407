"""What the node agent tells the driver on the head, as lines of JSON on the driver's standard input."""

import json
import sys
import threading
from typing import IO, Any

from hpcjet.errors import NodeLostError

WHERE = "where"
"""Addresses and ports; Ray's head is up, if there is one."""
READY = "ready"
"""At least min_nodes nodes are in."""
NODE_LOST = "node_lost"


def message(word: str, **facts: Any) -> str:
    """One line to write to the driver."""
    return json.dumps({"word": word, **facts})


class Inbox:
    """The driver's side. The words come in this order: where, ready, then node_lost any number of times."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self._stream = stream or sys.stdin
        self._lost: list[str] = []

    def await_word(self, word: str) -> dict[str, Any]:
        """The next message, which has this word; the node agent sees to the deadline.

        Raises NodeLostError if the node agent closes the stream instead.
        """
        line = self._stream.readline()
        if not line:
            raise NodeLostError("the node agent ended before the cluster was up")
        said: dict[str, Any] = json.loads(line)
        assert said["word"] == word, f"{word} was expected, not {said}"
        return said

    def listen(self) -> None:
        """Take note of what is said from now on, beside the work."""
        threading.Thread(target=self._note_all, name="inbox", daemon=True).start()

    def lost(self) -> list[str]:
        return list(self._lost)

    def _note_all(self) -> None:
        for line in self._stream:
            said = json.loads(line)
            if said["word"] == NODE_LOST:
                self._lost.append(said["host"])
