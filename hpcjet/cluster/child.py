"""Child processes that end with us: own session, killed by the kernel if we die, ended in order if we do not."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from hpcjet.cluster.outbox import OUTBOX, Hearing

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
# Loaded here, not between fork and exec, where taking the loader's lock could deadlock.
_LIBC = ctypes.CDLL(None, use_errno=True)


class Child:
    """One child process with a session of its own. Its output goes to a log file; with `outbox` it can tell us words.

    Neither what we tell it nor what it tells us ever waits: what it does not read yet is kept here.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cwd: Path | None = None,
        outbox: bool = False,
    ) -> None:
        self.name, self.log = name, log
        self._unsaid = bytearray()
        self._hearing = Hearing() if outbox else None
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        parent = os.getpid()
        extra = {OUTBOX: str(self._hearing.to_pass)} if self._hearing else {}
        try:
            self._process = subprocess.Popen(
                list(argv),
                env={**{name: value for name, value in env.items() if name != OUTBOX}, **extra},
                cwd=cwd,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[self._hearing.to_pass] if self._hearing else [],
                start_new_session=True,
                preexec_fn=lambda: _die_with(parent),
            )
        except BaseException:
            if self._hearing:
                self._hearing.close()
            raise
        finally:
            os.close(output)
            if self._hearing:
                self._hearing.passed()
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative for the signal that ended it."""
        return self._process.poll()

    def say(self, line: str) -> None:
        """Write one line to its standard input; nothing happens if it is gone already.

        What it does not take yet is written by the next call, or by `heard`.
        """
        self._unsaid += line.encode() + b"\n"
        self._write()

    def heard(self) -> list[dict[str, Any]]:
        """The words that it has said since the last call (see Outbox); empty without an outbox."""
        self._write()
        return self._hearing.read() if self._hearing else []

    def wait(self, timeout_s: float) -> int | None:
        """Its return code, or None if it still runs after `timeout_s`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def interrupt(self) -> None:
        """Ask it to end: SIGTERM to the process itself, which ends its own children in order."""
        if self.returncode is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for the process itself, without waiting; `stop` ends what it leaves behind."""
        if self.returncode is None:
            self._process.kill()

    def stop(self, timeout_s: float) -> None:
        """End its whole session: SIGTERM to the process, then SIGKILL for all that is left after `timeout_s`.

        With timeout 0 SIGKILL comes at once, for what keeps nothing worth saving.
        """
        if timeout_s:
            self.interrupt()
            self.wait(timeout_s)
        kill_session(self.pid)
        self.wait(5)
        if self._process.stdin:
            self._process.stdin.close()
        if self._hearing:
            self._hearing.close()

    def _write(self) -> None:
        stdin = self._process.stdin
        if stdin is None or stdin.closed:
            self._unsaid.clear()
        try:
            while stdin is not None and self._unsaid:
                del self._unsaid[: os.write(stdin.fileno(), self._unsaid[:65_536])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._unsaid.clear()


def kill_session(leader: int, *, spare: Collection[int] = ()) -> None:
    """SIGKILL every process of the session that `leader` began, until none but those to `spare` is left; groups within
    it do not matter.

    The id of a session is not reused while it has members, so nothing of others can be hit.
    """
    deadline = time.monotonic() + 5
    while (members := set(session_members(leader)).difference(spare)) and time.monotonic() < deadline:
        for pid in members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def adopt_orphans() -> None:
    """Have the kernel hand us, not process 1, the children of our children that die: so we can reap them."""
    _LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_orphans() -> None:
    """Kill and reap every child that we have left, however it detached itself."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            time.sleep(0.01)


def session_members(session: int) -> list[int]:
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The command's name, in parentheses, may hold anything; what follows is plain.
                state, _, _, sid = Path(entry.path, "stat").read_text().rpartition(")")[2].split()[:4]
                if int(sid) == session and state != "Z":
                    found.append(int(entry.name))
    return found


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, for an error message."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 16_384))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"(cannot read {log}: {error.strerror})"
    return "\n".join(text.splitlines()[-lines:]) or "(empty)"


def _die_with(parent: int) -> None:
    """Between fork and exec: have the kernel kill us when the parent's main thread dies, even if that was just now."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
