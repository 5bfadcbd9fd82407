"""A worker's side."""

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

from hpcjet.cluster.lifeline import wire
from hpcjet.cluster.lifeline.proofs import proof
from hpcjet.errors import NodeLostError


class HeadLostError(NodeLostError):
    """The node agent of the head is gone."""


class Line:
    """The connection of a worker's agent to the head's."""

    def __init__(self, connection: socket.socket, *, head: str) -> None:
        self._socket, self._head = connection, head
        self._received = bytearray()
        self._connected = True

    def say(self, word: str, **facts: Any) -> None:
        """Tell the head; nothing happens if it is gone, which the next `hear` reports."""
        with contextlib.suppress(OSError):
            self._socket.sendall(wire.line({"word": word, **facts}))

    def hear(self, timeout_s: float) -> list[dict[str, Any]]:
        """What the head said within `timeout_s`. Raises HeadLostError if it is gone."""
        self._socket.settimeout(max(timeout_s, 0.001))
        said = list(wire.lines(self._received))
        if not said and self._connected:
            self._connected = not wire.receive(self._socket, self._received)
            said = list(wire.lines(self._received))
        if not said and not self._connected:
            raise HeadLostError(f"the connection to the node agent of the head, {self._head}, is gone")
        return said

    def close(self) -> None:
        self._socket.close()


def connect(
    addresses: Sequence[str],
    port: int,
    *,
    secret: str,
    rank: int,
    facts: dict[str, Any],
    timeout_s: float,
    member: str = "",
) -> Line:
    """Connect to the head at the first of its addresses that answers, and prove to belong to the run.

    `member` is the name by which the head knows this worker among all allocations; without one the rank does. Raises
    OSError with the last failure if none answers.
    """
    failure: OSError = OSError("the head has no address")
    for address in addresses:
        try:
            connection = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            failure = type(error)(f"{address}:{port}: {error}")
            continue
        wire.keep_alive(connection)
        line = Line(connection, head=f"{address}:{port}")
        try:
            said = line.hear(timeout_s)
        except NodeLostError:
            said = []
        nonce = said[0].get("nonce") if said else None
        if not isinstance(nonce, str):
            connection.close()
            failure = OSError(f"{address}:{port}: what listens there is not the head of this run")
            continue
        answer = {"proof": proof(secret, nonce), "rank": rank, "facts": facts}
        try:
            connection.sendall(wire.line({**answer, "member": member} if member else answer))
        except OSError as error:
            connection.close()
            failure = type(error)(f"{address}:{port}: {error}")
            continue
        return line
    raise failure
