"""Network "engine": one TCP server of the host, reached from a sandbox that has no network.

A listening socket belongs to the network namespace in which it was made, whoever holds it. So a helper inside makes one
at 127.0.0.1, hands it out over a unix socket, and ends; this process accepts on it, in the sandbox's namespace, and
connects to the engine in its own. Nothing runs inside that commands could stop, and nothing costs memory.
"""

import asyncio
import os
import socket
import stat
import struct
import threading
from typing import TYPE_CHECKING

from hpcjet.errors import SandboxError
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.options import IO, Layout

if TYPE_CHECKING:
    from hpcjet.sandbox.living import Living

NAME = "engine"
HELPER_S = 30.0
PRIVILEGED = 1024
CHUNK_BYTES = 1 << 16
_PYTHON = "$(PATH=/usr/bin:/bin:$PATH command -v python3 || echo /usr/libexec/platform-python)"
_HELPER = """
import array, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", int(sys.argv[1])))
listener.listen(128)
out = socket.socket(socket.AF_UNIX)
out.connect(sys.argv[2])
out.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
"""


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port". Raises SandboxError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SandboxError(f"engine={address!r} is not host:port; with network=engine it names the one server to reach")
    return host.strip("[]"), int(port)


class Relay:
    """Carries connections of one sandbox to the engine."""

    def __init__(self, listener: socket.socket, target: tuple[str, int]) -> None:
        self._target = target
        self._loop = _loop()
        self._carrying: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        starting = asyncio.start_server(self._carry, sock=listener)
        self._server = asyncio.run_coroutine_threadsafe(starting, self._loop).result()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._carrying.add(task)
        ends = [writer]
        try:
            inner, outer = await asyncio.open_connection(*self._target)
            ends.append(outer)
            await asyncio.gather(_pump(reader, outer), _pump(inner, writer))
            for end in ends:
                end.close()
                await end.wait_closed()
        except (OSError, asyncio.CancelledError):
            pass  # the engine is down, a side has hung up, or the sandbox is closed
        finally:
            for end in ends:
                end.transport.abort()
            self._carrying.discard(task)

    async def _end(self) -> None:
        self._server.close()
        for task in self._carrying:
            task.cancel()
        while self._carrying:
            await asyncio.sleep(0)

    def close(self) -> None:
        """End all connections and the listener."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
        sink.write_eof()
    except OSError:
        sink.transport.abort()


_lock = threading.Lock()
_running: tuple[int, asyncio.AbstractEventLoop] | None = None


def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all relays of this process, in a thread of its own; a forked child gets its own."""
    global _running
    with _lock:
        if _running is None or _running[0] != os.getpid():
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="hpcjet-relay", daemon=True).start()
            _running = (os.getpid(), loop)
        return _running[1]


def open_relay(box: "Living", engine: str, layout: Layout, who: Identity) -> Relay:
    """Make the listener inside and serve it. Raises SandboxError."""
    host, port = split_address(engine)
    if port < PRIVILEGED:
        raise SandboxError(f"engine={engine} is at a port below {PRIVILEGED}, where nothing in a sandbox may listen")
    folder = os.open(layout.io, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    path = layout.io / NAME
    try:
        with socket.socket(socket.AF_UNIX) as meeting:
            # By descriptor: the address of a unix socket has room for 107 bytes.
            meeting.bind(f"/proc/self/fd/{folder}/{NAME}")
            path.chmod(0o666)
            meeting.listen(1)
            meeting.settimeout(HELPER_S)
            done = box.run(
                f"exec {_PYTHON} -I -S - {port} {IO}/{NAME}", timeout_s=HELPER_S, stdin=_HELPER.encode(), cwd="/"
            )
            if done.returncode:
                why = done.output.decode(errors="replace").strip().rpartition("\n")[2]
                raise SandboxError(
                    f"network=engine cannot be set up: the helper ended with {done.returncode}: {why}; it needs a "
                    "python3 in the sandbox: install one on the node, or show one with a mount"
                )
            return Relay(_receive(meeting, who, port), (host, port))
    finally:
        os.close(folder)
        path.unlink(missing_ok=True)


def _receive(meeting: socket.socket, who: Identity, port: int) -> socket.socket:
    connection, _ = meeting.accept()
    with connection:
        size = struct.calcsize("3i")
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
    if uid != who.uid or not descriptors or not stat.S_ISSOCK(os.fstat(descriptors[0]).st_mode):
        raise SandboxError("network=engine cannot be set up: a stranger answered in place of the helper")
    listener = socket.socket(fileno=descriptors[0])
    if listener.getsockname() != ("127.0.0.1", port):
        raise SandboxError("network=engine cannot be set up: the helper made another socket than it was asked for")
    return listener
