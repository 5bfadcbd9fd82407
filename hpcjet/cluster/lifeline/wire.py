"""Lines of JSON on a connection that is watched by the kernel."""

import contextlib
import errno
import json
import socket
from collections.abc import Iterator
from typing import Any

PROBE_AFTER_S, PROBE_EVERY_S, PROBES = 3, 1, 4
"""A machine that does not answer is given up after 7 seconds."""


def keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_EVERY_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
    # Keep-alive waits while sent data is not acknowledged; this limits that case alike.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (PROBE_AFTER_S + PROBE_EVERY_S * PROBES))


def receive(connection: socket.socket, into: bytearray) -> bool:
    """Append what has come; True when the other side is gone."""
    try:
        data = connection.recv(65_536)
    except BlockingIOError:
        return False
    except TimeoutError as error:
        # Nothing came in time; with an error number it is the kernel, whose probes were not answered.
        return error.errno == errno.ETIMEDOUT
    except OSError:
        return True
    into += data
    return not data


def lines(received: bytearray) -> Iterator[dict[str, Any]]:
    while (end := received.find(b"\n")) >= 0:
        one = bytes(received[:end])
        del received[: end + 1]
        # A stranger's line may hold brackets deeper than the parser goes.
        with contextlib.suppress(ValueError, RecursionError):
            said = json.loads(one)
            if isinstance(said, dict):
                yield said


def line(said: dict[str, Any]) -> bytes:
    return json.dumps(said).encode() + b"\n"
