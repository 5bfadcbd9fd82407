"""The processes that the lab starts: each is known by its id and its start time, never by its name."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcjet.errors import LabError

POLL_S = 0.05
# Joins the control groups before the command exists, so that it is never outside of them, whenever we are killed; where
# the groups have gone meanwhile, there is to be no command.
JOIN = """\
set -e
while [ "$1" != -- ]; do echo $$ >"$1"; shift; done
shift
"""
START = f"echo $$\n{JOIN}output=$1\nshift\n" + 'exec "$@" >"$output" 2>&1 </dev/null\n'


class Process(NamedTuple):
    """A process on this machine; the start time (clock ticks since boot) tells it from a later one with the same id."""

    pid: int
    start: int


def clean_environment(**more: str) -> dict[str, str]:
    """What daemons and the lab's user get instead of the caller's environment."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", **more}


def stat_fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on (state, parent, ...); None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()


def identify(pid: int) -> Process | None:
    """The living process with this id; None if it is gone, or dead and not yet collected by its parent."""
    fields = stat_fields(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]))


def is_alive(process: Process) -> bool:
    return identify(process.pid) == process


def children(pid: int) -> list[int]:
    return [child for child in all_pids() if (fields := stat_fields(child)) and int(fields[1]) == pid]


def all_pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def send(process: Process, number: int) -> None:
    """Signal exactly this process: the descriptor is taken before the check, so that no successor can be hit."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        if is_alive(process):
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def stop(process: Process, *, grace_s: float) -> None:
    """Ask with SIGTERM, wait, then insist with SIGKILL; without grace, SIGKILL at once."""
    if grace_s > 0:
        send(process, signal.SIGTERM)
    if not holds(lambda: not is_alive(process), within_s=grace_s):
        kill(process)


def kill(process: Process) -> None:
    """SIGKILL, and return once it is gone."""
    send(process, signal.SIGKILL)
    if not holds(lambda: not is_alive(process), within_s=10):
        raise LabError(f"process {process.pid} is still there 10 s after SIGKILL; see /proc/{process.pid}/stack")


def start_daemon(
    argv: Sequence[str | Path], *, procs_files: Sequence[Path], output: Path, env: Mapping[str, str]
) -> Process:
    """Start a daemon in a session of its own, inside the control groups, with all it prints in `output`."""
    command = ["setsid", "--fork", "/bin/sh", "-c", START, "sh", *procs_files, "--", output, *argv]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd="/", env=env, umask=0o022, check=True)
    pid = int(done.stdout)
    # One that has ended already is caught by whoever waits for it to be ready.
    return identify(pid) or Process(pid, 0)


def in_groups(procs_files: Sequence[Path], argv: Sequence[str | Path]) -> list[str | Path]:
    """The command that joins these control groups and becomes the given one."""
    return ["/bin/sh", "-c", JOIN + 'exec "$@"', "sh", *procs_files, "--", *argv]


def holds(condition: Callable[[], bool], *, within_s: float) -> bool:
    """Wait until the condition holds; False if it does not within the time."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def run(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, stdin: str = "") -> str:
    """Run a command of the system to its end and return what it printed; LabError with its words if it fails."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, env=env or clean_environment(), cwd="/")
    if done.returncode != 0:
        words = " ".join(str(word) for word in argv)
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise LabError(f"`{words}` failed with exit code {done.returncode}: {said}")
    return done.stdout
