"""The bubblewrap sandbox: one living bwrap with a command server inside."""

import contextlib
import os
import resource
import select
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hpcjet.errors import SandboxError
from hpcjet.sandbox import processes
from hpcjet.sandbox.identity import Identity, check_reachable
from hpcjet.sandbox.options import IO, SERVER, SYSTEM, Features, Layout, render_options
from hpcjet.sandbox.output import Output
from hpcjet.sandbox.scratch import make_scratch, remove_tree
from hpcjet.sandbox.spawner import spawn
from hpcjet.sandbox.spec import Completed, SandboxSpec

OPEN_S = 60.0
"""A start takes milliseconds; this bounds it on a node that is overloaded."""
KILL_S = 10.0
"""How long a killed command may take to go away before its sandbox is given up."""
INLINE_BYTES = 2048
"""Longer commands go by file: bash reads a pipe byte by byte, and the kernel limits one argument to 128 KiB."""
READ_BYTES = 1 << 16


@dataclass(frozen=True)
class Runtime:
    """What all sandboxes of one configuration share."""

    bwrap: Path
    shell: Path
    etc: Path
    who: Identity
    features: Features
    processes_rlimit: bool
    """Whether the kernel counts RLIMIT_NPROC per user namespace (Linux 5.14) and so per sandbox."""


