"""What a node says to the one from which it fetches a model, and hears: lines of JSON, and the bytes of parts.

Parent: {nonce}. Child: {proof, nonce, digest}. Parent: {proof}. Then, again and again, child: {part}; parent: {moved}
every few seconds until the part is there, then {part, length, checksum} and its bytes, or {gone: why}.
"""

import errno
import json
import secrets
import socket
from collections.abc import Callable
from typing import Any

from hpcjet.cluster.lifeline import proof, proves

BEAT_S = 2.0
"""How often a parent that has not the part yet says how far it is."""
LONGEST_LINE = 4096
_PROBE_AFTER_S, _PROBE_EVERY_S, _PROBES = 10, 5, 4


class Wire:
    """One connection. What does not come within the socket's time-out raises TimeoutError, and may come later."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._received = bytearray()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _PROBE_AFTER_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)

    def say(self, **facts: Any) -> None:
        self.socket.sendall(json.dumps(facts).encode() + b"\n")

    def hear(self) -> dict[str, Any]:
        """The next line. Raises OSError when the other side is gone, ValueError for what cannot be a line."""
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > LONGEST_LINE:
                raise ValueError("what came is no line")
            data = _receive(self.socket, LONGEST_LINE)
            self._received += data
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        try:
            said = json.loads(line)
        except RecursionError:
            said = None
        if not isinstance(said, dict):
            raise ValueError("what came is no line of JSON")
        return said

    def read_into(self, view: memoryview) -> int:
        """The next bytes, as many as there are. Raises OSError when the other side is gone."""
        if self._received:
            count = min(len(view), len(self._received))
            view[:count] = self._received[:count]
            del self._received[:count]
            return count
        try:
            count = self.socket.recv_into(view)
        except TimeoutError as error:
            raise _plain(error) from None
        if not count:
            raise ConnectionError("it hung up")
        return count

    def close(self) -> None:
        self.socket.close()


def admit(wire: Wire, key: str) -> str | None:
    """The parent's side of the greeting: the digest of the files that a child wants; None: it does not know the key."""
    nonce = secrets.token_hex(16)
    wire.say(nonce=nonce)
    said = wire.hear()
    if not proves(said.get("proof"), secret=_secret(key, "child"), nonce=nonce):
        return None
    wire.say(proof=proof(_secret(key, "parent"), str(said.get("nonce"))))
    return str(said.get("digest"))


def greet(wire: Wire, key: str, digest: str, *, hear: Callable[[], dict[str, Any]]) -> None:
    """The child's side; `hear` is the wire's, with patience. Raises OSError where the two do not know the same key."""
    nonce = secrets.token_hex(16)
    theirs = hear().get("nonce")
    wire.say(proof=proof(_secret(key, "child"), str(theirs)), nonce=nonce, digest=digest)
    try:
        said = hear()
    except ConnectionError:
        said = {}
    if not proves(said.get("proof"), secret=_secret(key, "parent"), nonce=nonce):
        raise ConnectionError("it does not know the key of this run")


def _secret(key: str, side: str) -> str:
    """Each side has one of its own, and neither is the lifeline's: what proves one thing proves no other."""
    return f"{key} weights {side}"


def _receive(connection: socket.socket, most: int) -> bytes:
    try:
        data = connection.recv(most)
    except TimeoutError as error:
        raise _plain(error) from None
    if not data:
        raise ConnectionError("it hung up")
    return data


def _plain(error: TimeoutError) -> OSError:
    """With an error number it is the kernel, whose probes were not answered."""
    return ConnectionError("its machine does not answer") if error.errno == errno.ETIMEDOUT else error
