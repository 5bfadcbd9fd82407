"""A living sandbox of any kind: a command server inside, and pipes to it."""

import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hpcjet.errors import SandboxError
from hpcjet.sandbox import processes
from hpcjet.sandbox.backend import Backend
from hpcjet.sandbox.disk import Disk
from hpcjet.sandbox.forkable import can_fork, environment_allows
from hpcjet.sandbox.meter import Meter
from hpcjet.sandbox.opened import open_up, unwritable
from hpcjet.sandbox.options import IO, Layout
from hpcjet.sandbox.output import Output
from hpcjet.sandbox.relay import Relay, open_relay
from hpcjet.sandbox.server import write_all
from hpcjet.sandbox.spec import Background, Completed, Network, SandboxSpec
from hpcjet.sandbox.supervisor import Watched, supervisor

if TYPE_CHECKING:
    from hpcjet.sandbox.ready import ReadySandboxes

KILL_S = 10.0
"""How long a killed command may take to go away before its sandbox is given up."""
INLINE_BYTES = 2048
"""Longer commands go by file: bash reads a pipe byte by byte, and the kernel limits one argument to 128 KiB."""
READ_BYTES = 1 << 16
TOO_LARGE = 153
"""128 + SIGXFSZ: what is left of a program that wrote past the limit of one file."""
PIPE_BYTES = 1 << 20
"""The most that a pipe holds without privileges."""


Self = TypeVar("Self", bound="Living")


