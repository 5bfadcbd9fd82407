"""The program that holds a sandbox, with the command server in it, and the pipes to it."""

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from hpcjet.errors import SandboxError
from hpcjet.sandbox import processes
from hpcjet.sandbox.backend import Give, Start
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.orphans import end_start, new_mark, soon
from hpcjet.sandbox.spawner import spawn

END_S = 10.0
OPEN_S = 60.0
"""A start takes milliseconds; this bounds it on a node that is overloaded."""
LOOK_S = 0.5
"""How soon a start is given up whose program has ended: what it left may hold on to our pipes."""


class Server:
    """Sends commands into a sandbox and reads their exit codes. Raises SandboxError if the sandbox cannot start."""

    def __init__(self, how: Callable[[Give], Start], *, who: Identity, cpus: frozenset[int] | None = None) -> None:
        self._closed = False
        self._ending = threading.Lock()
        self._lifeline = -1
        self._mark = new_mark()
        with contextlib.ExitStack() as handed_over:

            def give(content: bytes) -> int:
                handed_over.callback(os.close, descriptor := os.memfd_create("hpcjet-sandbox", os.MFD_CLOEXEC))
                write_all(descriptor, content)
                os.lseek(descriptor, 0, os.SEEK_SET)
                given.append(descriptor)
                return descriptor

            given: list[int] = []
            start = how(give)
            self._name = start.argv[0]
            requests, self._requests = _pipe(handed_over)
            self.answers, answers = os.pipe2(os.O_CLOEXEC)
            handed_over.callback(os.close, answers)
            complaints, complained = os.pipe2(os.O_CLOEXEC)
            handed_over.callback(os.close, complained)
            if start.lifeline:
                lifeline, self._lifeline = _pipe(handed_over)
                given.append(lifeline)
            argv = [word.replace("{lifeline}", str(given[-1])) for word in start.argv]
            try:
                self._process = spawn(
                    argv, cpus=cpus, stdin=requests, stdout=answers, stderr=complained, pass_fds=given, cwd="/",
                    env={**start.env, **self._mark}, umask=0o022, **who.popen(),
                )  # fmt: skip
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                for descriptor in (self._requests, self.answers, complaints):
                    os.close(descriptor)
                self._drop_lifeline()
                raise SandboxError(f"cannot start {self._name} as user {who.uid}: {error}") from error
        try:
            self._parent, self.init = self._await_start(complaints)
        except BaseException:
            self.close()
            soon(end_start, self._mark)
            raise
        finally:
            os.close(complaints)

    def _await_start(self, complaints: int) -> tuple[int, int]:
        """The host's process ids of the command server and of its parent."""
        started = self._await_ready(time.monotonic() + OPEN_S)
        parent = self._process.pid
        inner = processes.children(parent) if started else []
        while inner:
            below = processes.children(inner[0])
            if not below:
                return parent, inner[0]
            parent, inner = inner[0], below
        self.end()
        os.set_blocking(complaints, False)
        text = b""
        with contextlib.suppress(BlockingIOError):
            text = os.read(complaints, 1 << 16)
        raise SandboxError(
            f"{self._name} opened no sandbox: {text.decode(errors='replace').strip() or 'it said nothing'}"
        )

    def _await_ready(self, deadline: float) -> bool:
        with contextlib.suppress(SandboxError):
            while (left := deadline - time.monotonic()) > 0 and self._process.poll() is None:
                answer = self.read_answer(time.monotonic() + min(left, LOOK_S))
                if answer is not None:
                    return answer == b"ready"
        return False

    def pids(self) -> tuple[int, ...]:
        """All processes of the sandbox before its first command."""
        return (self._process.pid, *processes.descendants(self._process.pid))

    def send(self, fields: Sequence[bytes]) -> None:
        try:
            write_all(self._requests, b"".join(field + b"\0" for field in fields))
        except BrokenPipeError:
            raise self.gone() from None

    def read_answer(self, deadline: float) -> bytes | None:
        """One line from the server; None at the deadline."""
        line = b""
        poll = select.poll()
        poll.register(self.answers, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            data = os.read(self.answers, 64)
            if not data:
                raise self.gone()
            line += data
        return line.strip()

    def check(self) -> None:
        """Raise SandboxError if the sandbox is gone."""
        with self._ending:
            lives = self._lives()
        if not lives:
            raise self.gone()

    def gone(self) -> SandboxError:
        with self._ending:
            code = self._process.poll()
        return SandboxError(f"the sandbox has ended by itself (exit code {code}); open a new one")

    def kill_below(self, *, spare: Sequence[int] = ()) -> bool:
        """Kill what commands started, except the trees with the roots `spare`; call it until nothing was left."""
        with self._ending:
            return self._lives() and processes.kill_below(self.init, spare=spare)

    def usage(self) -> processes.Usage:
        """Memory and processes of all commands now."""
        with self._ending:
            return processes.usage(self.init) if self._lives() else processes.Usage(0, ())

    def _lives(self) -> bool:
        """Whether `init` is still our server, and not a stranger: its parent waits for it, and we for that."""
        return self._process.returncode is None and self.init in processes.children(self._parent)

    def end(self) -> None:
        """Kill all that is below the program we started, and wait for it.

        Process 1 of a process namespace takes all others along before its parent sees it end. Where there is none, the
        keeper adopts what outlives the server, so nothing is left when it has no children.
        """
        with self._ending:
            if self._process.returncode is not None:
                return
            pid = self._process.pid
            deadline = time.monotonic() + END_S
            if not processes.children(pid):
                processes.kill(pid)
            while processes.kill_below(pid) and self._process.poll() is None and time.monotonic() < deadline:
                # Where a keeper stands above, what is below it may fork faster than it is found.
                _wait_for_end(pid, 0.005 if self._lifeline < 0 else 0.0005)
            if self._lifeline >= 0:  # the keeper: it would go by itself, but later
                self._drop_lifeline()
                processes.kill(pid)
            self._process.wait()

    def _drop_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.end()
            self._drop_lifeline()
            os.close(self._requests)
            os.close(self.answers)


def _wait_for_end(pid: int, timeout_s: float) -> None:
    """Wait a little for the end of a child, without looking again and again."""
    try:
        watched = os.pidfd_open(pid)
    except OSError:  # before Linux 5.3
        time.sleep(0.0005)
        return
    try:
        poll = select.poll()
        poll.register(watched, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(watched)


def _pipe(inner: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose read end is closed here once the program has it."""
    read, write = os.pipe2(os.O_CLOEXEC)
    inner.callback(os.close, read)
    return read, write


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
