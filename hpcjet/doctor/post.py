"""How the looks at two nodes talk: a server on each, which wants the secret of the examination.

Lines of JSON. The server begins with a number used once; the client proves with it that it knows the secret, then asks.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import IO, Any, cast

Answer = Callable[[dict[str, Any]], dict[str, Any]]
TIMEOUT_S = 30.0


class Post:
    """The server of one node. It answers {"ask": "time"} itself, all else with `answer`; each client has a thread."""

    def __init__(self, address: str, port: int, *, secret: str, answer: Answer) -> None:
        self._secret, self._answer = secret, answer
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, name="post", daemon=True).start()

    def close(self) -> None:
        # Closing alone does not wake a thread that waits in accept.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), name="post-client", daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError, ValueError):
            connection.settimeout(TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with cast(IO[bytes], connection.makefile("rwb")) as stream:
                nonce = secrets.token_hex(16)
                say(stream, {"nonce": nonce})
                if not hmac.compare_digest(str(hear(stream).get("proof")), proof(self._secret, nonce)):
                    return
                say(stream, {})
                while asked := hear(stream):
                    say(stream, {"time": time.time()} if asked.get("ask") == "time" else self._answer(asked))


class Client:
    """A connection to the post of another node. Raises OSError if it is not reached, or does not answer."""

    def __init__(self, address: str, port: int, *, secret: str, timeout_s: float) -> None:
        self._socket = socket.create_connection((address, port), timeout=timeout_s)
        self._stream = cast(IO[bytes], self._socket.makefile("rwb"))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            say(self._stream, {"proof": proof(secret, str(hear(self._stream).get("nonce")))})
            hear(self._stream)
        except BaseException:
            self.close()
            raise
        self._socket.settimeout(TIMEOUT_S)

    def ask(self, what: str, **facts: Any) -> dict[str, Any]:
        say(self._stream, {"ask": what, **facts})
        return hear(self._stream)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.close()
        self._socket.close()


def proof(secret: str, nonce: str) -> str:
    """What only those can say who know the secret."""
    return hmac.new(secret.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def say(stream: IO[bytes], message: dict[str, Any]) -> None:
    stream.write(json.dumps(message).encode() + b"\n")
    stream.flush()


def hear(stream: IO[bytes]) -> dict[str, Any]:
    """The next message. Raises OSError if the other side is gone."""
    line = stream.readline(65_536)
    if not line:
        raise ConnectionError("the other side closed the connection")
    found = json.loads(line)
    assert isinstance(found, dict)
    return found
