"""The user's program as a child of the driver: it runs, it is asked to end, and nothing of it is left."""

import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcjet.cluster.child import Child, adopt_orphans, end_orphans, kill_session, session_members
from hpcjet.cluster.signals import Interrupted

FORCE_S = 3.0
_DAY_S = 86_400.0


class Group:
    """How a program on this node is ended: by its process group, since bash would not pass a signal on."""

    def code(self, code: int, output: Path) -> int:
        """The exit code of the program, from that of its first process."""
        return code

    def ask(self, leader: int) -> None:
        """Ask it to end at a safe point."""
        signal_group(leader, signal.SIGTERM)

    def force(self, leader: int) -> None:
        """Its time is over; its session is killed in any case."""
        signal_group(leader, signal.SIGKILL)


def run_program(
    words: Sequence[str], *, env: Mapping[str, str], workdir: Path, output: Path, stop_s: float, ending: Group
) -> int:
    """Run it to its end; returns its exit code, 128+N after signal N. What it leaves running is killed.

    Interrupted passes through, after the program was asked to end and has had up to `stop_s` seconds.
    """
    adopt_orphans()
    program = Child("program", words, env=env, log=output, cwd=workdir)
    try:
        while (code := program.wait(_DAY_S)) is None:
            pass
        return ending.code(code if code >= 0 else 128 - code, output)
    except Interrupted:
        ending.ask(program.pid)
        if not _ends_within(program, stop_s):
            ending.force(program.pid)
            _ends_within(program, FORCE_S)
        raise
    finally:
        kill_session(program.pid)
        program.stop(0)
        end_orphans()


def signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def ended_how(code: int) -> str:
    """An exit code in words; bash has 128+N for what signal N ended."""
    text = f"ended with exit code {code}"
    if code > 128:
        with contextlib.suppress(ValueError):
            return f"{text}, as after {signal.Signals(code - 128).name}"
    return text + {126: ": it cannot be run", 127: ": a command was not found"}.get(code, "")


def _ends_within(program: Child, seconds: float) -> bool:
    """Whether all of its session end: where bash ends first, what it ran may still be at work."""
    deadline = time.monotonic() + seconds
    while program.returncode is None or session_members(program.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
