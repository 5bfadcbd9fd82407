"""A bwrap process with the command server in it, and the pipes to it."""

import contextlib
import os
import select
import subprocess
import threading
import time
from collections.abc import Sequence

from hpcjet.errors import SandboxError
from hpcjet.sandbox import processes
from hpcjet.sandbox.identity import Identity
from hpcjet.sandbox.spawner import spawn

OPEN_S = 60.0
"""A start takes milliseconds; this bounds it on a node that is overloaded."""


class Server:
    """Sends commands into a sandbox and reads their exit codes. Raises SandboxError if the sandbox cannot start."""

    def __init__(self, bwrap: str, *, options: Sequence[str], command: Sequence[str], who: Identity) -> None:
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self.answers, answers = os.pipe2(os.O_CLOEXEC)
        complaints, complained = os.pipe2(os.O_CLOEXEC)
        # By descriptor: an argument list is readable for every user of the node, and variables may be secrets.
        args = os.memfd_create("hpcjet-bwrap-args", os.MFD_CLOEXEC)
        self._closed = False
        self._ending = threading.Lock()
        try:
            write_all(args, b"".join(os.fsencode(option) + b"\0" for option in options))
            os.lseek(args, 0, os.SEEK_SET)
            self._process = spawn(
                [bwrap, "--args", str(args), "--", *command],
                stdin=requests, stdout=answers, stderr=complained, pass_fds=(args,), cwd="/", env=_environment(),
                umask=0o022, **who.popen(),
            )  # fmt: skip
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            os.close(self._requests)
            os.close(self.answers)
            os.close(complaints)
            raise SandboxError(f"cannot start {bwrap} as user {who.uid}: {error}") from error
        finally:
            for descriptor in (requests, answers, complained, args):
                os.close(descriptor)
        try:
            self.init = self._await_start(bwrap, complaints)
        except BaseException:
            self.close()
            raise
        finally:
            os.close(complaints)

    def _await_start(self, bwrap: str, complaints: int) -> int:
        """The host's process id of process 1 of the sandbox."""
        try:
            started = self.read_answer(time.monotonic() + OPEN_S) == b"ready"
        except SandboxError:
            started = False
        inner = processes.children(self._process.pid) if started else []
        if inner:
            return inner[0]
        self.end()
        os.set_blocking(complaints, False)
        text = b""
        with contextlib.suppress(BlockingIOError):
            text = os.read(complaints, 1 << 16)
        raise SandboxError(f"{bwrap} opened no sandbox: {text.decode(errors='replace').strip() or 'it said nothing'}")

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
        return SandboxError(f"the sandbox has ended by itself (bwrap exit code {code}); open a new one")

    def kill_below(self, *, spare: Sequence[int] = ()) -> bool:
        """Kill what commands started, except the trees with the roots `spare`; call it until nothing was left."""
        with self._ending:
            return self._lives() and processes.kill_below(self.init, spare=spare)

    def measure(self) -> processes.Usage:
        """Memory and processes of all commands now."""
        with self._ending:
            return processes.usage(self.init) if self._lives() else processes.Usage(0, ())

    def _lives(self) -> bool:
        """Whether `init` is still our process 1, and not a stranger: bwrap waits for it, and we for bwrap."""
        return self._process.returncode is None and self.init in processes.children(self._process.pid)

    def end(self) -> None:
        """Kill process 1, which takes all others along before bwrap sees it end; wait for bwrap."""
        with self._ending:
            if self._process.returncode is None:
                for pid in processes.children(self._process.pid) or [self._process.pid]:
                    processes.kill(pid)
                self._process.wait()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.end()
            os.close(self._requests)
            os.close(self.answers)


def _environment() -> dict[str, str]:
    """For bwrap itself, whose library may come from an environment module; the sandbox starts with an empty one."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": path} if path else {}


def write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