class Living:
    """See hpcjet.sandbox.spec.Sandbox."""

    def __init__(self, backend: Backend, spec: SandboxSpec, *, ready: "ReadySandboxes | None" = None) -> None:
        self._who = backend.node.who
        self._backend = backend
        self._spec = spec
        self._layout = Layout(spec.scratch.absolute(), backend.node.etc)
        self._busy = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._fifo = ""
        self._count = 0
        self._spare: Sequence[int] = ()
        self._forks = environment_allows(spec.env)
        self._relay: Relay | None = None
        self._watched: Watched | None = None
        self._ends = time.monotonic() + (spec.limits.wall_s or math.inf)
        self.upper: Path | None = self._layout.upper if spec.view else None
        taken = ready.take(backend, spec, self._layout) if ready is not None else None
        self._opened = taken or open_up(backend, spec, self._layout)
        self._server = self._opened.server
        try:
            self._begin()
        except BaseException:
            self._end()
            raise

    def _begin(self) -> None:
        spec, group = self._spec, self._opened.group
        meter = Meter(spec.limits, Disk(self._written()), self._server.init, group, lambda: self._server.usage().pids)
        self._watched = Watched(meter, self._server.usage, self._server.kill_below)
        supervisor().watch(self._watched)
        if spec.network is Network.engine:
            self._relay = open_relay(self, spec.engine, self._layout, self._who)

    def _written(self) -> tuple[Path, ...]:
        """The folders of the host that commands write to."""
        layout = self._layout
        return (layout.tmp, layout.home, *((layout.upper,) if self._spec.view else ()))

    def where(self, path: str) -> str:
        return self._backend.where(path, self._spec, self._layout)

    def run(
        self,
        command: str,
        *,
        timeout_s: float,
        cwd: str | None = None,
        stdin: bytes = b"",
        background: Background | None = None,
        on_output: Callable[[bytes], object] | None = None,
    ) -> Completed:
        script = command.encode("utf-8", "surrogateescape")
        folder = os.fsencode(self.where(cwd or self._spec.cwd))
        if b"\0" in script or b"\0" in folder:
            raise ValueError("a command and its cwd cannot hold NUL bytes; write such data to a file, or use stdin")
        with self._busy:
            self._check_open()
            assert self._watched is not None
            left_s = self._ends - time.monotonic()
            supervisor().begin(self._watched)
            try:
                output = Output(self._spec.limits.output_bytes, also=on_output)
                done = self._run(script, folder, stdin, min(timeout_s, max(0.0, left_s)), output)
                if (background or self._spec.background) is Background.kill:
                    self._kill_all()
            except SandboxError as error:
                if self._watched.meter.held() == "memory":
                    raise SandboxError(
                        f"the kernel ended the sandbox as a whole at its memory limit: {error}"
                    ) from error
                raise
            finally:
                limit = supervisor().finish(self._watched)
            if done.timed_out and left_s <= timeout_s:
                limit = "wall"
            return replace(done, limit=limit or ("file" if done.returncode == TOO_LARGE else ""))

    def _run(self, script: bytes, folder: bytes, stdin: bytes, timeout_s: float, output: Output) -> Completed:
        begin = time.monotonic()
        spare = self._spare = processes.children(self._server.init)
        try:
            source = self._open_fifo()
            request = [os.fsencode(self._fifo), self._put("stdin", stdin), folder, *self._by(script)]
        except OSError as error:
            raise unwritable(self._layout, error) from error
        held = False
        try:
            self._server.send(request)
            answer = self._collect(source, output, begin + timeout_s)
            timed_out = answer is None
            if answer is None:
                answer = self._kill_command(source, output, spare)
            held = drain(source, output)
        except BaseException:
            # Ctrl-C, say: an answer that comes later must not be taken for that of the next command.
            self._server.end()
            raise
        finally:
            if held:
                self._leave_fifo(source)
            else:
                os.close(source)
        return Completed(
            returncode=int(answer), output=output.bytes(), seconds=time.monotonic() - begin, timed_out=timed_out,
            dropped_bytes=output.dropped,
        )  # fmt: skip

    def _open_fifo(self) -> int:
        """The same pipe again, or a new one if something that was left behind still holds the last one."""
        path = self._layout.io / self._fifo
        if not self._fifo:
            self._count += 1
            self._fifo = f"output-{self._count}"
            path = self._layout.io / self._fifo
            os.mkfifo(path)
            path.chmod(0o622)
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _leave_fifo(self, source: int) -> None:
        """What was left in the background goes on writing to its pipe; the next command gets another."""
        assert self._watched is not None
        (self._layout.io / self._fifo).unlink()
        self._fifo = ""
        supervisor().empty(self._watched, source)

    def _by(self, script: bytes) -> tuple[bytes, bytes]:
        """How a command is run, and the command or the name of a file with it."""
        if len(script) > INLINE_BYTES:
            self._put("command", script)
            return b"file", b"command"
        return (b"fork" if self._forks and can_fork(script) else b"own"), script

    def _put(self, name: str, data: bytes) -> bytes:
        """Write a file for one command; its path inside. A command left behind keeps the file that it reads."""
        if not data:
            return b"/dev/null"
        path = self._layout.io / name
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_all(descriptor, data)
        finally:
            os.close(descriptor)
        self._who.own(path)
        return os.fsencode(self.where(f"{IO}/{name}"))

    def _collect(self, source: int, output: Output, deadline: float) -> bytes | None:
        """Read output until the exit code comes; None at the deadline."""
        poll = select.poll()
        poll.register(self._server.answers, select.POLLIN)
        poll.register(source, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000 + 1)]
            if self._server.answers in ready:
                return self._server.read_answer(deadline)
            if source in ready:
                data = os.read(source, READ_BYTES)
                output.add(data)
                if not data:
                    poll.unregister(source)
        return None

    def _kill_command(self, source: int, output: Output, spare: Sequence[int]) -> bytes:
        """Kill everything that the command started; its exit code, once nothing is left of it."""
        deadline = time.monotonic() + KILL_S
        answer = None
        while time.monotonic() < deadline:
            left = self._server.kill_below(spare=spare)
            if answer is None:
                answer = self._collect(source, output, time.monotonic() + 0.01)
            elif not left:
                return answer
        self._server.end()
        raise self._undying()

    def _undying(self) -> SandboxError:
        return SandboxError(
            f"a command in {self._layout.scratch} did not die within {KILL_S} s of its kill, so the sandbox was ended; "
            "a file system that does not answer is the usual cause"
        )

    def end_background(self) -> None:
        with self._busy:
            self._check_open()
            self._server.check()
            self._kill_all()

    def _kill_all(self) -> None:
        deadline = time.monotonic() + KILL_S
        while self._server.kill_below():
            if time.monotonic() > deadline:
                self._server.end()
                raise self._undying()
            time.sleep(0.001)

    def interrupt(self) -> None:
        """Kill the running command, from another thread; its run() returns with exit code 137."""
        spare = self._spare
        while not self._closed and self._server.kill_below(spare=spare):
            time.sleep(0.001)

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError(f"the sandbox in {self._layout.scratch} is closed; open a new one")

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._server.end()
            with self._busy:  # a command that ran in another thread sees the end, and lets go
                self._end()

    def _end(self) -> None:
        if self._relay is not None:
            self._relay.close()
        if self._watched is not None:
            supervisor().forget(self._watched)
        self._opened.close(keep_scratch=self._spec.keep_scratch)

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drain(source: int, output: Output) -> bool:
    """Read what a command that has ended left in its pipe; True if another process still holds the other end.

    All that it wrote is there already, so nothing is waited for, and a process that writes on for ever is cut off.
    """
    room = PIPE_BYTES
    while room > 0:
        try:
            data = os.read(source, READ_BYTES)
        except BlockingIOError:
            return True
        if not data:
            return False
        output.add(data)
        room -= len(data)
    return True