class BwrapSandbox:
    """See hpcjet.sandbox.spec.Sandbox."""

    def __init__(self, runtime: Runtime, spec: SandboxSpec) -> None:
        self._who = runtime.who
        self._spec = spec
        self._layout = Layout(spec.scratch.absolute(), runtime.etc)
        self._busy = threading.Lock()
        self._closed = False
        self._fifo = ""
        self._count = 0
        self.upper: Path | None = self._layout.upper if spec.view else None
        self._lock = make_scratch(self._layout, runtime.who, view=spec.view is not None)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            check_reachable(self._layout.scratch, runtime.who)
            self._start(runtime)
        except BaseException:
            self.close()
            raise

    # Starting

    def _start(self, runtime: Runtime) -> None:
        options = render_options(self._spec, self._layout, runtime.features, links=system_links())
        requests, self._requests = os.pipe2(os.O_CLOEXEC)
        self._answers, answers = os.pipe2(os.O_CLOEXEC)
        self._complaints, complaints = os.pipe2(os.O_CLOEXEC)
        args = os.memfd_create("hpcjet-bwrap-args", os.MFD_CLOEXEC)
        try:
            _write_all(args, b"\0".join(os.fsencode(option) for option in options) + b"\0")
            os.lseek(args, 0, os.SEEK_SET)
            self._process = spawn(
                [str(runtime.bwrap), "--args", str(args), "--", *SERVER, *_server_arguments(self._spec, runtime)],
                stdin=requests, stdout=answers, stderr=complaints, pass_fds=(args,), cwd="/", env=_bwrap_environment(),
                umask=0o022, **runtime.who.popen(),
            )  # fmt: skip
        finally:
            for descriptor in (requests, answers, complaints, args):
                os.close(descriptor)
        if self._read_answer(time.monotonic() + OPEN_S) != b"ready":
            raise SandboxError(self._why_not_started(runtime))
        self._init = processes.children(self._process.pid)[0]
        with contextlib.suppress(OSError):
            # Let the kernel take an agent's processes first when the node runs out of memory. New ones inherit it.
            (processes.PROC / str(self._init) / "oom_score_adj").write_text("1000")

    def _why_not_started(self, runtime: Runtime) -> str:
        processes.kill(self._process.pid)
        self._process.wait()
        os.set_blocking(self._complaints, False)
        with contextlib.suppress(BlockingIOError):
            text = os.read(self._complaints, READ_BYTES).decode(errors="replace").strip()
        return f"{runtime.bwrap} could not open a sandbox in {self._layout.scratch}: {text or 'no answer'}"

    # Running

    def run(self, command: str, *, timeout_s: float, cwd: str | None = None, stdin: bytes = b"") -> Completed:
        script = command.encode("utf-8", "surrogateescape")
        folder = os.fsencode(cwd or self._spec.cwd)
        if b"\0" in script or b"\0" in folder:
            raise ValueError("a command and its cwd cannot hold NUL bytes; write such data to a file, or use stdin")
        with self._busy:
            if self._closed:
                raise SandboxError(f"the sandbox in {self._layout.scratch} is closed")
            return self._run(script, folder, stdin, timeout_s)

    def _run(self, script: bytes, folder: bytes, stdin: bytes, timeout_s: float) -> Completed:
        begin = time.monotonic()
        spare = processes.children(self._init)
        source = self._open_fifo()
        output = Output(self._spec.limits.output_bytes)
        files = [
            self._put("stdin", stdin) if stdin else "",
            self._put("command", script) if len(script) > INLINE_BYTES else "",
        ]
        try:
            fields = [
                self._fifo,
                f"{IO}/{files[0]}" if files[0] else "/dev/null",
                folder,
                files[1],
                b"" if files[1] else script,
            ]
            self._send(b"".join(os.fsencode(field) + b"\0" for field in fields))
            answer = self._collect(source, output, begin + timeout_s)
            timed_out = answer is None
            if answer is None:
                answer = self._kill_command(source, output, spare)
            held = _drain(source, output)
        finally:
            os.close(source)
            for name in filter(None, files):
                (self._layout.io / name).unlink()
        if held:
            self._drop_fifo()
        return Completed(
            returncode=int(answer), output=output.bytes(), seconds=time.monotonic() - begin, timed_out=timed_out,
            dropped_bytes=output.dropped,
        )  # fmt: skip

    def end_background(self) -> None:
        with self._busy:
            if self._closed:
                raise SandboxError(f"the sandbox in {self._layout.scratch} is closed")
            deadline = time.monotonic() + KILL_S
            # Not "until nothing was found to kill": a process that forks and exits in turns slips through such a scan,
            # but orphans pass to process 1 before their parent is gone, so without a child of it nothing lives.
            while processes.children(self._init):
                processes.kill_below(self._init)
                if time.monotonic() > deadline:
                    self._end()
                    raise SandboxError(
                        f"processes of the sandbox in {self._layout.scratch} could not be killed in {KILL_S} s"
                    )
                time.sleep(0.001)

    def _open_fifo(self) -> int:
        """A new pipe whenever something that was left behind still holds the last one, else the same again."""
        if not self._fifo:
            self._count += 1
            self._fifo = f"output-{self._count}"
            path = self._layout.io / self._fifo
            os.mkfifo(path)
            path.chmod(0o622)
        return os.open(self._layout.io / self._fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _drop_fifo(self) -> None:
        (self._layout.io / self._fifo).unlink()
        self._fifo = ""

    def _put(self, name: str, data: bytes) -> str:
        path = self._layout.io / name
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            _write_all(descriptor, data)
        finally:
            os.close(descriptor)
        self._who.own(path)
        return name

    def _send(self, request: bytes) -> None:
        try:
            _write_all(self._requests, request)
        except BrokenPipeError:
            raise self._gone() from None

    def _collect(self, source: int, output: Output, deadline: float) -> bytes | None:
        """Read output until the answer comes; None at the deadline."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        poll.register(source, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ready = [descriptor for descriptor, _ in poll.poll(left * 1000 + 1)]
            if source in ready:
                data = os.read(source, READ_BYTES)
                output.add(data)
                if not data:
                    poll.unregister(source)
            if self._answers in ready:
                return self._read_answer(deadline)
        return None

    def _read_answer(self, deadline: float) -> bytes | None:
        """One line from the server; None at the deadline."""
        line = b""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            data = os.read(self._answers, 64)
            if not data:
                raise self._gone()
            line += data
        return line.strip()

    def _kill_command(self, source: int, output: Output, spare: Iterable[int]) -> bytes:
        """Kill everything that the command started, and wait for its answer and until nothing is left of it."""
        deadline = time.monotonic() + KILL_S
        answer = None
        while time.monotonic() < deadline:
            left = processes.kill_below(self._init, spare=spare)
            if answer is None:
                answer = self._collect(source, output, time.monotonic() + 0.01)
            elif not left:
                return answer
        self._end()
        raise SandboxError(f"a command of the sandbox in {self._layout.scratch} could not be killed in {KILL_S} s")

    def _gone(self) -> SandboxError:
        code = self._process.poll() if self._process else None
        return SandboxError(f"the sandbox in {self._layout.scratch} has ended (bwrap exit code {code}); open a new one")

    # Closing

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end()
        for name in ("_requests", "_answers", "_complaints"):
            with contextlib.suppress(AttributeError, OSError):
                os.close(getattr(self, name))
        if not self._spec.keep_scratch:
            remove_tree(self._layout.scratch)
        os.close(self._lock)

    def _end(self) -> None:
        """Kill process 1 of the sandbox, which takes all others along before bwrap sees it end."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        if process.poll() is None:
            for pid in processes.children(process.pid) or [process.pid]:
                processes.kill(pid)
        process.wait()

    def __enter__(self) -> "BwrapSandbox":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def system_links() -> dict[str, str]:
    """System folders that are symbolic links on this host, such as /bin where /usr is merged."""
    return {folder: os.readlink(folder) for folder in SYSTEM if Path(folder).is_symlink()}


def _server_arguments(spec: SandboxSpec, runtime: Runtime) -> list[str]:
    limits = spec.limits
    file_kib = "" if limits.file_bytes is None else str(max(1, limits.file_bytes // 1024))
    open_files = "" if limits.open_files is None else str(_below_hard(limits.open_files, resource.RLIMIT_NOFILE))
    # Twice, because the watchdog is who ends a command over the limit; this holds a fork bomb until it comes.
    count = "" if limits.processes is None or not runtime.processes_rlimit else str(2 * limits.processes)
    return [str(runtime.shell), IO, file_kib, open_files, count]


def _below_hard(wanted: int, limit: int) -> int:
    hard = resource.getrlimit(limit)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _bwrap_environment() -> dict[str, str]:
    """For bwrap itself, whose library may come from an environment module; the sandbox starts with an empty one."""
    path = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": path} if path else {}


def _drain(source: int, output: Output) -> bool:
    """Read what a command that has ended left in its pipe; True if another process still holds the other end.

    Bounded by one pipe's worth, as a process in the background may go on writing for ever.
    """
    room = 1 << 20
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


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
