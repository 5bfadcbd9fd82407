"""The thread of a node's sidecar that passes a model on: each part as soon as it is there, to who knows the key."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable

from hpcjet.engine.stage_parts import Parts
from hpcjet.engine.stage_wire import BEAT_S, Wire, admit

STRANGER_S = 10.0
"""Who has not proved to know the key by then is hung up on."""
MOST = 64
"""Connections at a time. The tree has two children for each node, with some eight each."""
_TAKES_NOTHING_S = 60.0
_IDLE_S = 600.0
_BACKLOG = 128

_log = logging.getLogger(__name__)


class StageServer:
    """Listens from the moment it is made, at an address of this node and a port that the kernel draws."""

    def __init__(self, address: str, *, key: str, find: Callable[[str], Parts | None]) -> None:
        """`find` has the copy of the files with a digest, if there is one. Raises OSError."""
        self._key, self._find = key, find
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(_BACKLOG)
        except OSError:
            self._listener.close()
            raise
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="stage-server", daemon=True).start()

    def close(self) -> None:
        """Hang up on all."""
        with self._lock:
            self._closed = True
            for connection in [self._listener, *self._open]:
                # Closing alone would leave the threads that wait in it.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._closed:
                    _log.warning("the weights of this node are passed on no more: %s", error)
                return
            with self._lock:
                welcome = not self._closed and len(self._open) < MOST
                if welcome:
                    self._open.add(connection)
            if welcome:
                threading.Thread(target=self._serve, args=(connection,), name="stage-child", daemon=True).start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            # Whatever a stranger sends or a child does, the others are served on.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, IndexError):
                connection.settimeout(STRANGER_S)
                wire = Wire(connection)
                digest = admit(wire, self._key)
                while digest is not None:
                    connection.settimeout(_IDLE_S)
                    number = int(wire.hear()["part"])
                    connection.settimeout(_TAKES_NOTHING_S)
                    self._answer(wire, digest, number)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, wire: Wire, digest: str, number: int) -> None:
        """Raises OSError when the child is gone."""
        waited = threading.Event()
        while (parts := self._find(digest)) is None or not parts.wait(number, BEAT_S):
            if parts and parts.closed:
                wire.say(gone=parts.closed)
                return
            if parts is None:
                waited.wait(BEAT_S)
            wire.say(moved=parts.moved if parts else -1)
        name, begin, length = parts.all[number]
        try:
            checksum = parts.checksum(number)
            file = (parts.folder / name).open("rb")
        except OSError as error:
            wire.say(gone=f"{name} is not there any more: {error.strerror}")
            return
        with file:
            wire.say(part=number, length=length, checksum=checksum)
            if wire.socket.sendfile(file, begin, length) != length:
                raise ConnectionError(f"{name} became shorter")
